"""Rich Text and what Office wrote before 2007 (.rtf, .doc, .xls, .ppt), by LibreOffice.

LibreOffice, where it is installed, writes a file in the present format of its kind, whose reader
then reads it. It runs within the bounds of the process that reads files, follows no link, runs no
macro, and keeps its settings and what it writes in a folder that is removed at once.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePath
from signal import Signals
from typing import BinaryIO, NamedTuple

from qa_service.child_program import end_with_parent
from qa_service.retrieval.documents import Document, Fault, UnreadableError
from qa_service.retrieval.formats import FORMATS, parse
from qa_service.retrieval.formats.bounded import COMPOUND_FILE, decoded, read_bytes
from qa_service.retrieval.layout import lay_out


class _Kind(NamedTuple):
    """A kind of file: the present ending of such files, and LibreOffice's filters to be tried.

    Without a filter it would show the bytes of a broken file as a text.
    """

    present: str
    filters: tuple[str, ...]


_KINDS = {
    ".doc": _Kind(".docx", ("MS Word 97", "MS WinWord 6.0")),
    ".ppt": _Kind(".pptx", ("MS PowerPoint 97",)),
    ".rtf": _Kind(".docx", ("Rich Text Format",)),
    ".xls": _Kind(".xlsx", ("MS Excel 97",)),
}
_RICH_TEXT = b"{\\rtf"
_SPACE = b"\xef\xbb\xbf \t\r\n"
_HOMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")
_START_AGAIN = 81
"""LibreOffice's exit code once it has made its folder of settings."""
_MAX_WAIT_S = 300
"""It is killed if it waits this long; how much it may compute is bounded as for all files."""
_NETWORK = "org.openoffice.Inet/Settings"
_SECURITY = "org.openoffice.Office.Common/Security/Scripting"
_SETTINGS = (
    (_SECURITY, "BlockUntrustedRefererLinks", "true"),
    (_SECURITY, "DisableActiveContent", "true"),
    (_SECURITY, "DisableMacrosExecution", "true"),
    (_NETWORK, "ooInetProxyType", "2"),
    (_NETWORK, "ooInetHTTPProxyName", "127.0.0.1"),
    (_NETWORK, "ooInetHTTPProxyPort", "9"),
    (_NETWORK, "ooInetHTTPSProxyName", "127.0.0.1"),
    (_NETWORK, "ooInetHTTPSProxyPort", "9"),
)
"""Of LibreOffice: it runs nothing of a file, and asks a proxy that is not there for its links."""


def read_older(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document | Fault]:
    """Reads a file by what it holds: programs write pages and tables of text under these names.

    Raises:
        UnreadableError: LibreOffice is not installed, or cannot load the file.
    """
    data = read_bytes(stream, max_bytes)
    ending = ".rtf" if data.startswith(_RICH_TEXT) else PurePath(name.lower()).suffix
    kind = _KINDS[ending]
    if data.startswith((_RICH_TEXT, COMPOUND_FILE)):
        with tempfile.TemporaryDirectory() as folder:
            original = Path(folder, f"document{ending}")
            original.write_bytes(data)
            with _converted(original, kind, max_bytes).open("rb") as converted:
                yield from FORMATS[kind.present](converted, name, max_bytes)
    elif data.lstrip(_SPACE).startswith(b"<"):
        yield lay_out(parse(decoded(data), "html"), name)
    elif data.startswith(b"PK") or ending == ".xls":
        present = kind.present if data.startswith(b"PK") else ".csv"
        yield from FORMATS[present](io.BytesIO(data), name, max_bytes)
    else:
        yield lay_out(parse(decoded(data), "text"), name)


def _converted(original: Path, kind: _Kind, max_bytes: int) -> Path:
    script = shutil.which("soffice")
    if script is None:
        raise UnreadableError("LibreOffice, which is needed to read it, is not installed")
    # The script would start this program as its child, which would outlive it.
    program = str(Path(script).resolve().with_name("soffice.bin"))
    settings = original.with_name("settings")
    (settings / "user").mkdir(parents=True)
    items = (
        f'<item oor:path="/{path}"><prop oor:name="{name}"><value>{value}</value></prop></item>'
        for path, name, value in _SETTINGS
    )
    (settings / "user" / "registrymodifications.xcu").write_text(
        f'<oor:items xmlns:oor="http://openoffice.org/2001/registry">{"".join(items)}</oor:items>'
    )
    converted = original.with_suffix(kind.present)
    for filter in kind.filters:
        _run(
            [
                *(program, "--headless", "--norestore", f"--infilter={filter}"),
                *(f"-env:UserInstallation={settings.as_uri()}", "--convert-to", kind.present[1:]),
                *("--outdir", str(original.parent), str(original)),
            ],
            str(original.parent),
            max_bytes,
        )
        if converted.exists():
            return converted
    raise UnreadableError("LibreOffice cannot load it: it is broken or encrypted")


def _run(command: list[str], home: str, max_bytes: int) -> None:
    """Runs LibreOffice, with a folder for all that it and its libraries keep."""
    environment = {**os.environ, **dict.fromkeys(_HOMES, home)}
    code = _START_AGAIN
    try:
        while code == _START_AGAIN:
            code = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=partial(_bound, os.getpid(), max_bytes),
                timeout=_MAX_WAIT_S,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired:
        raise UnreadableError(f"LibreOffice has not converted it in {_MAX_WAIT_S} s") from None
    if code < 0:
        raise UnreadableError(f"LibreOffice, which was to convert it, died: {Signals(-code).name}")


def _bound(parent: int, max_bytes: int) -> None:
    end_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

"""A model's versions on disk, and which of them are served.

    path/manifest.json ...                  a prepared folder: version 1
    path/3/manifest.json, path/4/...        a folder of versions

A folder without a manifest is no version: the manifest is written last, so a folder that is being
copied has none yet. Each instance compares the files with the manifest.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qa_service.errors import SetupError, list_choices
from qa_service.instance.model_folder.manifest import fingerprint_of, load_manifest, model_files

logger = logging.getLogger(__name__)

MAX_VERSION = 2**53  # up to here every reader of JSON keeps integers exact
MAX_VERSIONS = 1000  # each manifest is read at every look
VERSIONS_WORDS = '"latest:N", "all" or a list of numbers'
NUMBER = r"[1-9][0-9]{0,15}\Z"
"""A version's number, as folders, files and requests write it; any other word is a label."""

_VERSIONS = re.compile(r"(all|latest:[1-9][0-9]{0,2})\Z")


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A prepared model in a folder.

    Attributes:
        file_bytes: The size of each file that the manifest names and that is there.
    """

    number: int
    path: Path
    fingerprint: str
    file_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)

    def loaded_bytes(self, engine_type: str, precision: str) -> int:
        """The size of the files that an instance on the CPU loads; a missing file counts 0."""
        return sum(self.file_bytes.get(name, 0) for name in model_files(engine_type, precision))


def find_versions(path: Path) -> dict[int, FoundVersion]:
    """The versions in a folder, by number, ascending; or a `SetupError`."""
    if fingerprint := fingerprint_of(path):
        return {1: _found(1, path, fingerprint)}
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            load_manifest(path)  # says what to do
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    numbers = sorted(int(name) for name in names if re.match(NUMBER, name))
    if len(numbers) > MAX_VERSIONS:
        raise SetupError(f"{path} has {len(numbers)} versions, more than {MAX_VERSIONS}")
    found = {}
    for number in numbers:
        folder = path / str(number)
        if not (fingerprint := fingerprint_of(folder)):
            logger.info("%s has no manifest: it is not loaded", folder)
            continue
        try:
            found[number] = _found(number, folder, fingerprint)
        except SetupError as error:
            logger.warning("%s is not loaded: %s", folder, error)
    if not found:
        load_manifest(path)  # says what to do
    return found


def _found(number: int, folder: Path, fingerprint: str) -> FoundVersion:
    paths = [folder / name for name in load_manifest(folder).files]
    sizes = {path.name: path.stat().st_size for path in paths if path.is_file()}
    return FoundVersion(number, folder, fingerprint, sizes)


def choose_versions(
    found: Mapping[int, FoundVersion], versions: str | Sequence[int], named: Iterable[int]
) -> list[FoundVersion]:
    """The versions to serve.

    Args:
        versions: `latest:N`, `all`, or numbers.
        named: Numbers that labels and shares name; they are served too.

    Raises:
        SetupError: A number has no version, or `versions` has another form.
    """
    if isinstance(versions, str) and not _VERSIONS.match(versions):
        raise SetupError(f"{json.dumps(versions)} is not {VERSIONS_WORDS}")
    wanted = set(named)
    if versions == "all":
        wanted |= found.keys()
    elif isinstance(versions, str):
        wanted |= set(sorted(found)[-int(versions.partition(":")[2]) :])
    else:
        wanted |= set(versions)
    if missing := sorted(wanted - found.keys()):
        raise SetupError(f"there is no version {missing[0]}; {list_choices(found)}")
    return [found[number] for number in sorted(wanted)]

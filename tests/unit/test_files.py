"""Text files, whatever their byte order mark."""

import codecs
import json
from datetime import UTC, datetime

import pytest

from qa_service.files import read_text
from qa_service.preparation.prepare import choose_reading
from qa_service.preparation.sources import Source
from qa_service.programs.access import Access
from qa_service.server.config import ConfigSource
from qa_service.server.front.tokens import grant_of, load_tokens

MARKED = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "utf-16": b"",
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32": b"",
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.fixture(params=MARKED)
def write(request, tmp_path):
    """Writes a text into a new file in one of the encodings."""

    def write(text: str):
        path = tmp_path / "file"
        path.write_bytes(MARKED[request.param] + text.encode(request.param))
        path.chmod(0o600)
        return path

    return write


def test_a_text_is_read_in_the_encoding_of_its_mark(write):
    assert read_text(write("Größe 🗼\n")) == "Größe 🗼\n"


def test_what_people_write_is_read_in_the_encoding_of_its_mark(write):
    token = "0123456789abcdef"
    path = write(f"# Größe\n{token}\n")
    assert grant_of(load_tokens(path), token, datetime.now(UTC))
    flags = dict.fromkeys(("tls", "ca_file", "client_cert", "client_key"))
    assert Access.from_flags({**flags, "token_file": path}).token == token
    assert ConfigSource(write('[logs]\nlog_level = "error"\n')).read().logs.log_level == "error"
    path = write(json.dumps({"null_threshold": 3.0}))
    source = Source("m", "m", path.rename(path.parent / "reading.json").parent)
    assert choose_reading(source)[0].null_threshold == 3.0

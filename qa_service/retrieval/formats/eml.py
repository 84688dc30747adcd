"""Messages of electronic mail: who wrote what to whom, and when, and then the text.

Format: RFC 5322 and MIME. A message with plain text and HTML is read from its HTML, which has lists
and tables; files that are attached are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from email.errors import MessageError
from typing import BinaryIO

from qa_service.retrieval.documents import BlockList, Document, Parsed, UnreadableError
from qa_service.retrieval.formats import parse
from qa_service.retrieval.formats.bounded import read_bytes
from qa_service.retrieval.layout import lay_out

_SHOWN = ("From", "To", "Cc", "Date", "Subject")


def read_eml(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    import email.policy  # noqa: PLC0415, with its parsers, which few collections need

    data = read_bytes(stream, max_bytes)
    out = BlockList()
    try:
        message = email.message_from_bytes(data, policy=email.policy.default)
        heads = {key: str(message.get(key, "")) for key in _SHOWN}
        if not any(heads.values()):
            raise UnreadableError("not a message: it has neither a sender nor a subject")
        body = message.get_body(("html", "plain"))
        text = str(body.get_content()) if body is not None else ""
    except (MessageError, LookupError, ValueError, AttributeError, TypeError) as error:
        raise UnreadableError(f"not a message: {error}") from None
    out.table([], [(0, [f"{key}: {value}"]) for key, value in heads.items() if value])
    kind = "html" if body is not None and body.get_content_subtype() == "html" else "text"
    yield lay_out(Parsed([*out.blocks, *parse(text, kind).blocks], heads["Subject"]), name)

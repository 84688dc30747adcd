"""Messages of electronic mail: who wrote what to whom, and when, and then the text.

Formats: RFC 5322 and MIME (`.eml`), and Outlook's (`.msg`, [MS-OXMSG]) by python-oxmsg. A message
with plain text and HTML is read from its HTML, which has lists and tables; files that are attached
are left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from email.errors import MessageError
from typing import BinaryIO

from qa_service.retrieval.documents import BlockList, Document, Parsed, UnreadableError
from qa_service.retrieval.formats import parse
from qa_service.retrieval.formats.bounded import library, read_bytes
from qa_service.retrieval.layout import lay_out

_DISPLAY_CC, _DISPLAY_TO = 0x0E03, 0x0E04
"""Properties of a message: its recipients, as Outlook shows them ([MS-OXPROPS])."""
_ADDRESS = re.compile(r"\s*</O=[^>]*>", re.IGNORECASE)
"""Of a person in a directory of Exchange, whose name stands before it."""
_SHOWN = ("From", "To", "Cc", "Date", "Subject")


def read_eml(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    import email.policy  # noqa: PLC0415, with its parsers, which few collections need

    data = read_bytes(stream, max_bytes)
    try:
        message = email.message_from_bytes(data, policy=email.policy.default)
        heads = {key: str(message.get(key, "")) for key in _SHOWN}
        if not any(heads.values()):
            raise UnreadableError("not a message: it has neither a sender nor a subject")
        body = message.get_body(("html", "plain"))
        text = str(body.get_content()) if body is not None else ""
    except (MessageError, LookupError, ValueError, AttributeError, TypeError) as error:
        raise UnreadableError(f"not a message: {error}") from None
    is_html = body is not None and body.get_content_subtype() == "html"
    yield _laid_out(heads, text, name, is_html=is_html)


def read_msg(stream: BinaryIO, name: str, max_bytes: int) -> Iterator[Document]:
    from email.header import decode_header, make_header  # noqa: PLC0415, as above

    data = read_bytes(stream, max_bytes)
    message_class = library("oxmsg", "python-oxmsg", ".msg").Message
    try:
        message = message_class.load(data)
        text_of = message.properties.str_prop_value
        sent = message.sent_date
        heads = {
            "From": str(make_header(decode_header(message.sender or ""))),
            "To": text_of(_DISPLAY_TO),
            "Cc": text_of(_DISPLAY_CC),
            "Date": f"{sent:%a, %d %b %Y %H:%M}" if sent else "",
            "Subject": message.subject,
        }
        html = message.html_body
        text = html or message.body or ""
    except (OSError, LookupError, ValueError, AttributeError, TypeError, struct.error) as error:
        raise UnreadableError(f"not a message of Outlook: {error}") from None
    shown = {key: _ADDRESS.sub("", value or "").strip(" \0") for key, value in heads.items()}
    yield _laid_out(shown, text, name, is_html=bool(html))


def _laid_out(heads: dict[str, str], text: str, name: str, *, is_html: bool) -> Document:
    out = BlockList()
    out.table([], [(0, [f"{key}: {value}"]) for key, value in heads.items() if value])
    blocks = [*out.blocks, *parse(text, "html" if is_html else "text").blocks]
    return lay_out(Parsed(blocks, heads["Subject"]), name)

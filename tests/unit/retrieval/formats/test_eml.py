"""Messages of electronic mail are read as a person sees them."""

from email.message import EmailMessage

import pytest

from qa_service.retrieval.documents import UnreadableError
from tests.unit.retrieval.formats import outlook_files as outlook
from tests.unit.retrieval.formats.reading import read

SENT = 133_500_000_000_000_000  # 2024-01-17, in 100 ns since 1601


def test_a_message_says_who_wrote_what():
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Größe", "Ann <a@example.org>", "b@x.org"
    message.set_content("plain")
    message.add_alternative("<p>It is <b>12</b>.</p><ul><li>one</ul>", subtype="html")
    message.add_attachment(b"attached", maintype="text", subtype="plain", filename="x.txt")
    document = read("a.eml", message.as_bytes())
    assert document.title == "Größe"
    assert document.text == (
        "From: Ann <a@example.org>\nTo: b@x.org\nSubject: Größe\n\nIt is 12.\n- one"
    )


@pytest.mark.parametrize("data", [b"", b"\0" * 50, b"words", b"Content-Type: text/plain\n\nx"])
def test_what_is_no_message_is_named(data):
    with pytest.raises(UnreadableError, match="not a message"):
        read("a.eml", data)


def test_a_message_in_an_unknown_encoding_is_named():
    with pytest.raises(UnreadableError, match="not a message"):
        read("a.eml", b"Subject: x\nContent-Type: text/plain; charset=no-such\n\n\xff")


def test_a_message_of_outlook_says_who_wrote_what():
    data = outlook.outlook_file(
        {
            outlook.SUBJECT: "Größe",
            outlook.SENDER_NAME: "Ann",
            outlook.SENDER_ADDRESS: "/O=FIRM/CN=RECIPIENTS/CN=ANN",
            outlook.DISPLAY_TO: "Bob; Eve\0",
            outlook.DISPLAY_CC: "Dan",
            outlook.SENT: SENT,
            outlook.BODY: "plain",
            outlook.HTML: b"<p>It is <b>12</b>.</p><ul><li>one</ul>",
        }
    )
    document = read("a.msg", data)
    assert document.title == "Größe"
    assert document.text == (
        'From: "Ann"\nTo: Bob; Eve\nCc: Dan\nDate: Wed, 17 Jan 2024 21:20\nSubject: Größe\n\n'
        "It is 12.\n- one"
    )


def test_a_message_of_outlook_without_html_is_read_from_its_text():
    data = outlook.outlook_file(
        {outlook.SUBJECT: "Tea", outlook.BODY: "At nine.\r\n\r\nBring cups."}
    )
    assert read("a.msg", data).text == "Subject: Tea\n\nAt nine.\n\nBring cups."


@pytest.mark.parametrize(
    "data",
    [b"", b"words", outlook.compound_file({"WordDocument": b"x"}), outlook.outlook_file({})[:900]],
)
def test_what_is_no_message_of_outlook_is_named(data):
    with pytest.raises(UnreadableError, match="not a message of Outlook"):
        read("a.msg", data)

"""What connections of one server share over HTTP: the date, and who may ask where."""

import time

import pytest

from qa_service.errors import HttpError
from qa_service.server.front import protocols as protocols_module
from qa_service.server.front.connection_options import HttpOptions
from qa_service.server.front.protocols import Protocols, http_date, reply_without_tls
from qa_service.wire.codec import Codec
from qa_service.wire.messages import Query

STRANGE = b"GET /v2/health/live HTTP/1.1\r\nHost: anything\r\n\r\n"


def codec(*, is_local: bool) -> Codec:
    protocols = Protocols(1 << 18, HttpOptions(), is_loopback=True)
    codec = protocols.codec_for(STRANGE, wants_token=False, is_local=is_local)
    codec.feed(STRANGE)
    return codec


def test_any_host_name_is_served_on_the_unix_socket():
    assert isinstance(codec(is_local=True).next_message(), Query)


def test_another_host_name_is_refused_on_a_loopback_port():
    with pytest.raises(HttpError, match="is not anything") as caught:
        codec(is_local=False).next_message()
    assert caught.value.status == 421


def test_the_date_is_made_once_a_second(monkeypatch):
    made, times = [], iter([784111777.0, 784111777.9, 784111778.0])

    def formatdate(second, *, usegmt):
        made.append((second, usegmt))
        return f"date {second}"

    monkeypatch.setattr(protocols_module, "formatdate", formatdate)
    monkeypatch.setattr(time, "time", lambda: next(times))
    assert [http_date() for _ in range(3)] == ["date 784111777", "date 784111777", "date 784111778"]
    assert made == [(784111777, True), (784111778, True)]


def test_the_reply_without_tls_has_a_date():
    assert b"\r\nDate: " in reply_without_tls(b"GET / HTTP/1.1\r\n")

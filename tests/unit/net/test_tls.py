"""TLS without sockets: two sessions that hand each other bytes."""

import ssl

import pytest

from qa_service.errors import SetupError
from qa_service.net.tls import RECORD_BYTES, TlsSession, server_context
from tests.certificates import Certificates


class Peer:
    """A session and a client that have shaken hands, or are about to."""

    def __init__(self, certificates, *, piece_bytes=None, **of_context):
        context = server_context(certificates.cert, certificates.key, None)
        self.session = TlsSession(context)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = certificates.client_context()
        for name, value in of_context.items():
            setattr(client, name, value)
        self.client = client.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.piece_bytes = piece_bytes or 1 << 20

    def carry(self, step=lambda: None):
        """Takes the client's bytes to the session, and its output to the client."""
        sent = self.outgoing.read()
        for start in range(0, len(sent), self.piece_bytes):
            self.session.feed(sent[start : start + self.piece_bytes])
            step()
        self.incoming.write(self.session.output())

    def shake_hands(self):
        is_done = False
        steps = []
        while not is_done or not steps or not steps[-1]:
            try:
                self.client.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            self.carry(lambda: steps.append(self.session.shake_hands()))
        return steps


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece_bytes", [None, 1])
def test_data_arrives_unchanged_in_both_directions(certificates, version, piece_bytes):
    peer = Peer(certificates, piece_bytes=piece_bytes, maximum_version=version)
    peer.shake_hands()
    got = bytearray()
    sizes = [1, 100, RECORD_BYTES, RECORD_BYTES + 1]
    for size in sizes if piece_bytes else [*sizes, 200_000]:
        sent = bytes(range(256)) * (size // 256 + 1)
        got.clear()
        while sent:
            sent = sent[peer.client.write(sent) :]
            peer.carry(lambda: got.extend(peer.session.read()))
        peer.session.write(bytes(got))
        peer.incoming.write(peer.session.output())
        back = b""
        while len(back) < len(got):
            back += peer.client.read(1 << 20)
        assert back == bytes(range(256)) * (size // 256 + 1)
    assert not peer.session.has_ended


def test_a_forged_record_is_an_error(certificates):
    peer = Peer(certificates)
    peer.shake_hands()
    peer.client.write(b"the truth")
    record = bytearray(peer.outgoing.read())
    record[-1] ^= 1
    peer.session.feed(bytes(record))
    with pytest.raises(ssl.SSLError):
        peer.session.read()
    peer.incoming.write(peer.session.output())
    with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
        peer.client.read(1)


def test_files_that_cannot_be_used_are_named_in_one_line(certificates, tmp_path):
    other = Certificates(tmp_path)
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    good = (certificates.cert, certificates.key)
    for arguments, words in (
        ((tmp_path / "none.pem", certificates.key, None), "cannot read --tls_cert .*none.pem"),
        ((certificates.cert, tmp_path, None), "cannot read --tls_key"),
        ((junk, certificates.key, None), "not a certificate and its private key"),
        ((certificates.cert, other.key, None), "the key is not that of the certificate"),
        ((*good, junk), "--tls_client_ca .*holds no certificate"),
        ((*good, tmp_path / "none.pem"), "cannot read --tls_client_ca"),
    ):
        with pytest.raises(SetupError, match=words) as caught:
            server_context(*arguments)
        assert "\n" not in str(caught.value)


def test_a_key_with_a_passphrase_does_not_ask_for_it(certificates, tmp_path):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(certificates.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(SetupError, match="has a passphrase"):
        server_context(certificates.cert, locked, None)

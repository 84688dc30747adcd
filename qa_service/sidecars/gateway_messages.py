"""What the server and the gRPC gateway write each other.

server ──"reload" ────▶ gateway    after each reload of the certificates
server ──end-of-file──▶ gateway    the gateway drains and ends
server ◀──"listening"── gateway    from now on it takes calls
server ◀──an error───── gateway    it cannot listen, and ends
"""

LISTENING = b"listening\n"


RELOAD = b"reload\n"

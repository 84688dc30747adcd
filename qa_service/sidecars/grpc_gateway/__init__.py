"""The gRPC gateway: a sidecar process of a QA server, on grpcio's asyncio server.

    gRPC peer ──HTTP/2──▶ gateway ──frames, one connection for each peer and token──▶ Unix socket
                             └─────HTTP, for what is asked about models and health──▶

What is always true: it decides nothing. Who may ask, how much and in which turn, the server says to
the peer's own connection; what a request means, `wire/http/open_inference.py` says, as over HTTP.
It has no state but those connections, so it may be killed at any time.
"""

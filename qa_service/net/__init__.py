"""The event loop, sockets, TLS and timers: bytes and time.

The only user of `selectors` and of listening sockets. It knows nothing of requests; what it calls
back must not block.
"""

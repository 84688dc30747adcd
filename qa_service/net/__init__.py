"""The event loop, sockets, TLS and timers.

The only user of `selectors` and of listening sockets. It knows nothing of requests; its callbacks
must not block.
"""

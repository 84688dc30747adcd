"""What goes over a connection, sans-IO: frames, typed messages, and their JSON.

Bytes from a client are parsed once, here, into frozen structs within stated limits. Nothing here
knows a socket or a clock.
"""

"""The services: what stands between a connection and the workers, one small file each.

Each takes pending requests by `submit` and settles each of them once. None knows a socket, a clock
of its own, or another service than the one that it was given.
"""

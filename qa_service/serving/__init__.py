"""The services: what stands between a connection and the workers, one small file each.

Each takes calls by `submit`, and sees to it that each of them ends. None knows a socket, a clock of
its own, or another service than the one that it was given.
"""

"""The services between a connection and the instances, one small file each.

A service takes calls by `submit`, and ends each of them. It knows no socket, no clock,
and no service but the one that it was given.
"""

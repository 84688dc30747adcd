"""Tools that run a server and put it under load, faults and hostile input.

The tests and the benchmarks both import from here; nothing here imports from either.
"""

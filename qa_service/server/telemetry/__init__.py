"""The server's counters and its health, for people and for programs.

To count is an addition; nothing is computed until someone asks.
"""

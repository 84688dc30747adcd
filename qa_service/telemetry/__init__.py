"""What is counted and how the server is doing, for people and for programs.

To count is an addition; nothing is computed until someone asks.
"""

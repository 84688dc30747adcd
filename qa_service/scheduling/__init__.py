"""Which calls run next, and together. Sans-IO: it is told the time.

The queue is bounded, and the request whose turn is first always goes first.
"""

"""One client each: its connection, its token, its bounds and its timeouts.

A connection turns a codec's messages into calls for one service, and what comes of them
into bytes. It knows no model, queue or worker.
"""

"""A client's connection, with its token, bounds and timeouts.

A connection turns a codec's messages into calls for one service, and their outcomes into bytes. It
knows no model, queue or worker.
"""

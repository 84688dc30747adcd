"""Jobs: questions asked in the background, from a broker's queue or a file.

A client program of the server: nothing else in the package imports this room. A job is
acknowledged only after its answer, or its place in another queue, is confirmed. So a job is
answered at least once, whatever dies, and consumers recognise a second answer by its `message_id`.
Only `brokers.py` and the broker's own file know which broker it is.
"""

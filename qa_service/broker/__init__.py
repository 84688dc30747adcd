"""Jobs: questions that nobody waits for, from a broker's queue or a file.

A client program of the server, never in its loop: nothing else in the package imports this room.
What is always true in it: a job is acknowledged only after its answer, or its place in another
queue, is confirmed; so whatever dies, a job is answered at least once, and consumers tell a
second answer by its `message_id`. Only `rabbitmq.py` knows which broker it is.
"""

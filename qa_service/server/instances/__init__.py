"""The loop's side of the instances: starts them, gives them batches, watches and replaces them.

Nothing here blocks. End-of-file on an instance's channel means its death; the pool then reports the
batches that it held.
"""

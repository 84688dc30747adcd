"""The loop's side of the workers: how they are started, given batches, watched and replaced.

Nothing here waits. End-of-file on a worker's channel means its death; what it held is reported,
never forgotten.
"""

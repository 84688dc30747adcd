"""Which engine runs a model: the candidates, their race, and the table that is kept of it.

Each candidate runs in a separate instance, outside the loop's process: `engine_trial` runs them.
One whose answers differ from the reference's is never chosen.
"""

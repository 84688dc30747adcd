"""What is to be served, and is: plan, models, their versions, and the catalog of all.

A model is brought to its plan step by step, at the end of a round; versions that serve go on until
those that take their place are ready.
"""

"""Measures prepared models: the parts of `evaluate_model.py`.

Questions go through the engines that serve, so what is measured is what is served. Training uses
the same measures.
"""

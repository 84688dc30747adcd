"""Trains the built-in models: questions in, a LoRA adapter out. Not needed to serve."""

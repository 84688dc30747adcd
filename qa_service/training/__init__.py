"""Making the built-in model: questions in, a LoRA adapter out. Not needed to serve."""

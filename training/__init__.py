"""Trains the built-in models: questions in, a LoRA adapter out. Not in the package.

Nothing in `qa_service` imports it. Its measures are those of `qa_service.evaluation`.
"""

"""Turns a question-answering model into a folder that the server can serve.

Needs torch, transformers, peft and onnx; no serving process imports this package.
"""

"""Turns a question-answering model into a folder that the server can serve.

A shipped model needs onnx and safetensors, another one torch, transformers and peft as well; no
serving process imports this package. What cannot be prepared is a `SetupError` that says why.
"""

"""A question-answering server: an event loop, a scheduler, and inference instances in processes."""

__version__ = "0.1.0"

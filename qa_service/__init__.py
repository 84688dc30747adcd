"""Question answering over TCP: an event loop, a scheduler, and inference sessions."""

__version__ = "0.1.0"

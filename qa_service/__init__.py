"""Question answering over TCP: an event loop, a scheduler, and inference sessions."""

"""Sidecar processes, each with one descriptor, and their messages with the loop.

They may die or hang at any time: the loop's side (`server/sidecars.py`) starts them again, and what
they hold can be lost. None of them knows the server. The gRPC gateway is a separate room.
"""

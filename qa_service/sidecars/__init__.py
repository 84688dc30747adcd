"""Programs beside the loop, each a process with one descriptor, and what they and the loop write.

They may die or hang at any time: the loop's side (`server/sidecars/`) starts them again, and what
they hold can be lost. None of them knows the server. The gRPC gateway is a room of its own.
"""

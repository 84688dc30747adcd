"""The loop's side of the sidecar processes: starts, reads and restarts them.

The server runs without any of them, except a gRPC gateway that has never listened.
"""

"""The loop's side of the sidecar processes: each is a `Child`.

The server runs without any of them, except a gRPC gateway that has never listened.
"""

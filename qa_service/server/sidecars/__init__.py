"""The loop's side of the programs beside it: starts them, reads them, starts them again.

The server runs without any of them, except a gRPC gateway that has never listened.
"""

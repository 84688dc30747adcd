"""The programs that the loop starts, each a `Child`: instances, searches, sidecars, preparing.

Nothing here blocks, and nothing here knows what a program is for.
"""

"""Prepared models on disk: what a folder holds, and whether it is whole."""

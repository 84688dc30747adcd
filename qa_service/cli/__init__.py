"""The pieces of `client.py`. Standard library only: it runs where nothing was installed."""

"""The programs, one `*_main` each (flags in, one call, exit code out); the parts of `client.py`.

`client_main` and all that it imports need the standard library only: it runs where nothing was
installed.
"""

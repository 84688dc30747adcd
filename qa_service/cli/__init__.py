"""The programs, one `*_main` each (flags in, one call, exit code out); the parts of `client.py`.

`client_main` and its imports need only the standard library, so it runs where nothing is installed.
"""

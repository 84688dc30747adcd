"""Decides which calls run next, and in which batch. Sans-IO: the caller passes the time."""

"""Property tests find the same examples on every run, however slow the machine."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("repeatable")

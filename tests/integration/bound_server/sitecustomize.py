"""Makes one part of a server the one that bounds it, with an engine that costs next to nothing.

Python imports a module of this name at its start; `tests/integration/test_bounds.py` puts this
folder on a server's `PYTHONPATH`. `QA_TEST_BURN` names the part that takes `BURN_S` of a core for
each question: `loop`, `tokenize` or `read`. The model sleeps as long as `FEED_FIXED_US` says.
"""

import os
import sys
import time

BURN_S = 0.03


def burning(function):
    """The function, after `BURN_S` on a core."""

    def burn(*args):
        until_s = time.thread_time() + BURN_S
        while time.thread_time() < until_s:
            pass
        return function(*args)

    return burn


def burn_in(kind, name):
    """Has a method of a class take its time on a core."""
    setattr(kind, name, burning(getattr(kind, name)))


burned = os.environ.get("QA_TEST_BURN", "")
if "qa_service.instance.worker_main" in sys.orig_argv:
    from sleeping_engine import replace_engine

    from qa_service.instance.reader.reader import Reader
    from qa_service.instance.reader.windows import WindowBuilder

    replace_engine()
    if burned == "tokenize":
        burn_in(WindowBuilder, "encode_batch")
    elif burned == "read":
        burn_in(Reader, "_outcome")
elif burned == "loop" and any(word.endswith("server.py") for word in sys.orig_argv):
    from qa_service.server.instances.base import Worker

    burn_in(Worker, "run")

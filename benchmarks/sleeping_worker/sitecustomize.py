"""Gives a worker an engine that sleeps as long as an accelerator would compute.

Python imports a module of this name at its start. `benchmarks.feed` puts this folder on the
`PYTHONPATH` of a server, whose workers inherit it; in a worker, and nowhere else, it replaces what
makes engines. All else of an instance is real: tokenizer, channel, reader, and the thread that
tokenizes ahead. The product knows nothing of it.
"""

import sys

if "qa_service.instance.worker_main" in sys.orig_argv:
    from sleeping_engine import replace_engine

    replace_engine()

"""server.py with other constants, so that a test need not wait as long as a user may have to.

    python -m harness.with_constants qa_service.server.telemetry.health:READY_TIMEOUT_S=1 -- FLAGS

The process is a server's in all else. Its workers are other processes, with the constants as usual.
"""

from __future__ import annotations

import importlib
import sys

from qa_service.server.main import main

if __name__ == "__main__":
    end = sys.argv.index("--")
    for word in sys.argv[1:end]:
        place, _, value = word.partition("=")
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(module), name), f"there is no {place}"
        setattr(importlib.import_module(module), name, float(value))
    sys.argv = ["server.py", *sys.argv[end + 1 :]]
    sys.exit(main())

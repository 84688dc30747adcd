"""Asks questions that nobody waits for: from a file, or from a broker's queue; see `--help`."""

import sys

from qa_service.broker.program import main

if __name__ == "__main__":
    sys.exit(main())

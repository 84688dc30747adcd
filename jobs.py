"""Asks questions in the background: from a file, or from a broker's queue; see `--help`."""

import sys

from qa_service.entry import jobs

if __name__ == "__main__":
    sys.exit(jobs())

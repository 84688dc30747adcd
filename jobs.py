"""Asks questions in the background: from a file, or from a broker's queue; see `--help`."""

import sys

from qa_service.entry import jobs as main

if __name__ == "__main__":
    sys.exit(main())

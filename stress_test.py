"""Puts a QA server under load from many clients and measures how it answers; see `--help`."""

import sys

from qa_service.entry import stress_test as main

if __name__ == "__main__":
    sys.exit(main())

"""Asks a QA server: one question from the command line, or a conversation; see `--help`."""

import sys

from qa_service.entry import client as main

if __name__ == "__main__":
    sys.exit(main())

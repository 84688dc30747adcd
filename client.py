"""Asks a QA server: one question from the command line, or a conversation; see `--help`."""

import sys

from qa_service.programs.client_main import main

if __name__ == "__main__":
    sys.exit(main())

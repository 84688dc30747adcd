"""Prepares a question-answering model for the server; `--help` lists the flags."""

import sys

from qa_service.entry import prepare_model as main

if __name__ == "__main__":
    sys.exit(main())

"""Prepares a question-answering model for the server; `--help` lists the flags."""

import sys

from qa_service.cli.prepare_model_main import main

if __name__ == "__main__":
    sys.exit(main())

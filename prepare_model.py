"""Prepares a question-answering model for the server; `--help` lists the flags."""

import sys

from qa_service.programs.missing import advice

try:
    from qa_service.preparation.main import main
except ModuleNotFoundError as error:
    sys.exit(advice(error))

if __name__ == "__main__":
    sys.exit(main())

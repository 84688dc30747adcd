"""Prepares a question-answering model for the server; `--help` lists the flags."""

import sys

from qa_service.entry import prepare_model as main
from qa_service.programs.missing import advice

if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        sys.exit(advice(error))

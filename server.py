"""Serves a prepared question-answering model over TCP; `--help` lists the flags."""

import sys

from qa_service.programs.missing import advice

try:
    from qa_service.server.main import main
except ModuleNotFoundError as error:
    sys.exit(advice(error))

if __name__ == "__main__":
    sys.exit(main())

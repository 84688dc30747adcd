"""Puts a QA server under load from many clients and measures how it answers; see `--help`."""

import sys

from qa_service.programs.missing import advice

try:
    from qa_service.programs.load.main import main
except ModuleNotFoundError as error:
    sys.exit(advice(error))

if __name__ == "__main__":
    sys.exit(main())

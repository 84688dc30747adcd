"""Asks questions in the background: from a file, or from a broker's queue; see `--help`."""

import sys

from qa_service.programs.missing import advice

try:
    from qa_service.programs.jobs.program import main
except ModuleNotFoundError as error:
    sys.exit(advice(error))

if __name__ == "__main__":
    sys.exit(main())

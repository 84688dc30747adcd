"""Asks questions in the background: from a file, or from a broker's queue; see `--help`."""

import sys

from qa_service.entry import jobs as main
from qa_service.programs.missing import advice

if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        sys.exit(advice(error))

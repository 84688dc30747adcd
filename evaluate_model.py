"""Measures prepared models, side by side, through the engines that serve; see `--help`."""

import sys

from qa_service.programs.missing import advice

try:
    from qa_service.evaluation.main import main
except ModuleNotFoundError as error:
    sys.exit(advice(error))

if __name__ == "__main__":
    sys.exit(main())

"""Measures prepared models, side by side, through the engines that serve; see `--help`."""

import sys

from qa_service.entry import evaluate_model as main

if __name__ == "__main__":
    sys.exit(main())

"""Serves a prepared question-answering model over TCP; `--help` lists the flags."""

import sys

from qa_service.entry import server as main

if __name__ == "__main__":
    sys.exit(main())

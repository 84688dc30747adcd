"""SQuAD files, the questions that ship with the project, and a small collection's documents."""

from pathlib import Path

HANDBOOK_DIR = Path(__file__).parent / "handbook"
"""Three documents of a firm, to try a collection with: `qa-server --demo`."""

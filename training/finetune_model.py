"""Trains the models of the project: SQuAD files in, an adapter and its metrics out."""

import sys
from pathlib import Path

if not __package__:  # run as a script, whose folder is on the path in place of the clone's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from qa_service.child_program import turn_off_telemetry
from qa_service.entry import run


def main() -> int:
    turn_off_telemetry()
    return run("training.finetune_model_main", "cpu,models")


if __name__ == "__main__":
    sys.exit(main())

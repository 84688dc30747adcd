"""qa-prepare-model as the server starts it, or as it starts itself for the encoder.

python -m qa_service.preparation.child_main FD PARENT FLAG…

What it says goes to the descriptor, or with - to the standard streams.
"""

from __future__ import annotations

import os
import sys

from qa_service.child_program import end_with_parent

STANDARD = "-"


def main() -> int:
    descriptor, parent, *flags = sys.argv[1:]
    end_with_parent(int(parent))
    if descriptor != STANDARD:
        for number in (1, 2):
            os.dup2(int(descriptor), number)
        os.close(int(descriptor))
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.argv[0] = "qa-prepare-model"
    from qa_service.preparation.main import main as prepare  # noqa: PLC0415 - its imports take long

    return prepare(flags)


if __name__ == "__main__":
    sys.exit(main())

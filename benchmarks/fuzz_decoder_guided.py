"""Fuzzes the decoder guided by coverage, from the golden frames on, with atheris (libFuzzer).

    pip install atheris
    python -m benchmarks.fuzz_decoder_guided -runs=1000000 -seed=1 -max_len=512

Further flags are libFuzzer's. It writes the input it stopped at, if any, to the current folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["qa_service", "harness"]):
    from harness.decoder import check_stream
    from harness.frames import frame
    from harness.mutate import BODIES


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="qa_corpus_") as corpus:
        for number, body in enumerate(dict.fromkeys(BODIES)):
            Path(corpus, f"golden_{number}").write_bytes(frame(body))
        atheris.Setup([*sys.argv, corpus], check_stream)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

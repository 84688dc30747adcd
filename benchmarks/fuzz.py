"""Feeds broken input to the decoder or to a live server, and fails if it is not survived.

    python -m benchmarks.fuzz decoder --count 1000000
    python -m benchmarks.fuzz server --count 100000     # frames, while honest clients ask
    python -m benchmarks.fuzz http --count 100000
    pip install atheris && python -m benchmarks.fuzz guided -runs=1000000 -seed=1 -max_len=512

`guided` starts from the golden frames and follows coverage; its further flags are libFuzzer's, and
it writes the input it stopped at, if any, to the current folder.

Exit code 0 if each input had the reply that is due, and a live server's memory and descriptors are
what they were; 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from harness import decoder
from harness.frames import frame
from harness.live_fuzz import fuzz_server, fuzz_server_http
from harness.mutate import BODIES
from harness.server import EXACT_ENGINE, running_server
from qa_service.server.models.model_options import DEFAULT_MODEL

FRAMES_PER_S = 2000
OURS = ("harness", "qa_service")
HTTP_FLAGS = ("--inference_engine_type", "instant", "--max_frame_bytes", "100000",
              "--client_timeout_ms", "50", "--idle_timeout_ms", "3000")  # fmt: skip


def fuzz_decoder(flags: argparse.Namespace) -> bool:
    started_s = time.perf_counter()
    num_valid = decoder.fuzz(flags.count, flags.seed)
    print(
        f"{flags.count} frames in {time.perf_counter() - started_s:.1f} s, "
        f"{num_valid} of them still requests; no other outcome than a request or an error"
    )
    return True


def fuzz_guided(libfuzzer_flags: list[str]) -> None:
    import atheris  # noqa: PLC0415 - of no extra

    # What has been imported is not instrumented: it is imported once more.
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]
    with atheris.instrument_imports(include=list(OURS)):
        from harness.decoder import check_stream  # noqa: PLC0415
    with tempfile.TemporaryDirectory(prefix="qa_corpus_") as corpus:
        for number, body in enumerate(dict.fromkeys(BODIES)):
            Path(corpus, f"golden_{number}").write_bytes(frame(body))
        atheris.Setup([sys.argv[0], *libfuzzer_flags, corpus], check_stream)
        atheris.Fuzz()


def fuzz_frames(flags: argparse.Namespace) -> bool:
    with running_server(flags.model, *EXACT_ENGINE) as server:
        report = asyncio.run(fuzz_server(server, flags.count, FRAMES_PER_S, flags.seed))
    print(report)
    return report.is_survived


def fuzz_http(flags: argparse.Namespace) -> bool:
    with running_server(flags.model, *HTTP_FLAGS) as server:
        report, growth = asyncio.run(fuzz_server_http(server, flags.count, flags.seed))
    print(f"{report}\n{growth}")
    return not report.num_silent and growth.is_small


FUZZERS = {"decoder": (fuzz_decoder, 1_000_000), "server": (fuzz_frames, 100_000),
           "http": (fuzz_http, 100_000)}  # fmt: skip
"""What each target is fuzzed by, and how often."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=(*FUZZERS, "guided"), help="what is fuzzed")
    parser.add_argument("--count", type=int, help="how many frames or requests")
    parser.add_argument("--seed", type=int, default=1, help="what they depend on")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a prepared model")
    flags, libfuzzer_flags = parser.parse_known_args()
    if flags.target == "guided":
        fuzz_guided(libfuzzer_flags)
        return 0
    if libfuzzer_flags:
        parser.error(f"unknown: {' '.join(libfuzzer_flags)}")
    fuzz, count = FUZZERS[flags.target]
    flags.count = flags.count or count
    return 0 if fuzz(flags) else 1


if __name__ == "__main__":
    sys.exit(main())

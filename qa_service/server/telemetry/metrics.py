"""Counters and histograms, kept by the loop and read by a `stats` request.

To count is an addition; to observe is a bisection and two. Nothing is computed, sorted or allocated
until someone asks. Names follow Prometheus (`_total` never decreases), units are in them (`_ms`),
and `docs/PROTOCOL.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qa_service.instance.stages import StagesMs
from qa_service.wire.histogram import Histogram, log_spaced

ANSWERED = "answered"
ABANDONED = "abandoned"
PASSED, FAILED = "passed", "failed"
EXPORTED, DROPPED = "exported", "dropped"
STAGES = ("tokenize", "model", "read")


DURATION_BOUNDS_MS = log_spaced(0.01, 100_000, per_decade=10)
"""From a hundredth of a millisecond to a hundred seconds; neighbours are 26 % apart."""

BATCH_SIZE_BOUNDS = (*map(float, range(1, 17)), *map(float, (20, 25, 32, 40, 50, 64, 128, 256)))
"""Every size up to 16, then coarser."""


class ModelMetrics:
    """The counts of one version of a model; the attributes are the metrics' names.

    Args:
        error_codes: The outcomes a request can have, besides being answered or abandoned.
    """

    def __init__(self, error_codes: Iterable[str]) -> None:
        self.model_requests_total = dict.fromkeys((ANSWERED, *error_codes, ABANDONED), 0)
        self.request_retries_total = 0
        self.batches_total = 0
        self.session_restarts_total = 0
        self.self_tests_total = {PASSED: 0, FAILED: 0}
        self.cache_hits_total = 0
        self.cache_joined_total = 0
        self.cache_misses_total = 0
        self.cache_evictions_total = 0
        self.queue_ms = Histogram(DURATION_BOUNDS_MS)
        self.request_ms = Histogram(DURATION_BOUNDS_MS)
        self.batch_size = Histogram(BATCH_SIZE_BOUNDS, step=1.0)
        self.inference_ms = Histogram(DURATION_BOUNDS_MS)
        self.inference_tokenize_ms = Histogram(DURATION_BOUNDS_MS)
        self.inference_model_ms = Histogram(DURATION_BOUNDS_MS)
        self.inference_read_ms = Histogram(DURATION_BOUNDS_MS)
        self.member_ms = dict.fromkeys(STAGES, 0.0)
        """By stage, added once for each request in the batch, as in Triton."""

    def count_batch(self, size: int, inference_ms: float, stages_ms: StagesMs) -> None:
        """Counts a batch that an instance has answered, and its time by stage."""
        self.batches_total += 1
        self.batch_size.observe(size)
        self.inference_ms.observe(inference_ms)
        self.inference_tokenize_ms.observe(stages_ms.tokenize)
        self.inference_model_ms.observe(stages_ms.model)
        self.inference_read_ms.observe(stages_ms.read)
        for stage in STAGES:
            self.member_ms[stage] += size * getattr(stages_ms, stage)

    def merge(self, other: ModelMetrics) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, int):
                setattr(self, name, mine + value)
            elif isinstance(value, dict):
                for key, count in value.items():
                    mine[key] = mine.get(key, 0) + count
            else:
                mine.merge(value)


class Metrics:
    """The counts of the whole server, and of each version that it serves.

    The sums include versions that are no longer served.

    Args:
        error_codes: The outcomes a request can have, besides being answered or abandoned.
    """

    def __init__(self, error_codes: Iterable[str], queries: Iterable[str]) -> None:
        self._error_codes = tuple(error_codes)
        self._versions: dict[tuple[str, int], ModelMetrics] = {}
        self._past = ModelMetrics(self._error_codes)
        self.requests_total = dict.fromkeys((ANSWERED, *self._error_codes, ABANDONED), 0)
        self.queries_total = dict.fromkeys(queries, 0)
        self.trace_spans_total = {EXPORTED: 0, DROPPED: 0}
        self.connections_accepted_total = 0
        self.connections_evicted_total = 0

    def for_version(self, model: str, version: int) -> ModelMetrics:
        """The counters of a version, which continue when it is loaded again."""
        return self._versions.setdefault((model, version), ModelMetrics(self._error_codes))

    def end_version(self, model: str, version: int) -> None:
        """Keeps a version's counts only in the sums."""
        self._past.merge(self._versions.pop((model, version)))

    @property
    def num_wrong(self) -> int:
        """How many self-tests have failed, of all versions."""
        counted = (self._past, *self._versions.values())
        return sum(one.self_tests_total[FAILED] for one in counted)

    def totals(self) -> dict[str, int | dict[str, int] | Histogram]:
        """Every counter and histogram by name, summed over all versions."""
        models = ModelMetrics(self._error_codes)
        for counted in (self._past, *self._versions.values()):
            models.merge(counted)
        found = {**vars(self), **vars(models)}
        del found["model_requests_total"], found["member_ms"]
        public = {name: value for name, value in found.items() if name[0] != "_"}
        return {k: v for k, v in public.items() if isinstance(v, int | dict | Histogram)}

    def report(self, gauges: Mapping[str, float]) -> dict[str, object]:
        values = self.totals()
        return {
            "counters": {k: v for k, v in values.items() if isinstance(v, int | dict)},
            "gauges": dict(gauges),
            "histograms": {k: v.report() for k, v in values.items() if isinstance(v, Histogram)},
        }

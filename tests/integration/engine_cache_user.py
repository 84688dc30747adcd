"""A process of its own that waits for its turn at an engine cache; it imports little."""

from __future__ import annotations

from multiprocessing.queues import Queue
from pathlib import Path

from qa_service.instance.engines import EngineConfig, onnx_gpu
from qa_service.instance.engines.buckets import BucketGrid
from qa_service.instance.model_folder.manifest import Manifest


def take_turn(cache_dir: Path, manifest: Manifest, config: EngineConfig, turns: Queue) -> None:
    """Says when it enters the cache and when it leaves it."""
    grid = BucketGrid.of(manifest, config)
    turns.put(("waits", ""))
    with onnx_gpu.engine_cache(cache_dir, config, grid) as cache:
        turns.put(("enters", cache.name))
        turns.put(("leaves", cache.name))

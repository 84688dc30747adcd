"""Documents read without a process of their own, where that process is not what is tested."""

import os

import pytest

from qa_service.retrieval import build, extract_main
from qa_service.retrieval.documents import ReadFile


class ExtractorHere:
    """An `Extractor` without a process of its own, whose start takes longer than a small index."""

    def __init__(self, limits):
        self._limits = limits

    def read(self, file, passage_tokens):
        order = ReadFile(os.fsencode(file.path), file.name, self._limits, passage_tokens)
        yield from extract_main._messages(order)

    def close(self):
        """Nothing runs."""


@pytest.fixture
def reads_here(monkeypatch):
    monkeypatch.setattr(extract_main, "_limit", lambda *_: None)  # it would be the tests' own
    monkeypatch.setattr(build, "Extractor", ExtractorHere)

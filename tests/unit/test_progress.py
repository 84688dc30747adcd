"""The progress of a job whose output no terminal reads."""

import io
import sys

from qa_service import progress


def test_progress_in_a_log_is_written_in_lines(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    with progress.progress_bar(total=4, unit="question", miniters=1) as bar:
        bar.update(2)
        bar.update(1)
    assert "\r" not in log.getvalue()
    shown = [line for line in log.getvalue().splitlines() if "2/4" in line]
    assert len(shown) == 1
    assert shown[0].startswith(" 50%|") or shown[0].startswith("50%|")


def test_a_short_job_writes_nothing_into_a_log(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress.progress_bar(total=4) as bar:
        bar.update(4)
    assert log.getvalue() == ""

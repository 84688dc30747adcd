import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from qa_service.errors import SetupError
from qa_service.instance.model_folder.costs_dir import FIRST_KEPT, SeenLengths
from qa_service.preparation.folder import link_files, locked, replacing, say


def _never() -> None:
    raise AssertionError("nobody else holds the lock")


def _content(target: Path) -> str:
    return (target / "file").read_text()


def _write(folder: Path, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text(content)


def _names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "tiny"


def test_folder_appears_only_when_it_is_whole(target):
    with locked(target, _never), replacing(target) as new:
        _write(new, "whole")
        assert not target.exists()
    assert _content(target) == "whole"
    assert _names(target) == [".tiny.lock", "tiny"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SetupError])
def test_failure_leaves_the_old_folder(target, error):
    _write(target, "old")
    with pytest.raises(error), locked(target, _never), replacing(target) as new:
        _write(new, "half")
        raise error
    assert _content(target) == "old"
    assert _names(target) == [".tiny.lock", "tiny"]


def test_old_folder_is_replaced_whole(target):
    _write(target, "old")
    (target / "another").touch()
    with locked(target, _never), replacing(target) as new:
        _write(new, "new")
        assert _content(target) == "old"
    assert _content(target) == "new"
    assert not (target / "another").exists()


def test_leftovers_of_dead_runs_are_removed(target):
    _write(target, "whole")
    _write(target.parent / ".tiny.new", "half")
    _write(target.parent / ".tiny.old", "older")
    _write(target.parent / ".other.new", "another model's")
    with locked(target, _never):
        assert _names(target) == [".other.new", ".tiny.lock", "tiny"]
    assert _content(target) == "whole"


def test_run_that_died_between_its_two_renames_loses_nothing(target):
    _write(target.parent / ".tiny.old", "old")
    _write(target.parent / ".tiny.new", "new")
    with locked(target, _never):
        assert _content(target) == "old"


def test_second_run_waits_for_the_first(target):
    waiting = threading.Event()
    seen: list[str] = []

    def second() -> None:
        with locked(target, waiting.set):
            seen.append(_content(target))

    thread = threading.Thread(target=second)
    with locked(target, _never), replacing(target) as new:
        thread.start()
        assert waiting.wait(timeout=10)
        _write(new, "first")
    thread.join(timeout=10)
    assert seen == ["first"]


def test_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    unwritable = locked(tmp_path / "file" / "t", _never)
    with pytest.raises(SetupError, match="cannot write in"), unwritable:
        pass


@pytest.mark.parametrize("is_linked", [False, True])
def test_the_lengths_that_were_asked_are_kept(target, is_linked):
    _write(target, "old")
    SeenLengths(target).add({64: FIRST_KEPT})
    with locked(target, _never), replacing(target) as new:
        if is_linked:
            link_files(target, new, besides="file")
        _write(new, "new")
    assert SeenLengths(target).most_seen(1) == [64]
    assert _content(target) == "new"


def test_a_line_is_one_write_as_another_process_writes_too(monkeypatch):
    written: list[str] = []
    stdout = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr("sys.stdout", stdout)
    say("one line")
    assert "".join(written) == "one line\n"
    assert len([part for part in written if part]) == 1

"""A folder for temporary files, and what processes that were killed have left."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from qa_service.locked_folder import NEW_S, SUFFIX, LockedFolder

PREFIX = "qa-test-"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_abandoned_folder_is_removed_and_one_in_use_is_kept(temporary):
    used = LockedFolder(PREFIX)
    (used.path / "file").touch()
    left, being_made, old = (Path(tempfile.mkdtemp(SUFFIX, PREFIX)) for _ in range(3))
    (left / "file").touch()
    os.utime(old, (time.time() - 2 * NEW_S,) * 2)
    other = temporary / f"{PREFIX}of-another-program{SUFFIX}"
    other.touch()
    (temporary / f"{PREFIX}link{SUFFIX}").symlink_to(being_made)
    latest = LockedFolder(PREFIX)
    assert (used.path / "file").exists()
    assert not left.exists()
    assert not old.exists()
    assert being_made.exists()
    assert other.exists()
    for folder in (used, latest):
        folder.close()
        assert not folder.path.exists()


def test_folders_of_other_places_and_names_are_kept(temporary):
    here, elsewhere = temporary / "here", temporary / "elsewhere"
    kept = here / "another", here / f"{PREFIX}handbook", elsewhere / f"{PREFIX}1{SUFFIX}"
    for folder in kept:
        folder.mkdir(parents=True)
        (folder / "file").touch()
    made = LockedFolder(PREFIX, here)
    assert made.path.parent == here
    made.close()
    assert all(folder.exists() for folder in kept)

"""The file of a hooks' module, found without running it."""

import importlib
import os
import sys

import pytest

from qa_service.errors import SetupError
from qa_service.instance.hooks import load_hooks
from qa_service.instance.hooks_file import fingerprint_of_hooks

SOURCE = "from qa_service.instance.hooks import Hooks\nclass C(Hooks): number = {}\n"
LOUD = "raise AssertionError('it was imported')\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "later"))
    return tmp_path


def write(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


@pytest.mark.parametrize("place", ["later/its_hooks.py", "its_hooks/__init__.py", "its_hooks.py"])
def test_the_file_is_the_one_that_is_imported_and_its_fingerprint_follows_it(folder, place):
    write(folder / "later" / "its_hooks.py", LOUD)
    write(folder / place, LOUD)
    first = fingerprint_of_hooks("its_hooks:C")
    write(folder / place, LOUD.replace("was", "is"))
    assert first
    assert fingerprint_of_hooks("its_hooks:C") not in {"", first}


@pytest.mark.parametrize("has_init", [False, True])
def test_a_module_in_a_package_is_found_without_importing_the_package(folder, has_init):
    write(folder / "a" / "b" / "its_hooks.py", LOUD)
    if has_init:
        write(folder / "a" / "__init__.py", LOUD)
        write(folder / "a" / "b" / "__init__.py", LOUD)
    assert fingerprint_of_hooks("a.b.its_hooks:C")


@pytest.mark.parametrize("name", ["nowhere:C", "nowhere.b:C", "its_hooks.c:C", "sys:C", "its\0:C"])
def test_a_module_without_a_file_has_no_fingerprint(folder, name):
    write(folder / "its_hooks.py", LOUD)
    assert fingerprint_of_hooks(name) == ""


def test_what_is_no_file_is_not_waited_for(folder):
    os.mkfifo(folder / "its_hooks.py")
    assert fingerprint_of_hooks("its_hooks:C") == ""


def test_an_instance_runs_the_code_that_is_expected_and_no_other(folder):
    """Also where Python has kept compiled code of a file of this second and this size."""
    name = f"changing_{folder.name}:C"
    path = folder / f"changing_{folder.name}.py"
    write(path, SOURCE.format(1))
    stat = path.stat()
    expected = fingerprint_of_hooks(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        importlib.import_module(path.stem)  # which keeps what it compiles
        patch.delitem(sys.modules, path.stem)
        write(path, SOURCE.format(2))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        with pytest.raises(SetupError, match=rf"{path} has changed since .* a reload \(SIGHUP\)"):
            load_hooks(name, expected)
        patch.delitem(sys.modules, path.stem)
        loaded = load_hooks(name, fingerprint_of_hooks(name))
        assert vars(type(loaded.hooks))["number"] == 2
        patch.delitem(sys.modules, path.stem)

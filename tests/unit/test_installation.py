"""What a program says when packages are missing."""

from importlib import metadata

import pytest

from qa_service.installation import install_hint, say_missing


def test_the_hint_in_a_clone_has_the_constraints(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert install_hint("ray", tmp_path) == "pip install -c constraints.txt '.[ray]'"


def test_the_hint_outside_a_clone_names_the_wheel(tmp_path):
    assert install_hint("ray", tmp_path).endswith("-py3-none-any.whl[ray]'")


@pytest.mark.parametrize(
    ("missing", "said"),
    [({"a-b", "c"}, "a-b, c are missing: pip "), ({"c"}, "c is missing: "), ((), "ab is missing")],
)
def test_all_packages_that_are_missing_are_named(monkeypatch, missing, said):
    def version(name: str) -> str:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    error = ModuleNotFoundError("no ab", name="ab")
    assert say_missing(error, "jobs", ("a-b", "c")).startswith(said)

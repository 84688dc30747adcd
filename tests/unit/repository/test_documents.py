"""The documents: the programs of their commands know their flags, their tables are the types'."""

import argparse
import importlib
import re
import sys

import pytest

from harness.documents import PAGES, check_output, shown_commands
from harness.field_tables import TYPES, with_tables
from harness.server import ROOT
from qa_service.options import options_of
from qa_service.server.config import ServerConfig

INSTALLED = {
    "qa-server": "qa_service.server.main",
    "qa-client": "qa_service.programs.client_main",
    "qa-index": "qa_service.retrieval.index_main",
    "qa-grpc-gateway": "qa_service.sidecars.grpc_gateway.program",
    "qa-stress-test": "qa_service.programs.load.main",
    "qa-jobs": "qa_service.programs.jobs.program",
    "qa-prepare-model": "qa_service.preparation.main",
}
COMMANDS = [(page, words) for page in PAGES for words in shown_commands(page)]


class ParsedError(Exception):
    """Raised when a program has understood its flags, so that it does nothing."""


@pytest.fixture
def parse(monkeypatch):
    """Has a program read these words; returns those that it hands on to a server of its own."""
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self, args=None, namespace=None):
        raise ParsedError(original(self, args, namespace)[1])

    def run(module, words):
        monkeypatch.setattr(sys, "argv", ["program", *words])
        monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
        with pytest.raises(ParsedError) as caught:
            module.main()
        return caught.value.args[0]

    return run


def program_of(words):
    """The module of a command's program, and the words behind it; None if it is not ours."""
    if words[0] in INSTALLED:
        return INSTALLED[words[0]], words[1:]
    if not words[0].endswith("python") or len(words) == 1:
        return None
    if words[1] == "-m":
        is_ours = words[2].startswith(("benchmarks.", "qa_service.")) and "NAME" not in words[2]
        return (words[2], words[3:]) if is_ours else None
    return (words[1].removesuffix(".py"), words[2:]) if words[1].endswith(".py") else None


def test_commands_are_found_in_the_pages():
    ours = [words for _, words in COMMANDS if program_of(words)]
    assert len(ours) > 60
    assert {"server", "client", "stress_test", "jobs"} <= {program_of(words)[0] for words in ours}


@pytest.mark.parametrize(
    ("page", "words"),
    COMMANDS,
    ids=[f"{page.stem}: {' '.join(words)[:70]}" for page, words in COMMANDS],
)
def test_programs_accept_the_flags_in_the_pages(page, words, parse):
    if (found := program_of(words)) is None:
        assert words[0] in {"curl", "python", "python3", ".venv/bin/python"}, page
        return
    name, flags = found
    path = ROOT.joinpath(*name.split("."))
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    if set(flags) - {"--help", "--version"} and any(flag.startswith("--") for flag in flags):
        handed_on = parse(importlib.import_module(name), flags)
        known = {f"--{option.name}" for option in options_of(ServerConfig)}
        assert {flag for flag in handed_on if flag.startswith("--")} <= known


def test_no_page_and_no_hint_installs_by_the_name_of_a_package_that_is_not_published():
    texts = [*PAGES, *(ROOT / "qa_service").rglob("*.py")]
    assert not [path for path in texts if "qa-server[" in path.read_text()]


def test_the_tables_of_fields_match_the_types():
    """If not: `python -m harness.field_tables`."""
    pages = {page: page.read_text() for page in PAGES}
    assert {page: with_tables(text) for page, text in pages.items()} == pages
    assert all(f"<!-- fields of {name} -->" in "".join(pages.values()) for name in TYPES)


def anchors_of(page):
    """Where a link may lead within a page, as GitHub names its headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings} | {""}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_have_targets(page):
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        to = page.parent / path if path else page
        assert to.exists(), path
        assert to.suffix != ".md" or anchor in anchors_of(to), (path, anchor)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ('{"a": 1, "b": {"c": "x"}}', '{"a": 2.5, "b": {"c": "y"}}'),
        ('{"a": 1, …}', '{"a": 1, "b": 2}'),
        ('[{"a": null}, …]', '[{"a": null}, {"a": null}]'),
        ("HTTP/1.1 200 OK\nA: 12\nB: c\n\n{}", "HTTP/1.1 200 OK\r\nB: c\r\nA: 3\r\n\r\n{}"),
        ("score 0.98, 12 ms", "score 1, 3.5 ms\n"),
    ],
)
def test_an_output_like_the_pages_is_accepted(shown, printed):
    check_output(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1}', '{"a": 1, "b": 2}'),
        ('{"a": 1, …}', '{"b": 2}'),
        ('[{"a": 1}]', '[{"a": 1}, {"b": 1}]'),
        ("[1]", "[]"),
        ("HTTP/1.1 200 OK\nA: b\n\n{}", "HTTP/1.1 404 Not Found\nA: b\n\n{}"),
        ("HTTP/1.1 200 OK\nA: b\n\n{}", "HTTP/1.1 200 OK\nA: b\nC: d\n\n{}"),
        ("score 0.98", "Score 0.98"),
    ],
)
def test_an_output_unlike_the_pages_is_refused(shown, printed):
    with pytest.raises(AssertionError):
        check_output(shown, printed)

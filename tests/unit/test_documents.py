"""The commands that the documents show: their programs are there and know their flags."""

from __future__ import annotations

import argparse
import importlib
import sys

import pytest

from harness.documents import PAGES, ROOT, shown_commands
from qa_service.config import ServerConfig
from qa_service.options import options_of

INSTALLED = {
    "qa-server": "qa_service.cli.server_main",
    "qa-client": "qa_service.cli.client_main",
    "qa-stress-test": "qa_service.cli.stress_test_main",
    "qa-jobs": "qa_service.broker.program",
    "qa-prepare-model": "qa_service.cli.prepare_model_main",
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


def test_there_are_commands_to_be_checked():
    ours = [words for _, words in COMMANDS if program_of(words)]
    assert len(ours) > 60
    assert {"server", "client", "stress_test", "jobs"} <= {program_of(words)[0] for words in ours}


@pytest.mark.parametrize(
    ("page", "words"),
    COMMANDS,
    ids=[f"{page.stem}: {' '.join(words)[:70]}" for page, words in COMMANDS],
)
def test_a_program_knows_the_flags_that_it_is_shown_with(page, words, parse):
    if (found := program_of(words)) is None:
        assert words[0] in {"curl", "python", "python3", ".venv/bin/python"}, page
        return
    name, flags = found
    path = ROOT.joinpath(*name.split("."))
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    if set(flags) - {"--help"} and any(flag.startswith("--") for flag in flags):
        handed_on = parse(importlib.import_module(name), flags)
        known = {f"--{option.name}" for option in options_of(ServerConfig)}
        assert {flag for flag in handed_on if flag.startswith("--")} <= known

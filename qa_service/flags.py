"""Shared by the flags of all programs: the form of the help, and types with bounds."""

from __future__ import annotations

import argparse
import enum
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from qa_service.client import split_hosts
from qa_service.command_line import Parser
from qa_service.installation import install_hint

_T = TypeVar("_T")


class ExitCode(enum.IntEnum):
    """The exit codes of a question, of `--health` and of `--stats`."""

    YES = 0
    """An answer; a server that is ready."""
    NO = 1
    """Unknown; a server that is not ready."""
    ERROR = 2


INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended, as in shells."""


PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults except None, False and [], and the docstring as it is written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, []) or action.default is False:
            return action.help
        return super()._get_help_string(action)


def make_parser(docstring: str | None) -> Parser:
    """A parser whose help begins with the docstring's first line and ends with the others."""
    description, _, notes = (docstring or "").partition("\n\n")
    return Parser(description=description, epilog=notes, formatter_class=_HelpFormatter)


def hosts(value: str) -> str:
    """Servers' names or addresses, each with or without a port, with commas between them."""
    try:
        split_hosts(value, 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return value


def port(value: str) -> int:
    """A TCP port that can be connected to."""
    if not 0 < int(value) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value} is not in 1 to 65535")
    return int(value)


def count(value: str) -> int:
    """An integer of at least 1."""
    if int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return int(value)


def seconds(value: str) -> float:
    """A finite time above zero."""
    if not 0 < float(value) < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not a time above 0")
    return float(value)


def rate(value: str) -> float:
    """A finite number above zero of something per second."""
    if not 0 < float(value) < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not a rate above 0")
    return float(value)


def list_of(kind: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """A flag's type: values of one kind with commas between them, as in `1,5,20`."""

    def parse(value: str) -> list[_T]:
        return [kind(word) for word in value.split(",")]

    parse.__name__ = f"comma-separated {kind.__name__}"
    return parse


class PlotError(Exception):
    """No plot can be made."""


def check_plot(path: Path) -> None:
    """Checks, before anything is measured, that a plot can be drawn.

    Raises:
        PlotError: It cannot.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError(f"--plot needs matplotlib: {install_hint('bench')}")
    if path.suffix not in PLOT_SUFFIXES:
        raise PlotError(f"--plot writes {', '.join(PLOT_SUFFIXES)}, not {path.name}")
    if not path.parent.is_dir():
        raise PlotError(f"there is no folder {path.parent}")

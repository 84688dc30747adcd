"""The command line of every program: how flags are read, their types with bounds, the help.

    QA_PORT=9000 ─┐
                  ├──▶ flags with their real names ──▶ argparse ──▶ values
    --port 9001 ──┘    (the last of a name wins)

A flag may be written with hyphens or underscores, and its value may come from the environment: the
variable of `--max_body_bytes` is `QA_MAX_BODY_BYTES`; one that is empty counts as unset. Standard
library only: `client.py` needs no more.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from qa_service import __version__
from qa_service.errors import hide_password

PREFIX = "QA_"
"""Begins the name of a flag's environment variable."""

_READ_ELSEWHERE = ("QA_BROKER_URL",)
"""What a program reads by itself: a message about it names the variable, and not a password."""

SHELLS = ("bash", "zsh", "tcsh")

_SERVICE_LINK = "tcp://"
"""Begins what Kubernetes puts into `QA_PORT` where a service is named `qa`."""

_T = TypeVar("_T")
_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class ExitCode(enum.IntEnum):
    """The exit codes of a question, of `--health` and of `--stats`."""

    YES = 0
    """An answer; a server that is ready."""
    NO = 1
    """Unknown; a server that is not ready."""
    ERROR = 2


INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended, as in shells."""


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


class Parser(argparse.ArgumentParser):
    """argparse's, with `--version`, `--print_completion`, hyphens, hints and the environment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - argparse's
        super().__init__(*args, **kwargs)
        self._words: list[str] = []
        version = f"%(prog)s {__version__}"
        self.add_argument("--version", action="version", version=version)
        self.add_argument(
            "--print_completion",
            action=_PrintCompletion,
            choices=SHELLS,
            default=argparse.SUPPRESS,
            help="print the completion of this program's flags for a shell, and exit",
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = self._words = list(sys.argv[1:] if args is None else args)
        real = {_plain(flag): flag for flag in self._option_string_actions}
        end = words.index("--") if "--" in words else len(words)
        flags = list(self._from_environment())
        for word in words[:end]:
            name, equals, value = word.partition("=")
            known = real.get(_plain(name)) if name.startswith("--") else None
            flags.append(f"{known}{equals}{value}" if known else word)
        flags += words[end:]
        parsed: tuple[argparse.Namespace, list[str]] = super().parse_known_args(flags, namespace)
        return parsed

    def error(self, message: str) -> NoReturn:
        """Ends the program with code 2; an unknown flag is answered with the nearest known one."""
        for word in self._words:
            if near := self._nearest(word):
                message = f"unknown flag {word.partition('=')[0]}; did you mean {near}?"
        for word in self._words:
            for secret in (word, word.partition("=")[2]):
                message = message.replace(secret, hide_password(secret))
        if self._logs_json:
            from qa_service.logs import complain, configure_logging  # noqa: PLC0415 - not client.py's

            configure_logging("info", "json")
            complain(message)
            raise SystemExit(2)
        super().error(message)

    @property
    def _logs_json(self) -> bool:
        """Whether the program's log is JSON, as far as its faulty flags say."""
        if "--log_format" not in self._all_flags():
            return False
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        default = os.environ.get(f"{PREFIX}LOG_FORMAT")
        parser.add_argument("--log_format", "--log-format", nargs="?", default=default)
        return bool(parser.parse_known_args(self._words)[0].log_format == "json")

    def _from_environment(self) -> Iterator[str]:
        """The flags that environment variables give, but none that ends the program."""
        ends = argparse._VersionAction | argparse._HelpAction | _PrintCompletion
        for action in self._actions:
            flag = next((one for one in action.option_strings if one.startswith("--")), "")
            variable = PREFIX + action.dest.upper()
            value = os.environ.get(variable)
            if not flag or not value or value.startswith(_SERVICE_LINK):
                continue
            if isinstance(action, ends) or variable in _READ_ELSEWHERE:
                continue
            if action.nargs == 0:  # a switch: --x, and perhaps --no-x
                is_on = _SWITCH.get(value.lower())
                if is_on is None:
                    self.error(f"{variable} in the environment: {value!r} is not true or false")
                yield from [flag] if is_on else action.option_strings[1:2]
                continue
            try:
                if callable(action.type):
                    action.type(value)
            except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
                self.error(f"{variable} in the environment: {error}")
            yield f"{flag}={value}"

    def _nearest(self, word: str) -> str | None:
        """The known flag that is like an unknown one; None if it is known or no flag."""
        name = _plain(word.partition("=")[0])
        flags = {_plain(flag): flag for flag in self._all_flags()}
        is_known = not word.startswith("--") or any(flag.startswith(name) for flag in flags)
        near = [] if is_known else difflib.get_close_matches(name, flags, n=1, cutoff=0.7)
        return flags[near[0]] if near else None

    def _all_flags(self) -> Iterator[str]:
        yield from (flag for flag in self._option_string_actions if flag.startswith("--"))
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._all_flags()


class _PrintCompletion(argparse.Action):
    """Prints what a shell needs to complete a program's flags, made by the package shtab."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401 - argparse's
        option_string: str | None = None,
    ) -> NoReturn:
        if importlib.util.find_spec("shtab") is None:
            parser.error("--print_completion needs the package shtab: pip install shtab")
        import shtab  # noqa: PLC0415

        print(shtab.complete(parser, values))
        parser.exit()


def _plain(flag: str) -> str:
    return "--" + flag[2:].replace("-", "_")


# Types of flags.


def hosts(value: str) -> str:
    """Servers' names or addresses, each with or without a port, with commas between them."""
    from qa_service.client import split_hosts  # noqa: PLC0415, the server does without it

    try:
        split_hosts(value, 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return value


def port(value: str) -> int:
    if not 0 < int(value) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value} is not in 1 to 65535")
    return int(value)


def at_least(least: int) -> Callable[[str], int]:
    """A flag's type: an integer from `least` on."""

    def parse(value: str) -> int:
        if int(value) < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return int(value)

    parse.__name__ = "count"
    return parse


count = at_least(1)


def number(value: str) -> float:
    """A number, and neither NaN nor infinity."""
    if not math.isfinite(float(value)):
        raise argparse.ArgumentTypeError(f"{value} is not a number")
    return float(value)


def seconds(value: str, *, what: str = "time") -> float:
    if not 0 < float(value) < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not a {what} above 0")
    return float(value)


def rate(value: str) -> float:
    return seconds(value, what="rate")


def list_of(kind: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """A flag's type: values of one kind with commas between them, as in `1,5,20`."""

    def parse(value: str) -> list[_T]:
        return [kind(word) for word in value.split(",")]

    parse.__name__ = f"comma-separated {kind.__name__}"
    return parse

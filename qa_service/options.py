"""Options as typed structs: read from flags and TOML, checked, and written as TOML.

A tree is a struct of sections, a section a struct of options. An option's name, type, default,
bounds and description stand once, in its field. Names are unique, so that a name is a flag; in a
file it is a key in its section's table.

    flags ──words──▶ parse ─┐
                            ├──▶ check ──▶ a frozen struct a section ──▶ to_toml
    file ──TOML──▶ from_toml┘

A field of the type `dict[str, Section]` is a table of tables: a file may have any number of them,
as in `[models.NAME]`. Such a section's options are no flags.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import NODEFAULT, Meta, Struct, inspect, structs

from qa_service.errors import hide_password

MAX_MS = 2**31 - 1
"""The longest time of an option, in milliseconds: the bound of epoll_wait."""

MAX_COUNT = 1_000_000  # more than any option has a use for

Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
OptionalCount = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Ms = Annotated[int, Meta(ge=1, le=MAX_MS)]
OptionalMs = Annotated[int, Meta(ge=0, le=MAX_MS)]
"""0 for no limit, or no time."""

_T = TypeVar("_T", bound=Struct)
_PLACEHOLDERS = {inspect.IntType: "N", inspect.FloatType: "X", inspect.CustomType: "PATH"}
_MAX_SHOWN_CHARS = 120  # of a wrong value, so that its message stays a line
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class OptionError(ValueError):
    """An option that is unknown or out of its bounds."""


class Option(msgspec.Struct, frozen=True):
    """One option.

    Attributes:
        kind: The type, with its bounds. `is_valid` in its `extra` is a predicate on values of the
            type.
    """

    section: str
    name: str
    kind: Any
    default: object

    @property
    def description(self) -> str:
        return str(self._said.get("description", ""))

    @property
    def expected(self) -> str:
        """Its type and bounds, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return str(self._said.get("title") or _in_words(self._type))

    @property
    def choices(self) -> Sequence[str]:
        """The words that it accepts; empty if it accepts others."""
        bare = typing.get_args(self.kind)[0]
        return typing.get_args(bare) if typing.get_origin(bare) is typing.Literal else ()

    @property
    def is_switch(self) -> bool:
        return isinstance(self._type, inspect.BoolType)

    @property
    def is_positional(self) -> bool:
        """Whether its value stands on the command line without its name."""
        return bool(self._extra.get("is_positional"))

    @property
    def is_sequence(self) -> bool:
        """Whether it may have several values, each a text or a path."""
        return isinstance(self._type, inspect.VarTupleType)

    @property
    def placeholder(self) -> str:
        if self.choices:
            return f"{{{','.join(self.choices)}}}"
        kind = self._type
        kind = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
        return _PLACEHOLDERS.get(type(kind), "TEXT")

    @property
    def _said(self) -> Mapping[str, object]:
        return _info_of(self.kind).extra_json_schema or {}

    @property
    def _extra(self) -> Mapping[str, Any]:
        return getattr(_info_of(self.kind), "extra", None) or {}

    @property
    def _type(self) -> inspect.Type:
        bare = _info_of(self.kind).type
        return bare.types[0] if isinstance(bare, inspect.UnionType) else bare

    def check(self, value: object) -> object:
        """Checks a value of Python's or TOML's, or raises `OptionError`."""
        try:
            checked: object = msgspec.convert(value, self.kind, dec_hook=_make_path)
        except (msgspec.ValidationError, RecursionError):
            raise OptionError(f"{_shown(value)} is not {self.expected}") from None
        if isinstance(checked, str | Path) and "\0" in str(checked):
            raise OptionError(f"{_shown(value)} holds a NUL character")
        # Surrogates stand for bytes of a flag that are not UTF-8.
        if isinstance(checked, str) and any("\ud800" <= char <= "\udfff" for char in checked):
            raise OptionError("it is not UTF-8")
        is_valid = self._extra.get("is_valid")
        if is_valid and not is_valid(checked):
            raise OptionError(f"{_shown(value)} is not {self.expected}")
        return checked

    def parse(self, word: str) -> object:
        """Checks a flag's value, or raises `OptionError`."""
        read = {inspect.IntType: int, inspect.FloatType: float}.get(type(self._type), str)
        try:
            value: object = read(word)
        except ValueError:
            value = word
        return self.check(value)


@functools.cache
def _info_of(kind: Any) -> inspect.Metadata:  # noqa: ANN401 - `Annotated` has no type
    return cast("inspect.Metadata", inspect.type_info(kind))


def _make_path(kind: type, value: object) -> Path:
    if kind is Path and isinstance(value, str | Path) and value != "":
        return Path(value)
    raise TypeError


def _shown(value: object) -> str:
    shown = hide_password(value) if isinstance(value, str) else value
    try:
        return _cut(json.dumps(shown, ensure_ascii=False, default=str))
    except (ValueError, RecursionError):  # an integer of thousands of digits, or nested deeply
        return f"a very long {type(value).__name__}"


def _cut(words: str) -> str:
    return words if len(words) <= _MAX_SHOWN_CHARS else f"{words[:_MAX_SHOWN_CHARS]}…"


def _in_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType(ge=int(low), le=int(high)):
            return f"an integer from {low} to {high}"
        case inspect.FloatType(gt=low, le=high) if low is not None and high is not None:
            return f"a number above {low} and up to {high}"
        case inspect.FloatType(ge=low, le=high) if low is not None and high is not None:
            return f"a number from {low} to {high}"
        case inspect.StrType(min_length=int()):
            return "a string of one character or more"
        case inspect.BoolType():
            return "true or false"
        case inspect.CustomType():
            return "a path"
    raise TypeError(f"an option without bounds: {kind}")


@functools.cache
def fields_of(kind: type[Struct]) -> tuple[structs.FieldInfo, ...]:
    """A struct's fields, read once: each reading of its annotations compiles them again."""
    return structs.fields(kind)


def sections_of(tree: type[Struct]) -> dict[str, type[Struct]]:
    return {f.name: f.type for f in fields_of(tree) if _is_section(f.type)}


@functools.cache
def options_of(tree: type[Struct]) -> Sequence[Option]:
    """Every option that is a flag, in the order of the sections and of their fields."""
    return tuple(
        Option(name, field.name, field.type, field.default)
        for name, section in sections_of(tree).items()
        for field in fields_of(section)
    )


def add_flags(parser: argparse.ArgumentParser, kind: type[Struct]) -> None:
    """Adds the flags of a program: a struct's options, and those of the structs in it."""
    for field in fields_of(kind):
        if _is_section(field.type):
            add_flags(parser, field.type)
        elif typing.get_origin(field.type) is Annotated:
            add_flag(parser, Option("", field.name, field.type, field.default))


def from_flags(kind: type[_T], flags: Mapping[str, Any]) -> _T:
    fields = {field.name: field.type for field in fields_of(kind)}
    inner = {n: from_flags(its, flags) for n, its in fields.items() if _is_section(its)}
    return kind(**inner, **{name: flags[name] for name in fields.keys() & flags.keys()})


def add_flag(group: argparse._ActionsContainer, option: Option) -> None:
    """Adds a flag without a default: what is parsed is what was given, and wins over a file."""
    text = option.description
    is_required = option.default is NODEFAULT
    if not is_required:
        text += f" (default: {'none' if option.default in (None, '', ()) else option.default})"
    flag, text = f"--{option.name}", text.replace("%", "%%")
    if option.is_switch:
        action = argparse.BooleanOptionalAction
        group.add_argument(flag, action=action, default=argparse.SUPPRESS, help=text)
        return

    def parse(word: str) -> object:
        try:
            return option.parse(word)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    form: dict[str, Any] = {"type": parse, "metavar": option.placeholder, "help": text}
    if not option.is_sequence:
        form["choices"] = option.choices or None
    else:
        form["type"] = Path if option.placeholder == "PATH" else str
        form |= {"nargs": "+"} if option.is_positional else {"action": "append"}
    if option.is_positional:
        form["metavar"] = None if option.choices else option.name.upper()
        group.add_argument(option.name, **form)
    else:
        group.add_argument(flag, default=argparse.SUPPRESS, required=is_required, **form)


def with_values(tree: _T, values: Mapping[str, object]) -> _T:
    """Replaces options by their names, or raises `OptionError`."""
    options = {option.name: option for option in options_of(type(tree))}
    changed: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        if name not in options:
            raise OptionError(f"there is no option {name}")
        changed.setdefault(options[name].section, {})[name] = options[name].check(value)
    sections = {name: structs.replace(getattr(tree, name), **new) for name, new in changed.items()}
    return structs.replace(tree, **sections)


def from_toml(tree: type[_T], table: Mapping[str, object]) -> _T:
    """Makes a tree of `tomllib`'s table, or raises `OptionError`; a missing key is its default."""
    homes = {option.name: option.section for option in options_of(tree)}
    return _from_table(tree, table, "", homes)


def _from_table(kind: type[_T], table: object, at: str, homes: Mapping[str, str]) -> _T:
    if not isinstance(table, dict):
        raise OptionError(f"{at}: {_shown(table)} is not a table of keys")
    fields = {field.name: field for field in fields_of(kind)}
    for key in table:
        if key not in fields:
            raise OptionError(_unknown(key, at, list(fields), homes))
    for name, field in fields.items():
        if field.required and name not in table:
            raise OptionError(f"[{at}] needs {name}")
    return kind(**{key: _read(fields[key], value, at, homes) for key, value in table.items()})


def _read(field: structs.FieldInfo, value: object, at: str, homes: Mapping[str, str]) -> object:
    path = f"{at}.{field.name}" if at else field.name
    if _is_section(field.type):
        return _from_table(field.type, value, path, homes)
    if section := _section_by_name(field.type):
        if not isinstance(value, dict):
            raise OptionError(f"{path}: {_shown(value)} is not a table of tables")
        tables = value.items()
        return {name: _from_table(section, one, f"{path}.{name}", homes) for name, one in tables}
    try:
        return Option(at, field.name, field.type, field.default).check(value)
    except OptionError as error:
        raise OptionError(f"[{at}] {field.name}: {error}") from None


def _unknown(key: str, at: str, known: Sequence[str], homes: Mapping[str, str]) -> str:
    words = f"[{at}] has no key {_cut(key)}" if at else f"there is no section {_cut(key)}"
    if key in homes:
        return f"{words}; it belongs in [{homes[key]}]"
    near = difflib.get_close_matches(key, known, n=1)
    return f"{words}; did you mean {near[0]}?" if near else f"{words}; known are {', '.join(known)}"


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _section_by_name(kind: object) -> type[Struct] | None:
    if typing.get_origin(kind) is dict and _is_section(typing.get_args(kind)[1]):
        return cast("type[Struct]", typing.get_args(kind)[1])
    return None


def to_toml(tree: Struct) -> str:
    """Writes a tree as TOML from which `from_toml` makes the same tree."""
    return "\n".join(_toml_lines(msgspec.to_builtins(tree, enc_hook=str), ""))


def _toml_lines(table: Mapping[str, Any], name: str) -> Iterator[str]:
    if name:
        yield f"[{name}]"
    for key, value in table.items():
        if value is None:
            yield f"# {key} is not set"
        elif not isinstance(value, dict):
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    if name:
        yield ""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _toml_lines(value, f"{name}.{_toml_key(key)}" if name else _toml_key(key))


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_value(key)


def _toml_value(value: object) -> str:
    """JSON's scalars, arrays and strings are TOML's, except that TOML escapes DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

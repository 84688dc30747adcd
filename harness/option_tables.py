"""The tables of docs/CONFIGURATION.md, made from the options' structs.

`python -m harness.option_tables` writes them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence

from msgspec import NODEFAULT, Struct, structs

from harness.server import ROOT
from qa_service.options import Option, fields_of, options_of, sections_of
from qa_service.server.config import ServerConfig
from qa_service.server.models.model_options import ModelOptions
from qa_service.server.services.service_options import CollectionOptions, RouteOptions

PAGE = ROOT / "docs" / "CONFIGURATION.md"


def with_tables(page: str) -> str:
    """docs/CONFIGURATION.md with the tables of these options: what is above the first stays."""
    lines: list[str] = []
    options = options_of(ServerConfig)
    for name, section in sections_of(ServerConfig).items():
        its = [(option, _flag_default(option)) for option in options if option.section == name]
        lines += _table(name, section, "flag", its)
    known = {option.name for option in options}
    for name, section in (
        ("models.NAME", ModelOptions),
        ("routes.NAME", RouteOptions),
        ("collections.NAME", CollectionOptions),
    ):  # without what they take over
        its = [
            (Option(name, field.name, field.type, field.default), _key_default(field))
            for field in fields_of(section)
            if field.name not in known
        ]
        lines += _table(name, section, "key", its)
    return page[: page.index("## `[")] + "\n".join(lines)


def _flag_default(option: Option) -> str:
    """As a file has it, but a string without its quotes, as a flag has that."""
    default = option.default
    if default in (None, ""):
        return ""
    return f"`{json.dumps(default) if isinstance(default, bool) else default}`"


def _key_default(field: structs.FieldInfo) -> str:
    factory = field.default_factory
    default = field.default if factory is NODEFAULT else factory()
    return "" if field.required else f"`{json.dumps(default)}`"


def _table(
    name: str, section: type[Struct], word: str, defaults: Sequence[tuple[Option, str]]
) -> Iterator[str]:
    yield from (f"## `[{name}]`", "", inspect.cleandoc(section.__doc__ or ""), "")
    yield from (f"| {word} | default | value | meaning |", "|---|---|---|---|")
    prefix = "--" if word == "flag" else ""
    for option, default in defaults:
        yield f"| `{prefix}{option.name}` | {default} | {option.expected} | {option.description} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))

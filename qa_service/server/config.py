"""The server's configuration: the rooms' options as one tree, from the flags and from a file.

Each room says what can be set about it in a struct; `ServerConfig` has one field for
each. From that tree come the flags, `--help`, the file's tables, what `--print_config` prints, and
the tables of docs/CONFIGURATION.md (`harness/option_tables.py`).
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, Struct, structs

from qa_service.command_line import Parser
from qa_service.errors import SetupError, hide_password
from qa_service.files import Stamp, read_text, stamp_of
from qa_service.instance.instance_options import InstanceOptions
from qa_service.logs import LogOptions
from qa_service.net.listen_options import ListenOptions, TlsOptions
from qa_service.options import (
    OptionalMs,
    OptionError,
    add_flag,
    fields_of,
    from_toml,
    options_of,
    sections_of,
    to_toml,
    with_values,
)
from qa_service.server.front.connection_options import AuthOptions, ConnectionOptions, HttpOptions
from qa_service.server.models.model_options import ModelOptions, RepositoryOptions
from qa_service.server.scheduling.scheduler import QueueOptions
from qa_service.server.services.service_options import (
    CacheOptions,
    CollectionOptions,
    RouteOptions,
    SearchOptions,
    TraceOptions,
)
from qa_service.sidecars.gateway_messages import GatewaySettings
from qa_service.wire.messages import RequestLimits

Action = Literal["serve", "demo", "check", "print_engines"]
ACTIONS = {
    "check": "check all that a start needs (configuration, machine, GPUs, models with their known "
    "answers on every engine, collections, ports, certificates, tokens), print the findings, "
    "with --log_format json as JSON, and exit: 0, 1 with warnings, 2 if the server would not start",
    "print_engines": "measure every engine that auto may take, without a time limit; print the "
    "table, and exit",
    "demo": "also serve the collection handbook, three documents to ask at once",
}
OTHER_DESCRIPTORS = 128
"""What a server has open that is no connection: its log, libraries, channels to instances; half of
what it may have open, if that is less."""
_MODELS_LINE = re.compile(r"^\s*(\[\s*models\s*\]|models\s*=)", re.MULTILINE)


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The server as a whole."""

    drain_delay_ms: Annotated[
        OptionalMs,
        Meta(
            description="milliseconds that a stopping server still serves while it reports not "
            "ready, so that balancers notice before it drains"
        ),
    ] = 0
    drain_timeout_ms: Annotated[
        OptionalMs,
        Meta(
            description="milliseconds that a stopping server may take to answer the accepted "
            "requests"
        ),
    ] = 30_000


class ServerConfig(Struct, frozen=True, kw_only=True):
    """Everything that can be set about a server, a section for each part of it."""

    listen: ListenOptions = ListenOptions()
    tls: TlsOptions = TlsOptions()
    auth: AuthOptions = AuthOptions()
    http: HttpOptions = HttpOptions()
    connections: ConnectionOptions = ConnectionOptions()
    requests: RequestLimits = RequestLimits()
    queue: QueueOptions = QueueOptions()
    cache: CacheOptions = CacheOptions()
    repository: RepositoryOptions = RepositoryOptions()
    search: SearchOptions = SearchOptions()
    instances: InstanceOptions = InstanceOptions()
    logs: LogOptions = LogOptions()
    traces: TraceOptions = TraceOptions()
    server: ServerOptions = ServerOptions()
    models: dict[str, ModelOptions] = {}
    routes: dict[str, RouteOptions] = {}
    collections: dict[str, CollectionOptions] = {}

    @classmethod
    def of(cls, **values: object) -> Self:
        """The defaults, but for the options that are named; or an `OptionError`."""
        return with_values(cls(), values)

    def gateway_flags(self, unix_socket: Path | None) -> list[str]:
        """The flags of the gRPC gateway that is to ask over this socket; none without its port."""
        if not self.listen.grpc_port:
            return []
        mine = {o.name: getattr(getattr(self, o.section), o.name) for o in options_of(type(self))}
        flags = {name: mine[name] for name in GatewaySettings.__struct_fields__}
        flags |= {"unix_socket": unix_socket, "port": self.listen.grpc_port}
        return [word for name, value in flags.items() if value is not None
                for word in (f"--{name}", str(value))]  # fmt: skip


class ConfigSource(msgspec.Struct, frozen=True):
    """Where a configuration comes from, so that it can be read again: a file, and given flags."""

    file: Path | None = None
    given: Mapping[str, object] = msgspec.field(default_factory=dict)
    action: Action = "serve"

    def read(self) -> ServerConfig:
        """Reads it as it is now, or raises `SetupError`; the flags win over the file."""
        config = ServerConfig()
        try:
            if self.file:
                table = tomllib.loads(read_text(self.file))
                config = from_toml(ServerConfig, _with_defaults(table, self.given))
        except OSError as error:
            raise SetupError(f"cannot read --config {self.file}: {error.strerror}") from None
        except OptionError as error:
            raise SetupError(f"{self.file}: {error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"{self.file} is not TOML: {error}") from None
        except RecursionError:
            raise SetupError(f"{self.file} cannot be read: it is nested too deeply") from None
        except ValueError:
            raise SetupError(f"{self.file} cannot be read: an integer in it is too long") from None
        return with_values(config, self.given)

    def stamp(self) -> Stamp:
        return stamp_of(self.file) if self.file else None

    def lists_models(self) -> bool:
        """Whether the file has a line `[models]`: what it does not name is not wanted any more."""
        return bool(self.file and _MODELS_LINE.search(read_text(self.file)))


def find_config(arguments: Sequence[str] | None = None) -> ConfigSource:
    """Reads the command line; a flag wins over the environment, and that over the file.

    Raises:
        SetupError: The file cannot be read, or something in it is wrong; if it is to be printed.
        SystemExit: With code 2 and a message if a flag is wrong; with 0 after `--help` and
            `--print_config`.
    """
    given = vars(_make_parser().parse_args(arguments))
    file, is_printed, action = (given.pop(name) for name in ("config", "print_config", "action"))
    source = ConfigSource(file, given, action)
    if is_printed:
        config = source.read()
        shown = {
            name: structs.replace(its, url=hide_password(its.url))
            for name, its in config.collections.items()
        }
        print(to_toml(structs.replace(config, collections=shown)), end="")
        raise SystemExit(0)
    return source


def _with_defaults(table: dict[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """A model takes from `[instances]` the options that it does not set."""
    instances, models = table.get("instances", {}), table.get("models", {})
    if not isinstance(instances, dict) or not isinstance(models, dict):
        return table
    names = {known.name for known in fields_of(InstanceOptions)}
    common = {name: value for name, value in {**instances, **given}.items() if name in names}
    whole = {
        name: {**common, **its} if isinstance(its, dict) else its for name, its in models.items()
    }
    # [instances] first, so that a fault in it is reported there and not in a model.
    first = {"instances": instances} if "instances" in table else {}
    return {**first, **table, **({"models": whole} if models else {})}


def changed_options(old: Struct, new: Struct) -> list[str]:
    """The options that differ, as `[section] name`; not those of models and routes."""
    return [
        f"[{option.section}] {option.name}"
        for option in options_of(type(old))
        if getattr(getattr(old, option.section), option.name)
        != getattr(getattr(new, option.section), option.name)
    ]


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        description="Question-answering inference server.",
        usage="%(prog)s [--config FILE] [flags]; --help lists them",
    )
    add = parser.add_argument
    text = "options in TOML; flags win, and variables such as QA_PORT"
    add("--config", type=Path, metavar="FILE", help=text)
    text = "print the options that are in force as TOML, for --config, and exit"
    add("--print_config", action="store_true", help=text)
    parser.set_defaults(action="serve")
    for action, text in ACTIONS.items():
        add(f"--{action}", dest="action", action="store_const", const=action, help=text)
    groups = {
        name: parser.add_argument_group(name, section.__doc__)
        for name, section in sections_of(ServerConfig).items()
    }
    for option in options_of(ServerConfig):
        add_flag(groups[option.section], option)
    return parser

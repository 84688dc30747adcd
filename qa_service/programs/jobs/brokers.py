"""Which broker an address names, by its scheme: a row each."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

from qa_service.programs.jobs.base import Broker
from qa_service.programs.jobs.jobs_options import (
    DEFAULT_URL,
    URL_FORM,
    URL_VARIABLE,
    BrokerOptions,
    FlagError,
)

MakeBroker = Callable[[str, BrokerOptions], Broker]

_RABBITMQ = "qa_service.programs.jobs.rabbitmq"
BROKERS = {"amqp": _RABBITMQ, "amqps": _RABBITMQ}
"""The module of each, which has a `make_broker`; only that of the address is imported."""


def broker_from(options: BrokerOptions) -> Broker:
    """The broker that the options name, not connected yet.

    Its address is from the flag, or from the environment, which hides a password.

    Raises:
        FlagError: The broker's address is not one.
    """
    name, url = "--broker_url", options.broker_url
    if not url:
        name, url = URL_VARIABLE, os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in BROKERS and parts.hostname and parts.port != 0
    except ValueError:  # a malformed port
        is_one = False
    if not is_one:  # the message leaves it out: it may hold a password
        raise FlagError(f"{name} is not an address of the form {URL_FORM}")
    make: MakeBroker = importlib.import_module(BROKERS[parts.scheme]).make_broker
    return make(url, options)


@contextlib.asynccontextmanager
async def connected(options: BrokerOptions) -> AsyncIterator[Broker]:
    """The broker that the options name, connected as long as the block runs."""
    broker = broker_from(options)
    try:
        await broker.open()
        yield broker
    finally:
        await broker.close()

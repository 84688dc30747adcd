"""`jobs.py gateway`: runs a gateway until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from qa_service.broker.asker import Asker
from qa_service.broker.flags import address_from, broker_url, names_from
from qa_service.broker.gateway import Gateway, GatewaySettings
from qa_service.broker.metrics import GatewayMetrics
from qa_service.broker.rabbitmq import RabbitMq


async def main(flags: dict[str, Any]) -> int:
    """Runs the command; returns its exit code."""
    metrics = GatewayMetrics()
    names = names_from(flags)
    gateway = Gateway(
        RabbitMq(broker_url(flags), names),
        Asker(address_from(flags), flags["prefetch"], flags["num_connections"]),
        names,
        GatewaySettings(flags["prefetch"], flags["max_attempts"], flags["drain_timeout_s"]),
        metrics,
    )
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, gateway.stop)
    with contextlib.ExitStack() as stack:
        if flags["metrics_port"] is not None:
            stack.callback(metrics.serve(flags["metrics_host"], flags["metrics_port"]))
        await gateway.run()
    return 0

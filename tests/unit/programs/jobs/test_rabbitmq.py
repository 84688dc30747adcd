"""What a job's message says, as RabbitMQ delivers it."""

import time
from unittest.mock import MagicMock

import pytest

pytest.importorskip("aio_pika")

from aio_pika.message import IncomingMessage
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from qa_service.programs.jobs.brokers import ATTEMPTS_HEADER, EXPIRES_HEADER, REASON_HEADER
from qa_service.programs.jobs.rabbitmq import _job

DEATH = [{"reason": "delivery_limit", "queue": "qa.jobs"}]


def job(headers=None, **properties):
    header = ContentHeader(properties=Basic.Properties(headers=headers or {}, **properties))
    delivery = Basic.Deliver("tag", 1, False, "", "qa.jobs")
    return _job(IncomingMessage(DeliveredMessage(delivery, header, b"{}", MagicMock())))


@pytest.mark.parametrize(
    ("headers", "properties", "left_s"),
    [({}, {"expiration": "1500"}, 1.5), ({EXPIRES_HEADER: 2500}, {}, 2.5),
     ({EXPIRES_HEADER: "soon"}, {}, None), ({}, {}, None)],
)  # fmt: skip
def test_the_time_that_a_job_may_wait_is_its_deadline(headers, properties, left_s):
    its = job(headers, **properties)
    left = None if its.deadline_s is None else pytest.approx(its.deadline_s - time.monotonic(), 0.1)
    assert left == left_s


@pytest.mark.parametrize(
    ("headers", "reason"),
    [({REASON_HEADER: "unknown_model", "x-death": DEATH}, "unknown_model"),
     ({"x-death": DEATH}, "delivery_limit in qa.jobs"), ({"x-death": []}, None), ({}, None)],
)  # fmt: skip
def test_a_dead_jobs_reason_is_the_gateways_or_else_the_brokers(headers, reason):
    assert job(headers).reason == reason


@pytest.mark.parametrize(("value", "attempts"), [(2, 2), (-1, 0), ("2", 0), (None, 0)])
def test_a_producers_own_count_of_attempts_is_no_fault(value, attempts):
    assert job({ATTEMPTS_HEADER: value}).attempts == attempts

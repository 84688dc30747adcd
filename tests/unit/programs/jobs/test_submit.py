"""What is said of jobs that were submitted before something stopped it."""

import asyncio

import pytest

pytest.importorskip("aio_pika", reason="no aio-pika: pip install '.[jobs]'")

from qa_service.programs.jobs import broker_commands, brokers
from qa_service.programs.jobs.brokers import BrokerError
from qa_service.programs.jobs.jobs_options import SubmitOptions, parse


class LosingBroker:
    """It confirms this many, and then the connection is lost."""

    def __init__(self, confirms):
        self.left, self.published = confirms, []

    async def open(self):
        pass

    async def close(self):
        pass

    async def publish(self, queue, message):
        if not self.left:
            raise BrokerError("lost")
        self.left -= 1
        self.published.append(message)


def test_a_stopped_submit_prints_how_many_it_submitted(tmp_path, monkeypatch, capsys):
    broker = LosingBroker(3)
    monkeypatch.setattr(brokers, "broker_from", lambda _: broker)
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question":"q","text":"t"}\n' * 10)
    _, options = parse("", ["submit", str(path)])
    assert isinstance(options, SubmitOptions)
    with pytest.raises(BrokerError):
        asyncio.run(broker_commands.submit_main(options))
    assert len(broker.published) == 3
    assert "3 jobs submitted before it stopped\n" in capsys.readouterr().err

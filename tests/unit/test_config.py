"""Flags in, a configuration out."""

from __future__ import annotations

import dataclasses

import pytest

from qa_service.config import ServerConfig, parse_server_flags


def test_defaults_are_those_of_the_fields():
    assert parse_server_flags([]) == ServerConfig()


def test_every_field_is_a_flag_with_help(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_server_flags(["--help"])
    assert ended.value.code == 0
    page = capsys.readouterr().out
    for item in dataclasses.fields(ServerConfig):
        assert f"--{item.name}" in page
        assert item.metadata["help"]
    assert "(default: 9999)" in page
    assert "0.0.0.0" in page


def test_flags_are_read():
    config = parse_server_flags(["--port", "0", "--worker_type", "thread", "--max_queue_size", "5"])
    assert (config.port, config.worker_type, config.max_queue_size) == (0, "thread", 5)
    assert config.scheduler_config.max_queue_size == 5


@pytest.mark.parametrize(
    "words",
    [["--port", "-1"], ["--port", "many"], ["--num_inference_sessions", "0"],
     ["--inference_engine_type", "tea"], ["--precision", "int3"], ["--max_batch_size", "1.5"],
     ["--nonsense"]],
)  # fmt: skip
def test_a_wrong_flag_is_one_message_and_code_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_server_flags(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err

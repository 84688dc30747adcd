"""What all programs' command lines have in common."""

import argparse

import pytest

import qa_service
from qa_service.command_line import Parser


@pytest.fixture
def parser():
    parser = Parser(prog="qa-program")
    parser.add_argument("--max_body_bytes", type=int, default=1)
    parser.add_argument("--cuda_graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="*")
    return parser


def complaint(parser, capsys, *words):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [["--max-body-bytes", "5"], ["--max-body_bytes=5"], ["--max_body_bytes", "5"]]
)
def test_a_flag_may_have_hyphens(parser, words):
    assert parser.parse_args(words).max_body_bytes == 5


def test_a_switch_may_be_turned_off_in_either_form(parser):
    assert not parser.parse_args(["--no-cuda-graphs"]).cuda_graphs
    assert not parser.parse_args(["--no-cuda_graphs"]).cuda_graphs


def test_words_after_two_hyphens_stay_as_they_are(parser):
    assert parser.parse_args(["--", "--max-body-bytes"]).words == ["--max-body-bytes"]


def test_an_unknown_flag_is_answered_with_the_nearest(parser, capsys):
    words = complaint(parser, capsys, "--max_bodi_bytes", "5")
    assert words.endswith("unknown flag --max_bodi_bytes; did you mean --max_body_bytes?")


def test_an_unknown_flag_is_named_when_its_value_makes_another_error(parser, capsys):
    parser.add_argument("--question", required=True)
    assert "unknown flag --questoin; did you mean --question?" in complaint(
        parser, capsys, "--questoin", "a"
    )


def test_an_unknown_flag_of_a_command_is_answered_with_the_nearest(parser, capsys):
    commands = argparse.ArgumentParser.add_subparsers(Parser(prog="qa-program"))
    command = commands.add_parser("run")
    command.add_argument("--output", required=True)
    assert "did you mean --output?" in complaint(command, capsys, "--ouput", "a")


def test_a_value_comes_from_the_environment(parser, monkeypatch):
    monkeypatch.setenv("QA_MAX_BODY_BYTES", "7")
    monkeypatch.setenv("QA_CUDA_GRAPHS", "off")
    monkeypatch.setenv("QA_JSON", "1")
    parsed = parser.parse_args([])
    assert (parsed.max_body_bytes, parsed.cuda_graphs, parsed.json) == (7, False, True)


def test_a_flag_wins_over_the_environment(parser, monkeypatch):
    monkeypatch.setenv("QA_MAX_BODY_BYTES", "7")
    assert parser.parse_args(["--max_body_bytes", "8"]).max_body_bytes == 8


@pytest.mark.parametrize(("name", "value"), [("QA_MAX_BODY_BYTES", "x"), ("QA_JSON", "perhaps")])
def test_a_wrong_value_in_the_environment_names_its_variable(
    parser, monkeypatch, capsys, name, value
):
    monkeypatch.setenv(name, value)
    assert f"{name} in the environment: " in complaint(parser, capsys)


def test_a_kubernetes_service_variable_is_no_option(parser, monkeypatch):
    monkeypatch.setenv("QA_MAX_BODY_BYTES", "tcp://10.0.0.1:9999")
    assert parser.parse_args([]).max_body_bytes == 1


def test_an_empty_variable_is_unset(parser, monkeypatch):
    monkeypatch.setenv("QA_MAX_BODY_BYTES", "")
    monkeypatch.setenv("QA_JSON", "")
    assert vars(parser.parse_args([])) == vars(parser.parse_args(["--max_body_bytes", "1"]))


def test_a_program_has_a_version(parser, capsys):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"qa-program {qa_service.__version__}\n"


def test_completion_is_printed_for_a_shell(parser, capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--print-completion", "bash"])
    assert ended.value.code == 0
    assert "--max_body_bytes" in capsys.readouterr().out

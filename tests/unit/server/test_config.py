"""Flags and a file in, a configuration out."""

from pathlib import Path

import pytest
from msgspec import inspect, structs

from harness.server import ROOT
from qa_service.errors import SetupError
from qa_service.options import Option, options_of, sections_of
from qa_service.server.config import ServerConfig, find_config
from qa_service.sidecars.gateway_messages import GatewaySettings
from tests.support import present

OPTIONS = options_of(ServerConfig)
PAGE = (ROOT / "docs" / "CONFIGURATION.md").read_text()

REFUSED = {
    "--port": ["-1", "65536", "many"],
    "--host": [""],
    "--max_batch_size": ["5000", "0"],
    "--max_frame_bytes": ["10", "999999999999"],
    "--num_inference_sessions": ["-1"],
    "--inference_engine_type": ["tea"],
    "--precision": ["int3"],
    "--max_batch_tokens": ["1.5"],
    "--gpu_memory_fraction": ["0", "1.1", "nan"],
    "--devices": ["", "gpu", "cuda", "cuda:x", "cuda:00", "cpu,", "cpu,auto", "cuda:0\n"],
    "--ray_instances": ["8:2", "1025", "2:", "1:0"],
    "--http_cors_origin": [
        "not an origin", "example.com", "https://example.com/", "https://example.com/page",
        "https://a.example,", "HTTPS://EXAMPLE.COM", "null", "*", "https://",
    ],
    "--idle_timeout_ms": ["-1", "1e3", "3000000000"],
}  # fmt: skip

ACCEPTED = {
    "--devices": ["auto", "cpu", "cuda:0", "cuda:0,cuda:1,cpu", "cuda:12"],
    "--http_cors_origin": [
        "", "https://example.com", "http://localhost:3000, https://a.example",
        "http://[::1]:8080", "chrome-extension://abcdefgh",
    ],
}  # fmt: skip


def parse_server_flags(words: list[str]) -> ServerConfig:
    return find_config(words).read()


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of what is said about wrong flags."""
    with pytest.raises(SystemExit) as ended:
        parse_server_flags(words)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def written(folder: Path, text: str) -> str:
    path = folder / "server.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_those_of_the_fields():
    assert parse_server_flags([]) == ServerConfig()


def test_options_are_few_and_no_two_have_one_name():
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names) <= 52, "what nobody should set is a constant"
    sections = {f.name for f in structs.fields(ServerConfig)}
    assert set(sections_of(ServerConfig)) == sections - {"models", "routes", "collections"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_described_and_every_number_is_bounded(option):
    assert option.description
    assert option.check(option.default) == option.default
    kind = inspect.type_info(option.kind)
    assert isinstance(kind, inspect.Metadata)
    bare = kind.type
    if isinstance(bare, inspect.IntType | inspect.FloatType):
        assert (bare.ge if bare.gt is None else bare.gt) is not None
        assert bare.le is not None


@pytest.mark.parametrize("field", structs.fields(GatewaySettings), ids=lambda field: field.name)
def test_the_grpc_gateways_flags_have_the_types_bounds_and_defaults_of_the_servers(field):
    theirs = Option("", field.name, field.type, field.default)
    [ours] = [option for option in OPTIONS if option.name == field.name]
    if field.name == "port":
        assert theirs.default == 8001, "Triton's port"
    elif field.name == "unix_socket":
        assert field.required, "the server, not the default, is there to be asked"
    else:
        assert (theirs.expected, theirs.default) == (ours.expected, ours.default)


def test_the_help_page_has_every_flag_under_its_section(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_server_flags(["--help"])
    assert ended.value.code == 0
    page = capsys.readouterr().out
    for name, section in sections_of(ServerConfig).items():
        part = page.partition(f"\n{name}:\n")[2].partition("\n\n\n")[0]
        assert present(section.__doc__).split(":")[0] in part
        for field in structs.fields(section):
            assert f"--{field.name}" in part
    assert "(default: 9999)" in page
    assert "0.0.0.0" in page
    assert "--no-prepare" in page


def test_a_shell_completes_the_words_that_a_flag_accepts(capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit):
        find_config(["--print_completion", "bash"])
    assert "log_format_choices=(text json)" in capsys.readouterr().out


def test_a_switch_has_two_flags():
    assert not parse_server_flags(["--no-prepare"]).repository.prepare
    assert parse_server_flags(["--no-prepare", "--prepare"]).repository.prepare


def each_word(table: dict[str, list[str]]) -> pytest.MarkDecorator:
    pairs = [(flag, word) for flag, words in table.items() for word in words]
    return pytest.mark.parametrize(("flag", "word"), pairs)


@each_word(ACCEPTED)
def test_a_value_within_bounds_is_taken(flag, word):
    name = flag.removeprefix("--")
    assert parse_server_flags([flag, word]) == ServerConfig.of(**{name: word})


@each_word(REFUSED)
def test_a_value_out_of_bounds_is_refused_with_the_bound(flag, word, capsys):
    (option,) = [option for option in OPTIONS if f"--{option.name}" == flag]
    message = refusal([f"{flag}={word}"], capsys)
    assert f"argument {flag}: " in message
    assert message.endswith(f"is not {option.expected}")


@pytest.mark.parametrize("words", [["--nonsense"], ["--prepare", "on"]])
def test_an_argument_that_is_no_flag_is_refused(words, capsys):
    assert refusal(words, capsys).endswith(f"unrecognized arguments: {words[-1]}")


def test_a_file_is_read_and_flags_win(tmp_path):
    file = written(tmp_path, "[listen]\nport = 0\nmax_connections = 7\n[tls]\ntls_key = 'k.pem'\n")
    config = parse_server_flags(["--config", file, "--port", "9999"])
    assert config == ServerConfig.of(max_connections=7, tls_key=Path("k.pem"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[listen]\nport = 70000", "[listen] port: 70000 is not an integer from 0 to 65535"),
        ("[logs]\nport = 1", "[logs] has no key port; it belongs in [listen]"),
        ("[listen\nport = 1", "is not TOML: "),
        ("[listen]\nport = " + "9" * 5000, "an integer in it is too long"),
        ("[listen]\nport = " + "[" * 5000 + "]" * 5000, "it is nested too deeply"),
        ("[instances]\nray_instances = '8:2'", '"8:2" is not a number from 0 to 1024, or two'),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path, text, message):
    file = written(tmp_path, text)
    with pytest.raises(SetupError) as raised:
        parse_server_flags(["--config", file])
    assert str(raised.value).startswith(file)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_file_shown_on_the_page_is_read(tmp_path):
    file = written(tmp_path, PAGE.partition("```toml\n")[2].partition("```")[0])
    config = parse_server_flags(["--config", file])
    assert config.listen.host == "0.0.0.0"
    assert config.instances.precision == "int8"


def test_a_missing_file_is_one_line():
    with pytest.raises(SetupError, match=r"cannot read --config no\.toml: No such file"):
        parse_server_flags(["--config", "no.toml"])


def test_the_environment_wins_over_the_file_and_flags_over_both(tmp_path, monkeypatch):
    file = written(tmp_path, "[listen]\nport = 1\nmax_connections = 2\ngrpc_port = 3\n")
    monkeypatch.setenv("QA_MAX_CONNECTIONS", "20")
    monkeypatch.setenv("QA_GRPC_PORT", "30")
    listen = parse_server_flags(["--config", str(file), "--grpc-port", "300"]).listen
    assert (listen.port, listen.max_connections, listen.grpc_port) == (1, 20, 300)


def test_a_file_that_is_not_text_is_one_line(tmp_path):
    (tmp_path / "server.toml").write_bytes(b"\xff\xfea")
    with pytest.raises(SetupError, match="is not TOML"):
        parse_server_flags(["--config", str(tmp_path / "server.toml")])


def test_the_password_of_a_collection_is_not_printed(tmp_path, capsys):
    file = written(tmp_path, '[collections.c]\nurl = "https://me:secret@host:9200/index"\n')
    with pytest.raises(SystemExit):
        parse_server_flags(["--config", file, "--print_config"])
    printed = capsys.readouterr().out
    assert 'url = "https://me:***@host:9200/index"' in printed
    assert "secret" not in printed
    assert parse_server_flags(["--config", file]).collections["c"].url.count("secret") == 1


def test_print_config_prints_a_file_that_reads_back_equal(tmp_path, capsys):
    flags = ["--port", "0", "--no-prepare", "--model", 'a "model"', "--precision", "int8"]
    with pytest.raises(SystemExit) as ended:
        parse_server_flags([*flags, "--print_config"])
    assert ended.value.code == 0
    file = written(tmp_path, capsys.readouterr().out)
    assert parse_server_flags(["--config", file]) == parse_server_flags(flags)

"""The file of tokens, and who is authenticated by it."""

import hashlib
from datetime import UTC, datetime

import pytest

from qa_service.errors import SetupError, UnauthorizedError
from qa_service.server.front.tokens import MAX_TOKENS, Grant, grant_of, load_tokens
from qa_service.wire.messages import MAX_PRIORITY

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOD, OTHER = "3bQ1xT0yqWcV7uKfJm2sZg", "Zt0xT0yqWcV7uKfJm2sZg"


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines, mode=0o600):
        path = tmp_path / "tokens"
        path.write_text("\n".join(lines))
        path.chmod(mode)
        return path

    return write_lines


def test_a_token_a_line_with_comments_and_blank_lines(write, caplog):
    tokens = load_tokens(write("# ada", GOOD, "", "   ", f"  {OTHER}\t", "#nobody"))
    assert len(tokens) == 2
    grant_of(tokens, GOOD, NOW)
    grant_of(tokens, OTHER, NOW)
    with pytest.raises(UnauthorizedError, match="no token was sent"):
        grant_of(tokens, "", NOW)
    for wrong in ("# ada", "nobody", GOOD[:-1], GOOD + "x", GOOD.lower(), "\ud800"):
        with pytest.raises(UnauthorizedError, match="not accepted"):
            grant_of(tokens, wrong, NOW)
    assert caplog.text == ""


@pytest.mark.parametrize("expires", ["2026-11-21T12:00:00Z", "2026-11-21T13:00:00+01:00"])
def test_a_token_is_good_until_it_expires(write, expires):
    tokens = load_tokens(write(f"{GOOD} {expires}"))
    grant_of(tokens, GOOD, datetime(2026, 11, 21, 11, 59, 59, tzinfo=UTC))
    with pytest.raises(UnauthorizedError, match="has expired"):
        grant_of(tokens, GOOD, NOW)


def test_a_line_may_give_the_clients_name_and_weight(write):
    line = f"{GOOD} name=gateway weight=2.5 max_priority=3 2030-01-01T00:00:00Z"
    assert grant_of(load_tokens(write(line)), GOOD, NOW) == Grant(
        name="gateway", weight=2.5, max_priority=3
    )


def test_a_line_without_fields_has_weight_one_and_a_distinct_name(write):
    tokens = load_tokens(write(GOOD, OTHER))
    first, second = grant_of(tokens, GOOD, NOW), grant_of(tokens, OTHER, NOW)
    assert (first.weight, first.max_priority) == (1.0, MAX_PRIORITY)
    assert first.name != second.name
    assert GOOD not in first.name


def test_a_token_is_valid_if_one_of_its_lines_is(write):
    grant_of(load_tokens(write(f"{GOOD} 2020-01-01T00:00:00Z", GOOD)), GOOD, NOW)


def test_only_hashes_are_kept(write):
    kept = load_tokens(write(GOOD))
    assert kept[0].digest == hashlib.sha256(GOOD.encode()).digest()
    assert GOOD not in repr(kept)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "holds 0 tokens"),
        (["# none"], "holds 0 tokens"),
        ([f"{GOOD}{i}" for i in range(MAX_TOKENS + 1)], "1 to 1000 can be used"),
        (["# x", f"{GOOD} tomorrow"], "line 2: its expiry is not a time"),
        ([f"{GOOD} 2027-01-31"], "line 1: its expiry is not a time"),
        ([f"{GOOD} 2027-01-31T00:00:00"], "line 1: its expiry is not a time"),
        ([f"{GOOD} 2027-01-31 00:00:00Z"], "line 1: more than a token"),
        ([f"{GOOD} weight=0"], r"line 1: Expected .* > 0.0"),
        ([f"{GOOD} weight=x"], "line 1: Expected"),
        ([f"{GOOD} color=red"], "line 1: Object contains unknown field"),
        ([f"{GOOD} max_priority=10"], "line 1: Expected"),
        (["x" * 2000], "line 1: longer than 1024 bytes"),
    ],
)
def test_a_bad_files_error_does_not_quote_tokens(write, lines, words):
    with pytest.raises(SetupError, match=words) as caught:
        load_tokens(write(*lines))
    assert GOOD not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(SetupError, match="cannot read --auth_token_file"):
        load_tokens(tmp_path / "none")
    for data, encoding in ((b"\xff", "UTF-8"), (b"\xff\xfea", "UTF-16-LE")):
        (tmp_path / "binary").write_bytes(data)
        with pytest.raises(SetupError, match=f"not a text in {encoding}"):
            load_tokens(tmp_path / "binary")


def test_a_file_that_others_can_read_and_a_short_token_are_warned_of(write, caplog):
    grant_of(load_tokens(write("secret", mode=0o604)), "secret", NOW)
    assert "every user can read" in caplog.text
    assert "so short that it can be guessed" in caplog.text
    assert "secret" not in caplog.text

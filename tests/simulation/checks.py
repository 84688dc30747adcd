"""What is promised, seen from outside: by what clients send, what comes back, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qa_service.errors import ERROR_KINDS
from tests.simulation import inside_gateway
from tests.simulation.clients import Asker, Talk
from tests.simulation.questions import FAULT, POISON, Subject, find_key, score_of
from tests.simulation.searching import PASSAGE_START
from tests.simulation.world import Violation
from tests.support import present

if TYPE_CHECKING:
    from tests.simulation.grpc_calls import Call
    from tests.simulation.run import Simulation
    from tests.simulation.wires import Asked, Reply

LONG_TOKENS = 90
"""A text of more tokens may have been cut into segments, whose score is their sum's."""
TOLERANCE_S = 0.001
ON_ITS_WAY_S = 0.01
"""How long an answer may be on its way to a client, 64 bytes at a time."""
MAX_DEATHS = 3
"""So many instances have to die of a request before it is given up."""
_BY_STATUS = {
    "http 400": "invalid_request",
    "http 401": "unauthorized",
    "http 403": "forbidden",
    "http 404": "unknown_model",
    "http 408": "frame_timeout",
    "http 500": "internal_error",
    "http 503": "unavailable",
    "http 504": "deadline_exceeded",
}
_BY_MESSAGE = {kind.default_message: code for code, kind in ERROR_KINDS.items()}


def code_of(reply: Reply) -> str:
    """The error's code, also where HTTP has only its status and its message."""
    if not reply.code.startswith("http "):
        return reply.code
    if "queue" in reply.message:
        return "queue_full"
    if reply.message in _BY_MESSAGE:
        return _BY_MESSAGE[reply.message]
    return _BY_STATUS.get(reply.code, reply.code)


def check_reply(sim: Simulation, talk: Asker, reply: Reply) -> None:
    """Sees that a reply is to something that was asked, once, and is right."""
    asked = reply.asked
    if asked is None:
        _check_break(sim, talk, reply)
        return
    if asked.sent_s is None and "drips" not in talk.reasons:
        raise Violation("early", f"a reply came to what was not sent yet: {reply.body}")
    code = code_of(reply)
    is_http = talk.client.plan.wire == "http"
    is_last = is_http and isinstance(talk, Talk) and not talk.wire.outstanding
    if code == "shutting_down" and is_last and not reply.says_close:
        raise Violation("leaving", "a draining server refuses and keeps the connection alive")
    if asked.kind == "bad":
        if not reply.code:
            raise Violation("accepted", f"{asked.what} was answered: {reply.body}")
    elif asked.kind == "query" and asked.what == "health" and code == "unavailable":
        pass  # it is not ready, and says so
    elif reply.code:
        if fault := _why_not(sim, talk, asked, code):
            raise Violation(code, f"{fault}: {_say(asked)}: {reply.body}")
    elif asked.subjects:
        _check_answers(sim, asked, reply)
    elif "error" in reply.body:
        raise Violation("query", f"{asked.what}: {reply.body}")


def _check_break(sim: Simulation, talk: Asker, reply: Reply) -> None:
    """A message that answers nothing: the connection is broken off, and must have a reason."""
    code = code_of(reply)
    if (code and reply.body.get("id", 0) is None) or talk.client.plan.wire == "http":
        if _why_not(sim, talk, None, code):
            raise Violation("break", f"the connection is broken off: {reply.body}")
        talk.reasons.add(code)
    else:
        raise Violation("twice", f"a reply to nothing, or a second one: {reply.body}")


def _check_answers(sim: Simulation, asked: Asked, reply: Reply) -> None:
    if len(reply.answers) != len(asked.subjects):
        raise Violation("count", f"{len(reply.answers)} answers: {_say(asked)}")
    if not sim.fingerprints.get((reply.model, reply.version)):
        raise Violation("source", f"{reply.model} {reply.version} has answered: {_say(asked)}")
    for subject, answer in zip(asked.subjects, reply.answers, strict=True):
        if subject.kind == POISON:
            raise Violation("poison", f"its workers die, and it is answered: {answer}")
        _check_answer(sim, subject, answer, reply)


def _check_answer(sim: Simulation, subject: Subject, answer: tuple, reply: Reply) -> None:
    asked, (text, score, start, end) = present(reply.asked), answer
    span = find_key(subject.question, subject.text) or (None, None)
    word = "" if span[0] is None else subject.key
    if asked.options.get("collection") and span[0] is not None:
        span = (span[0] + PASSAGE_START, span[1] + PASSAGE_START)
    if (text, start, end) != (word, *span):
        if sim.machine.is_in_doubt(subject.question, present(asked.sent_s)):
            return
        _check_doubt(sim, subject, answer)
        raise Violation("answer", f"{subject} has {answer}, not {word!r} at {span}")
    is_of_one_run = any(
        score == score_of(fingerprint, subject.question, subject.text)
        for fingerprint in _fingerprints(sim, reply)
    )
    is_merged = subject.tokens > LONG_TOKENS or asked.options.get("collection")
    if not is_of_one_run and not (is_merged and score > 0.99):
        if sim.machine.is_in_doubt(subject.question, present(asked.sent_s)):
            return
        _check_doubt(sim, subject, answer)
        raise Violation("score", f"{subject} has {answer} of {reply.model} {reply.version}")


def _check_doubt(sim: Simulation, subject: Subject, answer: tuple) -> None:
    """Sees that no answer of an instance is given to whoever asks after its failed self-test."""
    if subject.question in sim.machine.wrong_answers:
        raise Violation("doubt", f"{subject} has {answer} of an instance that was found out")


def _fingerprints(sim: Simulation, reply: Reply) -> set[str]:
    """Those of what has answered; a reply to several questions names the first one's alone."""
    if present(reply.asked).kind == "infer" and len(reply.answers) > 1:
        return set().union(*sim.fingerprints.values())
    return sim.fingerprints[reply.model, reply.version]


# Errors.


def _why_not(sim: Simulation, talk: Asker, asked: Asked | None, code: str) -> str | None:
    """Why an error should not have come; None if it may."""
    if code in _ALLOWED:
        is_allowed, otherwise = _ALLOWED[code]
        return None if is_allowed(sim, talk, asked) else otherwise
    rule = _RULES.get(code)
    return rule(sim, asked) if rule else "no request gets this"


def _queue_full(sim, asked):
    alone = asked.was_alone and sim.num_outstanding <= 1 and len(asked.subjects) == 1
    if alone and sim.empty_since_s < asked.sent_s - TOLERANCE_S:
        return "nothing waits and the queue is full"
    return None


def _deadline_exceeded(sim, asked):
    timeout_ms = min(asked.options.get("timeout_ms", 1e9), sim.request_timeout_ms)
    waited_ms = (sim.world.time_s - asked.sent_s) * 1e3
    if _is_long(sim, None, asked):
        if timeout_ms < sim.request_timeout_ms:
            return None  # refused at once: it takes longer than its timeout
        if sim.scenario.configs[0].cache.cache_bytes and waited_ms > timeout_ms / 2:
            return None  # an equal text's run, which it had joined, has failed
    if timeout_ms > 10 and waited_ms < timeout_ms - 1:
        return f"it has waited {waited_ms:.3f} ms of {timeout_ms}"
    return None


def _worker_crashed(sim, asked):
    deaths = max(sim.machine.deaths[subject.question] for subject in asked.subjects)
    if deaths >= MAX_DEATHS or any(subject.kind == POISON for subject in asked.subjects):
        return None
    return f"{deaths} instances have died running it"


def _is_long(_sim, _talk, asked):
    return any(subject.tokens > LONG_TOKENS for subject in asked.subjects)


def _is_faulty(_sim, _talk, asked):
    return any(subject.kind == FAULT for subject in asked.subjects)


def _may_be_invalid(sim, talk, asked):
    """Open Inference errors have no code: with them 400 is a text that is too long as well."""
    return _is_faulty(sim, talk, asked) or (asked.kind == "infer" and _is_long(sim, talk, asked))


def _may_be_unavailable(sim, talk, asked):
    if talk and talk.client.plan.wire == "grpc" and sim.stop_s is not None:
        return True  # of others the connection is refused
    return sim.notes or sim.started_s is None or asked.sent_s <= sim.started_s


def _may_shut_down(sim, talk, _asked):
    if talk and talk.client.plan.wire == "grpc" and sim.may_not_start:
        return sim.stop_s is not None or not sim.network.is_open  # its instances are lost
    return sim.stop_s is not None


def _may_be_unauthorized(_sim, talk, _asked):
    """A token that comes in pieces may come too late: a client's bounds of time are one option."""
    return talk.client.plan.token == "wrong" or "drips" in talk.reasons


def _may_be_unknown(sim, _talk, asked):
    return asked.options.get("model") or asked.options.get("version") or sim.may_be_unknown


_RULES = {
    "queue_full": _queue_full,
    "deadline_exceeded": _deadline_exceeded,
    "worker_crashed": _worker_crashed,
}
_ALLOWED = {
    "execution_timeout": (_is_long, "the text is short"),
    "text_too_long": (_is_long, "the text is short"),
    "question_too_long": (_is_faulty, "it is valid"),
    "invalid_request": (_may_be_invalid, "it is valid"),
    "unavailable": (_may_be_unavailable, "all instances are well"),
    "unknown_model": (_may_be_unknown, "it is asked for by nothing"),
    "cancelled": (lambda _sim, _talk, asked: asked.is_cancelled, "its client has not cancelled it"),
    "shutting_down": (_may_shut_down, "nobody has stopped it"),
    "unauthorized": (_may_be_unauthorized, "the token is good, and was sent at once"),
    "frame_timeout": (lambda _, talk, __: talk.reasons, "it was sent at once"),
    "frame_too_large": (
        lambda _, talk, __: "bad length" in talk.reasons,
        "no frame was too large",
    ),
}
"""By the error's code: when it may come, and what is wrong if it comes otherwise."""


# The end of a connection.


def check_end(sim: Simulation, talk: Talk) -> None:
    """Sees that the server has closed a connection for a reason, and not before it answered."""
    lost = [asked for asked in talk.wire.outstanding if asked.sent_s is not None]
    if talk.reasons or sim.is_over or talk.client.plan.token == "wrong":
        return
    if sim.may_not_start and (sim.started_s is None or not sim.network.is_open):
        return  # it has lost its instances, and ends
    if sim.stop_s is not None:
        accepted = [asked for asked in lost if asked.end <= talk.sock.num_read]
        if accepted and not sim.drain_is_over:
            raise Violation("drain", f"closed without an answer to {_say(accepted[0])}")
        return
    limits = sim.scenario.configs[0].connections
    quiet_s = sim.world.time_s - talk.quiet_since_s
    may_idle = limits.idle_timeout_ms and quiet_s >= limits.idle_timeout_ms / 1e3 - ON_ITS_WAY_S
    if lost and not limits.max_connection_age_s:
        raise Violation("closed", f"without an answer to {_say(lost[0])}")
    if not (may_idle or limits.max_connection_age_s):
        raise Violation("closed", "without a reason")


def _say(asked: Asked) -> str:
    return f"{asked.kind} {asked.what}{list(asked.subjects)} {asked.options}"


# Calls of the gateway.


def check_call(sim: Simulation, call: Call, reply: Reply) -> None:
    """Sees to what a reply to a gRPC call must be besides: its token's, and not of a lost link."""
    asked = present(reply.asked)
    if not reply.code and not call.plan.is_known:
        raise Violation("token", f"a made-up token is answered: {_say(asked)}")
    if reply.code == "unauthorized" and inside_gateway.keeps_idle(sim.gateway, call.key):
        raise Violation("refused", f"the refused link of {call.key} is kept")
    if "lost" in reply.message and not sim.drain_is_over:
        lost_s = sim.gateway.program.loop.lost_s
        if lost_s < present(asked.sent_s):
            raise Violation("lost", f"no connection was lost meanwhile: {_say(asked)}")


def check_lost(sim: Simulation, call: Call) -> None:
    """Sees that the gateway ends with a call under way only if it is killed, or may not drain.

    A server that is stopped before it has started ends at once unless it was asked something, and
    a call may still be on its way to it.
    """
    may_not_drain = sim.drain_is_over or sim.may_not_start or sim.started_s is None
    is_right = "gateway" in sim.notes or may_not_drain
    if call.is_handled and not is_right:
        raise Violation("drain", f"the gateway has ended during {call.plan}")


def check_links_full(sim: Simulation, call: Call, message: str) -> None:
    """Sees that the gateway refuses a call only at a bound of its links."""
    plan, busy = sim.gateway.plan, sim.gateway.users()
    busy[call.key] -= 1
    busy = +busy
    num_its = sum(peer == call.plan.peer for peer, _ in busy)
    for words, count, bound in (
        ("a peer may have", busy[call.key], plan.max_calls),
        ("a peer may ask", num_its, plan.max_links),
        ("the gateway has reached", len(busy), plan.max_connections),
    ):
        if message.startswith(words) and count < bound:
            raise Violation("full", f"{message}: there are {count} of {bound}")

"""What each kind of event does. Each is harmless where what it needs is not there."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.simulation import inside, inside_gateway
from tests.simulation.clients import Flood
from tests.simulation.grpc_calls import Call
from tests.simulation.questions import Subject
from tests.simulation.scenario import ADMIN
from tests.simulation.searching import COLLECTION
from tests.simulation.wires import Asked

if TYPE_CHECKING:
    from tests.simulation.run import Simulation


def _ask(sim, client, subjects, options, pieces, gap_s):
    for subject in subjects:
        sim.clients[client].send(Asked("ask", (subject,), options), pieces, gap_s)


def _infer(sim, client, subjects, options):
    """Several questions in one HTTP request; of a client of frames, one after another."""
    if sim.clients[client].plan.wire == "frames":
        _ask(sim, client, subjects, options, 1, 0.0)
    elif len({subject.top_k for subject in subjects}) == 1:
        sim.clients[client].send(Asked("infer", subjects, options))


def _search(sim, client, subjects, options):
    """Asks a collection, which has the texts by then."""
    sim.library.texts |= {subject.question: subject.text for subject in subjects}
    _ask(sim, client, subjects, {**options, "collection": COLLECTION}, 1, 0.0)


def _bad_search(sim, how):
    sim.notes.add("search")
    if how == "kill":
        sim.library.kill()
    elif how in {"refuse", "die at start"}:
        sim.library.bad_starts.append(how.split()[0])
        sim.library.kill()
    else:
        sim.library.bad_work.append(how)


def _index(sim):
    sim.library.edition += 1
    _hup(sim)


def _cancel(sim, client, subjects, options, number, after_s):
    """Asks, and cancels one of what is outstanding then."""
    _ask(sim, client, subjects, options, 1, 0.0)

    def cancel():
        if talk := sim.clients[client].talk:
            talk.cancel(number)

    sim.world.after(after_s, cancel)


def _flood(sim, client, first, in_flight, total, priorities=(0,)):
    numbers = iter(range(total))

    def make():
        number = next(numbers)
        options = {"priority": priorities[number % len(priorities)]}
        return Asked("ask", (Subject(first + number, 6 + number % 5),), options)

    sim.floods.append(Flood(sim.clients[client], in_flight, make, total))


def _end_floods(sim):
    sim.end_measuring()
    for flood in sim.floods:
        flood.end()


def _query(sim, client, what):
    is_frames = sim.clients[client].plan.wire == "frames"
    sim.clients[client].send(
        Asked("query", what="health" if is_frames and what == "live" else what)
    )


def _bad(sim, client, what):
    is_frames = sim.clients[client].plan.wire == "frames"
    if is_frames and what in {"path", "version"}:
        what = "empty"
    elif not is_frames and what == "length":
        what = "json"
    sim.clients[client].send(Asked("bad", what=what))


def _command(sim, client, what, model):
    if sim.clients[client].plan.token == ADMIN:
        sim.notes.add("command")
        sim.clients[client].send(Asked("query", what=what, options={"model": model}))


def _hang_up(sim, client, how):
    if talk := sim.clients[client].talk:
        talk.hang_up(how)


def _stall(sim, client, seconds):
    if talk := sim.clients[client].talk:
        talk.stall(seconds)


def _kill(sim, number):
    sim.notes.add("kill")
    sim.machine.kill(number)


def _slow(sim, factor, seconds):
    sim.machine.slowness = factor
    sim.notes.add("slow")

    def end():
        sim.machine.slowness = 1.0

    sim.world.after(seconds, end)


def _bad_start(sim, how):
    sim.notes.add("bad start")
    sim.machine.bad_starts.append(how)


def _bad_batch(sim, how):
    sim.notes.add("kill")
    sim.machine.bad_batches.append(how)


def _break_engine(sim, number, how):
    sim.notes.add("kill")
    sim.machine.break_engine(number, how)


def _break_all(sim):
    """Every instance computes wrongly, and so do those that replace them."""
    sim.notes |= {"kill", "bad start"}
    for number in range(len(sim.machine.processes)):
        sim.machine.break_engine(number, "wrong")
    sim.machine.bad_starts.extend(["wrong"] * 6)


def _exchange(sim, model, number, fingerprint):
    """The files are others under running instances; the server hears of it only later."""
    if number in sim.disk.get(model, {}):
        sim.notes |= {"kill", "bad start"}
        sim.disk[model][number] = fingerprint
        sim.fingerprints.setdefault((model, number), set()).add(fingerprint)
        sim.world.after(0.4, lambda: _hup(sim))


def _disk(sim, model, number, fingerprint):
    if model in sim.disk:
        sim.disk[model][number] = fingerprint
        sim.fingerprints.setdefault((model, number), set()).add(fingerprint)
        _hup(sim)


def _configure(sim, number):
    sim.source.config = sim.scenario.configs[number % len(sim.scenario.configs)]
    _hup(sim)


def _hup(sim):
    sim.notes.add("reload")
    sim.signal(signal.SIGHUP)


def _call(sim, calls):
    for plan in calls:
        Call(plan, sim).begin()


def _bad_gateway(sim, how, seconds, number):
    """The gateway is killed, stopped for a while, or loses a link, once it has listened."""
    if not (sim.gateway.takes_calls and inside.gateway_has_started(sim.server)):
        return
    sim.notes.add("gateway")
    program = sim.gateway.program
    if how == "kill":
        program.kill()
    elif how == "pause":
        program.loop.pause(seconds)
    elif links := inside_gateway.busy(sim.gateway) or inside_gateway.connected(sim.gateway):
        links[number % len(links)].sock.reset()


def _pause(sim, seconds, whole_machine):
    sim.world.pause(seconds, whole_machine=whole_machine)
    if not sim.gateway.processes:
        return
    loop = sim.gateway.program.loop
    loop.lost_s = sim.world.time_s + seconds  # it waits to connect, and for a reply, only a while
    if whole_machine:
        loop.pause(seconds)
    else:
        sim.notes.add("gateway")


def _stop(sim):
    sim.stop()


def _measure(sim):
    sim.begin_measuring()


EFFECTS = {
    effect.__name__.removeprefix("_"): effect
    for effect in (
        *(_ask, _infer, _search, _cancel, _flood, _end_floods, _query, _bad, _command, _hang_up),
        *(_stall, _kill, _slow, _bad_start, _bad_batch, _bad_search, _disk, _index, _configure),
        *(_break_engine, _break_all, _exchange),
        *(_call, _bad_gateway, _pause, _stop, _measure),
    )
}


def happen(sim: Simulation, kind: str, values: dict) -> None:
    EFFECTS[kind](sim, **values)

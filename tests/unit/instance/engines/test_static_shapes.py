"""Which lengths are compiled, and when."""

import os
import threading

import pytest

from qa_service.instance.engines.static_shapes import OFTEN, RESERVE_BYTES, StaticShapes
from qa_service.instance.model_folder.costs_dir import SeenLengths


class Compiler:
    """Compiles a length to its name; each takes `each_bytes` of a pretended memory."""

    def __init__(self, max_bytes=1000, each_bytes=100, first_bytes=0, elsewhere=()):
        self.asked, self.used_bytes, self.each_bytes = [], 5000, each_bytes
        self.available_bytes = 2 * RESERVE_BYTES
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.now_s, self.in_thread = 0.0, []
        self.shapes = StaticShapes(
            self.compile,
            max_bytes,
            first_bytes,
            is_in_the_making=lambda tokens: tokens in elsewhere,
            memory_bytes=lambda: self.used_bytes,
            available_bytes=lambda: self.available_bytes,
            clock_s=lambda: self.now_s,
        )

    def compile(self, tokens):
        self.asked.append(tokens)
        self.in_thread.append(threading.current_thread() is not threading.main_thread())
        self.has_begun.set()
        self.may_end.wait()
        self.now_s += 0.3
        self.used_bytes += self.each_bytes
        return f"for {tokens}"

    def run(self, tokens, times):
        found = [self.shapes.find(tokens) for _ in range(times)]
        assert set(found) == {None}


def test_a_length_that_runs_often_is_compiled_once():
    compiler = Compiler()
    compiler.run(64, OFTEN - 1)
    compiler.run(80, OFTEN - 1)
    compiler.shapes.wait()
    assert compiler.asked == []
    compiler.run(80, 1)
    compiler.shapes.wait()
    assert [compiler.shapes.find(80) for _ in range(2 * OFTEN)] == ["for 80"] * 2 * OFTEN
    assert compiler.asked == [80]


def test_no_length_is_compiled_where_little_memory_is_available():
    compiler = Compiler(first_bytes=100)
    compiler.available_bytes = RESERVE_BYTES + 99
    compiler.run(64, OFTEN)
    compiler.shapes.wait()
    compiler.available_bytes = 2 * RESERVE_BYTES
    compiler.run(64, OFTEN)
    compiler.shapes.wait()
    assert compiler.asked == []
    assert compiler.shapes.left_bytes == 0


def test_runs_go_on_while_a_length_is_compiled():
    compiler = Compiler()
    compiler.may_end.clear()
    compiler.run(64, 3 * OFTEN)
    compiler.may_end.set()
    compiler.shapes.wait()
    assert (compiler.asked, compiler.shapes.find(64)) == ([64], "for 64")


def test_one_length_is_compiled_at_a_time():
    compiler = Compiler()
    compiler.may_end.clear()
    compiler.run(64, OFTEN)
    compiler.has_begun.wait()
    compiler.run(80, 3 * OFTEN)
    assert compiler.asked == [64]
    compiler.may_end.set()
    compiler.shapes.wait()
    assert (compiler.asked, compiler.shapes.find(80)) == ([64, 80], "for 80")


def test_compiling_stops_before_the_memory_bound():
    compiler = Compiler(max_bytes=350)
    for tokens in (16, 32, 48, 64, 80):
        compiler.run(tokens, OFTEN)
        compiler.shapes.wait()
    assert compiler.asked == [16, 32, 48]
    assert [compiler.shapes.find(tokens) for tokens in (48, 64)] == ["for 48", None]


@pytest.mark.parametrize(("max_bytes", "first_bytes"), [(350, 351), (0, 0)])
def test_a_first_length_that_is_expected_to_take_too_much_is_not_compiled(max_bytes, first_bytes):
    compiler = Compiler(max_bytes, first_bytes=first_bytes)
    compiler.run(64, 2 * OFTEN)
    compiler.shapes.wait()
    assert compiler.asked == []


def test_a_length_that_took_more_than_was_left_is_dropped_and_the_last():
    compiler = Compiler(max_bytes=250)
    for tokens, each_bytes in ((16, 100), (32, 151), (48, 10)):
        compiler.each_bytes = each_bytes
        compiler.run(tokens, OFTEN)
        compiler.shapes.wait()
    assert compiler.asked == [16, 32]
    assert [compiler.shapes.find(tokens) for tokens in (16, 32, 48)] == ["for 16", None, None]


def test_the_compiler_thread_has_the_lowest_priority():
    niceness = []

    def compile_for(tokens):
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    shapes = StaticShapes(compile_for, 1000)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    for _ in range(OFTEN):
        shapes.find(64)
    shapes.wait()
    assert (niceness, os.getpriority(os.PRIO_PROCESS, 0)) == ([19], before)


def test_a_length_that_cannot_be_compiled_is_the_last(caplog):
    def refuse(tokens):
        raise RuntimeError("no memory")

    shapes = StaticShapes(refuse, 1000)
    for tokens in (64, 80):
        assert {shapes.find(tokens) for _ in range(2 * OFTEN)} == {None}
        shapes.wait()
    (record,) = caplog.records
    assert "64 tokens cannot be compiled" in record.getMessage()


def seen(**num_rows):
    lengths = SeenLengths()
    lengths.add({int(name.removeprefix("of_")): rows for name, rows in num_rows.items()})
    return lengths


def test_a_start_waits_for_no_length_and_a_thread_begins_with_those_seen_most():
    compiler = Compiler()
    compiler.may_end.clear()
    lengths = seen(of_64=20, of_80=90, of_96=50, of_112=40, of_128=30, of_144=OFTEN - 1)
    compiler.shapes.prepare(lengths)
    assert (compiler.shapes.find(80), compiler.shapes.lengths) == (None, [])
    compiler.may_end.set()
    compiler.shapes.wait()
    assert compiler.asked == [80, 96, 112, 128, 64]
    assert compiler.in_thread == [True] * 5
    assert compiler.shapes.lengths == [64, 80, 96, 112, 128]


def test_a_length_that_does_not_pass_its_check_is_left_out_and_the_others_are_made(caplog):
    compiler = Compiler()

    def check(compiled, tokens):
        if tokens == 80:
            raise ValueError("it computes wrongly")

    compiler.shapes.check = check
    compiler.shapes.prepare(seen(of_64=20, of_80=90, of_96=50))
    compiler.shapes.wait()
    compiler.run(80, 2 * OFTEN)
    compiler.shapes.wait()
    assert (compiler.asked, compiler.shapes.lengths) == ([80, 96, 64], [64, 96])
    (record,) = caplog.records
    assert record.getMessage() == "what is compiled for 80 tokens is not used: it computes wrongly"


def test_a_start_continues_the_kept_counts():
    compiler = Compiler()
    lengths = seen(of_64=OFTEN - 1)
    compiler.shapes.prepare(lengths)
    assert compiler.asked == []
    compiler.run(64, 1)
    compiler.shapes.wait()
    assert lengths.most_seen(OFTEN) == compiler.asked == [64]


def test_a_start_compiles_no_more_than_fits_into_memory():
    compiler = Compiler(max_bytes=250)
    compiler.shapes.prepare(seen(of_64=50, of_80=40, of_96=30))
    compiler.shapes.wait()
    assert (compiler.asked, compiler.shapes.left_bytes) == ([64, 80], 50)


def test_a_length_that_another_instance_compiles_has_its_turn_later():
    compiler = Compiler(elsewhere={80, 96})
    compiler.shapes.prepare(seen(of_80=90, of_96=50, of_64=20))
    compiler.shapes.wait()
    assert compiler.asked == [64, 80, 96]

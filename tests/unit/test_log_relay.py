"""Lines to a descriptor that is not read, is full, or is non-blocking."""

import fcntl
import os
import threading

import pytest

from qa_service.log_relay import MAX_WAITING_BYTES, Relay

LINE = b"a line that somebody has logged, of about the length that such lines have\n"


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    yield read_end, write_end
    for descriptor in {read_end, write_end}:
        os.close(descriptor)


def say_lost(number):
    return f"{number} lost\n"


def read_until(descriptor, end):
    data = b""
    while not data.endswith(end):
        data += os.read(descriptor, 65536)
    return data


def test_lines_arrive_in_order(pipe):
    relay = Relay(pipe[1], say_lost)
    for number in range(1000):
        relay.write(f"{number}\n")
    data = read_until(pipe[0], b"999\n")
    assert data.split() == [b"%d" % number for number in range(1000)]
    relay.close()


def test_lines_that_do_not_fit_are_counted_in_their_place(pipe):
    relay = Relay(pipe[1], say_lost)
    num_put = 0
    while not relay.num_lost:
        relay.write(f"{num_put} {'x' * 70}\n")
        num_put += 1
    assert num_put * 80 > MAX_WAITING_BYTES
    seen, data = 0, b""
    while seen < num_put:
        data += os.read(pipe[0], 65536)
        *lines, data = data.split(b"\n")
        for number, what in (line.split() for line in lines):
            if what == b"lost":
                seen += int(number)
            else:
                assert int(number) == seen
                seen += 1
    relay.put(LINE)
    assert read_until(pipe[0], LINE) == LINE
    relay.close()


def test_a_full_disk_loses_lines_and_ends_nothing():
    faults, is_full = [], threading.Event()

    def on_fault(error):
        faults.append(error.strerror)
        is_full.set()

    full = os.open("/dev/full", os.O_WRONLY)
    read_end, write_end = os.pipe()
    relay = Relay(full, say_lost, on_fault)
    relay.put(LINE * 3)
    assert is_full.wait(60)
    os.dup2(write_end, full)
    relay.put(b"again\n")
    assert read_until(read_end, b"again\n") == b"3 lost\nagain\n"
    assert faults == ["No space left on device"]
    relay.close()
    for descriptor in (full, read_end, write_end):
        os.close(descriptor)


def test_a_descriptor_that_another_program_made_non_blocking_loses_nothing(pipe):
    os.set_blocking(pipe[1], False)
    relay = Relay(pipe[1], say_lost)
    relay.put(LINE * 1000)
    relay.put(b"end\n")
    assert read_until(pipe[0], b"end\n") == LINE * 1000 + b"end\n"
    relay.close()


def test_its_end_waits_for_what_can_be_written(pipe):
    os.set_blocking(pipe[0], False)
    relay = Relay(pipe[1], say_lost)
    relay.put(LINE)
    relay.close()
    assert os.read(pipe[0], 4096) == LINE

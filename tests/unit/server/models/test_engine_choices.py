"""What serves before the engines are measured, and what takes its place."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.models import make_manifest
from qa_service.autotune import candidates
from qa_service.autotune.engine_table import EngineTable, TrialReply, TrialRequest, encode_trial
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.manifest import save_manifest
from qa_service.logs import LogOptions
from qa_service.machine import Processor
from qa_service.server.models import engine_choices
from qa_service.server.models.engine_choices import TRIAL_BYTES, EngineChoices
from qa_service.server.models.on_disk import FoundVersion
from qa_service.wire.frames import PREFIX
from tests.unit.server.fake_services import ManualClock

OPTIONS = InstanceOptions()
LOOP: Any = ManualClock()
FILES = {"model.onnx": "1", "model.int8.onnx": "2"}


class Trial:
    """Stands for the program that measures."""

    def __init__(self, on_data):
        self._on_data = on_data

    def start(self):
        pass

    def write(self, body):
        self.request = msgspec.msgpack.decode(body[PREFIX.size :], type=TrialRequest)

    def end(self, reply):
        self._on_data(encode_trial(reply)[PREFIX.size :])

    def kill(self):
        pass


class Setting:
    """The choices for one model, and the trials that they have started."""

    def __init__(self, folder, monkeypatch, **given):
        self.folder, self.trials, self.found = folder, [], []
        self.version = FoundVersion(1, folder, "f")
        monkeypatch.setattr(engine_choices, "Child", self._start)
        given = {"free_bytes": lambda: 1 << 40, **given}
        self.choices = EngineChoices(LOOP, LogOptions(), lambda: self.found.append(1), **given)

    def _start(self, *_, on_data, **__):
        self.trials.append(Trial(on_data))
        return self.trials[-1]

    def choose(self):
        found = self.choices.choose("m", self.version, OPTIONS)
        return found.inference_engine_type, found.precision

    def end(self, *, int8_ratio=1.0, num_same=200):
        """The trial ends: int8 takes this share of float32's time."""
        measurement = self.trials[-1].request.measurement
        able = [finding for finding, _ in measurement.candidates]
        ratios = {"fp32": 1.0, "int8": int8_ratio}
        table = measurement.table(
            [
                msgspec.structs.replace(
                    one,
                    alone_ms=1.0,
                    ratio=ratios[one.precision],
                    num_answers=200,
                    num_same=200 if one.precision == "fp32" else num_same,
                )
                for one in able
            ]
        )
        self.trials[-1].end(TrialReply(table))
        return table


@pytest.fixture(autouse=True)
def _onnx_alone(monkeypatch):
    monkeypatch.setattr(candidates, "num_cpus", lambda: 1)
    monkeypatch.setattr(candidates, "is_installed", lambda module: module == "onnxruntime")
    set_flags(monkeypatch, "avx512_vnni")


def set_flags(monkeypatch, *flags):
    its = Processor("A Processor", frozenset(flags))
    monkeypatch.setattr(candidates, "processor", lambda: its)


@pytest.fixture
def folder(tmp_path):
    save_manifest(tmp_path, make_manifest("m", fingerprint="f", files=FILES))
    return tmp_path


@pytest.fixture
def setting(folder, monkeypatch):
    return Setting(folder, monkeypatch)


@pytest.mark.parametrize(("flags", "likeliest"), [(("avx512_vnni",), "int8"), (("avx2",), "fp32")])
def test_the_likeliest_serves_and_is_measured_beside_it(setting, monkeypatch, flags, likeliest):
    set_flags(monkeypatch, *flags)
    assert setting.choose() == ("onnx", likeliest)
    setting.choices.measure_next()
    assert not setting.trials
    assert "measured from now on" in setting.choices.reason(setting.folder)
    setting.choices.is_serving = True
    setting.choices.measure_next()
    assert setting.trials[0].request.is_beside
    assert setting.choose() == ("onnx", likeliest)


def test_the_winner_takes_its_place(setting, caplog):
    caplog.set_level(logging.INFO)
    assert setting.choose() == ("onnx", "int8")
    setting.choices.is_serving = True
    setting.choices.measure_next()
    table = setting.end(int8_ratio=1.3)
    assert setting.found == [1]
    assert setting.choose() == ("onnx", "fp32")
    assert table.reason in caplog.text
    assert setting.choices.reason(setting.folder).endswith(f"; measured on {table.measured_on}")
    setting.choices.is_serving = True
    setting.choices.measure_next()
    assert len(setting.trials) == 1


def test_without_a_measurement_the_likeliest_stays(setting, caplog):
    setting.choose()
    setting.choices.is_serving = True
    setting.choices.measure_next()
    setting.trials[0].end(TrialReply(failure="it died"))
    assert setting.choose() == ("onnx", "int8")
    assert "the likeliest stays: it died" in caplog.text


def test_where_measuring_takes_more_memory_than_is_free_the_likeliest_stays(
    folder, monkeypatch, caplog
):
    """Else the serving instances wait for pages, or are killed, and what is measured is wrong."""
    setting = Setting(folder, monkeypatch, free_bytes=lambda: TRIAL_BYTES + 2999)
    setting.version = FoundVersion(1, folder, "f", {"model.onnx": 1000, "model.int8.onnx": 250})
    assert setting.choose() == ("onnx", "int8")
    setting.choices.is_serving = True
    setting.choices.measure_next()
    assert (setting.trials, setting.found) == ([], [1])
    assert "the likeliest stays: 256 MiB of memory are free, it takes 256 MiB" in caplog.text
    setting.choices.measure_next()
    assert setting.choose() == ("onnx", "int8")
    assert len(caplog.messages) == 1


def test_a_likeliest_that_cannot_be_loaded_is_measured_before_anything_serves(setting):
    setting.choose()
    setting.choices.reject(setting.version, OPTIONS)
    assert setting.choose() == ("auto", "auto")
    setting.choices.measure_next()
    assert not setting.trials[0].request.is_beside
    setting.end(int8_ratio=0.5)
    assert setting.choose() == ("onnx", "int8")
    setting.choices.reject(setting.version, OPTIONS)
    assert setting.choose() == ("onnx", "int8")


def test_where_two_do_not_fit_into_memory_it_is_measured_first(folder, monkeypatch):
    setting = Setting(folder, monkeypatch, has_room=False)
    assert setting.choose() == ("auto", "auto")
    setting.choices.measure_next()
    assert len(setting.trials) == 1
    setting.trials[0].end(TrialReply(failure="it died"))
    assert setting.choose() == ("onnx", "fp32")


def test_a_table_of_an_older_version_says_no_day(setting, folder):
    setting.choose()
    setting.choices.is_serving = True
    setting.choices.measure_next()
    table = msgspec.structs.replace(setting.end(int8_ratio=0.5), measured_on="")
    encoded = msgspec.json.encode(table)
    assert msgspec.json.decode(encoded, type=EngineTable).measured_on == ""
    Path(setting.trials[0].request.measurement.path).parent.mkdir()
    Path(setting.trials[0].request.measurement.path).write_bytes(encoded)
    later = Setting.__new__(Setting)
    later.version, later.choices = setting.version, EngineChoices(LOOP, LogOptions(), print)
    assert later.choose() == ("onnx", "int8")
    assert "measured on" not in later.choices.reason(folder)

"""What the machine is too small for."""

from functools import partial
from pathlib import Path

import pytest

from qa_service.instance.devices import assign_devices
from qa_service.instance.gpus import Gpus
from qa_service.instance.instance_options import InstanceOptions
from qa_service.server.check import machine
from qa_service.server.check.machine import check_machine, find_cpu_shortage, raise_descriptor_limit
from qa_service.server.check.report import Level
from qa_service.server.config import OTHER_DESCRIPTORS, ServerConfig
from qa_service.server.models.model_options import ModelOptions
from tests.support import present


@pytest.fixture(autouse=True)
def four_cpus(monkeypatch):
    monkeypatch.setattr(machine, "num_cpus", lambda: 4)


def model(sessions, threads=0, devices="cpu"):
    return ModelOptions(
        path=Path("a"), num_inference_sessions=sessions, intra_op_num_threads=threads,
        devices=devices,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("models", "threads"),
    [
        ([model(4)], 0),
        ([model(2, 2)], 0),
        ([model(5)], 5),
        ([model(2, 3)], 6),
        ([model(2), model(3)], 5),
        ([model(5, devices="cuda:99")], 0),
    ],
)
def test_the_threads_of_all_models_count(models, threads):
    found = find_cpu_shortage(models)
    assert (found.text if found else "") == (
        f"{threads} threads of instances share 4 CPUs" if threads else ""
    )


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    find = partial(assign_devices, find=lambda: Gpus((), "there is no driver"))
    monkeypatch.setattr(machine, "devices_of", find)
    found = find_cpu_shortage([InstanceOptions(num_inference_sessions=5)])
    assert found is not None


@pytest.mark.parametrize("in_models", [False, True])
def test_check_warns_of_what_the_start_warns_of(in_models):
    config = ServerConfig.of(num_inference_sessions=1 if in_models else 5, devices="cpu")
    if in_models:
        config = ServerConfig(instances=config.instances, models={"a": model(2), "b": model(3)})
    texts = [one.text for one in check_machine(config) if one.level is Level.WARNING]
    assert "5 threads of instances share 4 CPUs" in texts


@pytest.mark.parametrize(("limit", "fitting"), [(300, 300 - OTHER_DESCRIPTORS), (100, 0)])
def test_a_low_limit_of_descriptors_says_how_many_connections_fit(monkeypatch, limit, fitting):
    monkeypatch.setattr(machine, "allow_descriptors", lambda needed: limit)
    said = present(raise_descriptor_limit(ServerConfig.of(max_connections=1000))).text
    assert f"at most {fitting} of --max_connections 1000 fit into the limit of {limit}" in said


def test_a_limit_of_descriptors_that_is_enough_is_not_said(monkeypatch):
    monkeypatch.setattr(machine, "allow_descriptors", lambda needed: needed)
    assert raise_descriptor_limit(ServerConfig()) is None

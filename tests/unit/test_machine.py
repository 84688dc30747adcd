"""The CPUs that a process may use, by the files that Linux has for them."""

import os

import pytest

from qa_service.machine import available_bytes, num_cpus, processor
from tests.programs import run_python


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_a_cgroup_the_affinity_counts(tmp_path):
    assert num_cpus(tmp_path) == 8


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1), ("max 100000", 8)],
)
def test_the_quota_of_a_container_bounds_the_cpus(tmp_path, quota, expected):
    write(tmp_path, proc__self__cgroup="0::/\n", sys__fs__cgroup__cpu_dot_max=quota)
    assert num_cpus(tmp_path) == expected


def test_the_smallest_quota_of_the_groups_above_counts(tmp_path):
    write(
        tmp_path,
        proc__self__cgroup="0::/pod/container\n",
        sys__fs__cgroup__pod__container__cpu_dot_max="max 100000",
        sys__fs__cgroup__pod__cpu_dot_max="300000 100000",
    )
    assert num_cpus(tmp_path) == 3


def test_a_quota_of_version_1_bounds_the_cpus(tmp_path):
    folder = tmp_path / "sys/fs/cgroup/cpu,cpuacct/docker"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("400000")
    (folder / "cpu.cfs_period_us").write_text("100000")
    write(tmp_path, proc__self__cgroup="3:memory:/docker\n2:cpu,cpuacct:/docker\n")
    assert num_cpus(tmp_path) == 4


def test_a_processor_has_its_name_and_flags(tmp_path):
    text = "model name\t: A Processor\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\n"
    write(tmp_path, proc__cpuinfo=text)
    assert processor(tmp_path).name == "A Processor"
    assert processor(tmp_path).flags == {"fpu", "amx_bf16"}


def test_a_processor_is_written_alike_in_every_process():
    code = "from qa_service.machine import available_bytes, processor; print(processor())"
    envs = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2", "3"))
    [written] = {run_python("-c", code, env=env).stdout for env in envs}
    assert written


def test_a_processor_without_cpuinfo_is_named_by_its_architecture(tmp_path):
    assert processor(tmp_path).name == os.uname().machine


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be():
    code = (
        "import resource; from qa_service.machine import available_bytes, allow_descriptors;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 100));"
        "print(allow_descriptors(80), allow_descriptors(200), "
        "resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert run_python("-c", code).stdout == "80 100 (100, 100)\n"


MEMINFO = "MemTotal: 8000 kB\nMemAvailable: 5000 kB\n"


def test_the_available_memory_is_the_least_of_the_machines_and_of_the_groups_above(tmp_path):
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/pod/container\n",
        sys__fs__cgroup__pod__container__memory_dot_max="max",
        sys__fs__cgroup__pod__memory_dot_max="4096000",
        sys__fs__cgroup__pod__memory_dot_current="3000000",
        sys__fs__cgroup__pod__memory_dot_stat="anon 2000000\ninactive_file 500000\n",
    )
    assert available_bytes(tmp_path) == 4_096_000 - 3_000_000 + 500_000


def test_a_group_of_version_1_bounds_the_memory_too(tmp_path):
    folder = tmp_path / "sys/fs/cgroup/memory/docker"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000000")
    (folder / "memory.usage_in_bytes").write_text("900000")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 200000\n")
    write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="4:memory:/docker\n")
    assert available_bytes(tmp_path) == 300_000


def test_without_a_cgroup_the_machines_memory_is_available(tmp_path):
    write(tmp_path, proc__meminfo=MEMINFO)
    assert available_bytes(tmp_path) == 5000 * 1024

"""Fixtures for every suite."""

import fcntl
import gc
import hashlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from harness.models import link_model
from harness.rabbitmq import MISSING, is_installed, running_rabbitmq
from harness.server import ROOT
from qa_service.autotune.candidates import choose_engine
from qa_service.autotune.engine_table import Measurement, TrialRequest
from qa_service.autotune.engine_trial import reply_to
from qa_service.instance.devices import first_device
from qa_service.instance.instance_options import InstanceOptions
from qa_service.instance.model_folder.known_answers import load_known_answers
from qa_service.instance.model_folder.manifest import (
    KNOWN_ANSWERS_FILE,
    MANIFEST_FILE,
    load_manifest,
)
from qa_service.logs import LogOptions
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.sentence_encoder import prepare_encoder
from qa_service.retrieval.encoder_folder import (
    KNOWN_FILE,
    load_encoder_manifest,
    load_known_embeddings,
)
from tests.certificates import Certificates

MARKS = ("slow", "soak", "long")
WITH_TORCH = (
    "tests/integration/test_architectures", "tests/integration/test_engines",
    "tests/integration/test_gpu_engines", "tests/integration/test_prepare_model",
    "tests/unit/instance/reader/test_reader", "tests/unit/preparation", "tests/unit/training",
)  # fmt: skip
"""Files and folders of tests that load PyTorch into their process."""

WITH_BROKER = ("tests/fault/test_jobs.py", "tests/integration/test_jobs_gateway.py")
"""Those that share a RabbitMQ, whose start takes longer than several servers'."""

_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Collects no garbage until the tests run: there is none among modules and tests.

    A job in a shell's background ignores Ctrl-C, and so would the programs that tests start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("numprocesses", None):  # else the tests are collected by others
        gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Has one process run all files that load PyTorch, which takes seconds, and begin with them.

    Another runs all that start a broker.
    """
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope

    def split_scope(nodeid: str) -> str:
        file = str(file_of(nodeid))
        groups = (WITH_TORCH, WITH_BROKER)
        return next((group[0] for group in groups if file.startswith(group)), file)

    scheduling._split_scope = split_scope
    return scheduling


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(WITH_TORCH))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves modules unread whose tests are all left out: some import torch, peft or Ray."""
    if collection_path.suffix != ".py":
        return None
    asked, text = config.option.markexpr, collection_path.read_text()
    has_none = asked in MARKS and f"mark.{asked}" not in text
    left_out = (mark for mark in MARKS if f"not {mark}" in asked)
    is_left_out = any(f"\npytestmark = pytest.mark.{mark}\n" in text for mark in left_out)
    return True if has_none or is_left_out else None


@pytest.fixture(scope="session", autouse=True)
def no_users_data(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No fixture finds what the user has prepared; whoever starts a program passes it on."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.getbasetemp() / "data")


@pytest.fixture(autouse=True)
def empty_data_folder(
    no_users_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test finds what another has prepared."""
    folder = tmp_path_factory.getbasetemp() / f"data-{next(_numbers)}"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))


@pytest.fixture(scope="session")
def builtin_model() -> Iterator[Path]:
    """The built-in model with its int8 file; what is there already is kept.

    It is made whole at once: other tests may use the same folder meanwhile. Its engines
    are measured here, if they have not been on this machine, so that servers side by side do not.
    """
    model = prepare(PrepareArgs(output_dir=ROOT / "saved_models", precision="int8"))
    with (model.parent / ".builtin.engines.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = InstanceOptions()
        found = choose_engine(options, first_device(options), model, load_manifest(model))
        if isinstance(found, Measurement):
            assert not reply_to(TrialRequest(found, LogOptions())).failure
    written = times_of(model)
    yield model
    assert times_of(model) == written, "a test has written to a file of the model that all share"


def times_of(model: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in model.iterdir() if path.is_file()}


@pytest.fixture(scope="session")
def quick_model(builtin_model, tmp_path_factory) -> Path:
    """The same model with six short known answers: an instance proves itself in a fifth of the CPU.

    For servers with `FIXED_ENGINE`, in tests of what is before an engine: the costs of batches are
    estimated from all known answers.
    """
    known = load_known_answers(builtin_model, load_manifest(builtin_model))
    assert known
    few = structs.replace(known, rows=sorted(known.rows, key=lambda row: len(row.ids))[:6])
    folder = tmp_path_factory.mktemp("quick") / builtin_model.name
    return _with_known(builtin_model, folder, KNOWN_ANSWERS_FILE, few)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """The encoder of passages with four short texts to prove itself by; else as it is prepared."""
    whole = prepare_encoder(ROOT / "saved_models")
    known = load_known_embeddings(whole, load_encoder_manifest(whole))
    few = sorted(known, key=lambda its: len(its.ids))[:4]
    return _with_known(whole, tmp_path_factory.mktemp("quick") / whole.name, KNOWN_FILE, few)


def _with_known(prepared: Path, folder: Path, name: str, known: object) -> Path:
    """A prepared folder by links, whose file of this name holds other known results."""
    folder.mkdir()
    manifest = json.loads((prepared / MANIFEST_FILE).read_bytes())
    for other in manifest["files"].keys() - {name}:
        (folder / other).symlink_to(prepared / other)
    encoded = msgspec.json.encode(known)
    (folder / name).write_bytes(encoded)
    manifest["files"][name] = hashlib.sha256(encoded).hexdigest()
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Certificates:
    """Those of a server and a client, and of who signed both."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def own_model(quick_model, tmp_path) -> Path:
    """The same model in a folder that a test may change; its weights are links."""
    return link_model(quick_model, tmp_path / "model")


@pytest.fixture(scope="session")
def rabbit():
    """A broker for all tests; each takes queues of its own."""
    if not is_installed():
        pytest.skip(MISSING)
    with running_rabbitmq() as broker:
        yield broker

"""The steps of an engine on a GPU: which are tried, and where the next start begins."""

import logging

import msgspec
import pytest

from qa_service.errors import DeviceError, SetupError, WrongAnswerError
from qa_service.instance import ladder
from qa_service.instance.devices import CPU, DeviceAssignment
from qa_service.instance.engines import EngineConfig

GPU = EngineConfig(device="cuda", precision="fp16")
GRAPHS, NO_GRAPHS, UNBOUND, ON_CPU = (
    ("cuda", True, True), ("cuda", False, True), ("cuda", False, False), (CPU, True, True),
)  # fmt: skip


WRONG = WrongAnswerError("it computes wrongly")


class Climber:
    def __init__(self, folder, failing=(), error=WRONG):
        self.folder, self.failing, self.error, self.tried = folder, failing, error, []

    def attempt(self, config):
        step = config.device, config.cuda_graphs, config.bound_buffers
        self.tried.append(step)
        if step in self.failing:
            raise self.error
        return step

    def climb(self, engine_type="onnx", config=GPU, *, may_fall_back=False, key="files"):
        self.tried.clear()
        device = DeviceAssignment("cuda:1", may_fall_back=may_fall_back)
        attempt = self.attempt
        return ladder.climb(engine_type, config, device, self.folder, key=key, attempt=attempt)


@pytest.mark.parametrize(
    ("engine_type", "steps"),
    [("onnx", [GRAPHS, NO_GRAPHS, UNBOUND]), ("pytorch", [GRAPHS, NO_GRAPHS]),
     ("tensorrt", [NO_GRAPHS, UNBOUND])],
)  # fmt: skip
@pytest.mark.parametrize("error", [WrongAnswerError("wrong"), SetupError("it cannot run")])
def test_the_steps_are_tried_in_turn_and_the_last_ones_error_is_the_engines(
    tmp_path, engine_type, steps, error
):
    climber = Climber(tmp_path, steps, error)
    with pytest.raises(type(error)):
        climber.climb(engine_type)
    assert climber.tried == steps


def test_a_failed_step_is_logged_once_and_the_next_start_begins_at_the_step_that_passed(
    tmp_path, caplog
):
    climber = Climber(tmp_path, [GRAPHS])
    with caplog.at_level(logging.WARNING):
        assert climber.climb() == NO_GRAPHS
        assert climber.climb() == NO_GRAPHS
    assert climber.tried == [NO_GRAPHS]
    assert [record.getMessage() for record in caplog.records] == [
        "onnx fp16 with CUDA graphs is left out for no CUDA graphs: it computes wrongly"
    ]


def test_with_other_files_options_or_another_driver_all_steps_are_tried_again(
    tmp_path, monkeypatch
):
    climber = Climber(tmp_path, [GRAPHS])
    climber.climb()
    climber.climb(key="other files")
    assert climber.tried == [GRAPHS, NO_GRAPHS]
    climber.climb(config=msgspec.structs.replace(GPU, max_batch_size=3))
    assert climber.tried == [GRAPHS, NO_GRAPHS]
    monkeypatch.setattr(ladder, "gpu_driver", lambda: "NVRM version: another")
    climber.climb()
    assert climber.tried == [GRAPHS, NO_GRAPHS]


def test_without_graphs_by_the_options_there_is_no_step_with_them(tmp_path):
    climber = Climber(tmp_path, [NO_GRAPHS])
    assert climber.climb(config=msgspec.structs.replace(GPU, cuda_graphs=False)) == UNBOUND
    assert climber.tried == [NO_GRAPHS, UNBOUND]


def test_the_cpu_is_the_last_step_only_where_the_user_allows_it(tmp_path, caplog):
    climber = Climber(tmp_path, [GRAPHS, NO_GRAPHS, UNBOUND])
    assert climber.climb(may_fall_back=True) == ON_CPU
    assert "this instance runs on the CPU and not on cuda:1: it computes" in caplog.text
    with pytest.raises(WrongAnswerError):
        climber.climb()


def test_an_engine_that_cannot_use_the_device_tries_no_other_step_on_it(tmp_path):
    climber = Climber(tmp_path, [GRAPHS], DeviceError("no CUDA"))
    assert climber.climb(may_fall_back=True) == ON_CPU
    assert climber.tried == [GRAPHS, ON_CPU]
    with pytest.raises(DeviceError):
        climber.climb()


def test_an_engine_that_needs_a_gpu_does_not_fall_back(tmp_path):
    climber = Climber(tmp_path, [NO_GRAPHS, UNBOUND])
    with pytest.raises(WrongAnswerError):
        climber.climb("tensorrt", may_fall_back=True)


def test_on_the_cpu_there_is_one_step_and_nothing_is_kept(tmp_path):
    climber = Climber(tmp_path)
    assert climber.climb(config=EngineConfig()) == ON_CPU
    assert not any(tmp_path.iterdir())

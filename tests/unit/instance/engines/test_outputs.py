"""A run's outputs: what is taken for one that has not happened."""

import numpy as np
import pytest

from qa_service.instance.engines.base import MARK_BYTE, Engine, EngineFaultError, checked, marked

NO_RESULTS = "without results"


def written(dtype=np.float32):
    return np.arange(12, dtype=dtype).reshape(3, 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_output_that_was_written_comes_back_as_a_copy_in_float32(dtype):
    output = written(dtype)
    found = checked(output, (3, 4))
    output[:] = 7
    assert (found.dtype, found.tolist()) == (np.dtype(np.float32), written().tolist())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("where", [np.s_[:], np.s_[1], np.s_[2, 3]], ids=["all", "row", "value"])
def test_an_output_that_was_not_written_is_a_fault(dtype, where):
    output = written(dtype)
    output.view(np.uint8).reshape(3, 4, -1)[where] = MARK_BYTE
    with pytest.raises(EngineFaultError, match=NO_RESULTS):
        checked(output, (3, 4))


def test_new_memory_is_marked_all_over():
    with pytest.raises(EngineFaultError, match=NO_RESULTS):
        checked(marked(3, 4)[2:, 3:], (1, 1))


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (12,)])
def test_an_output_of_another_shape_is_a_fault(shape):
    with pytest.raises(EngineFaultError, match=r"of shape \(3, 4\) where"):
        checked(written(), shape)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, np.inf - np.inf])
def test_a_models_own_nan_is_no_fault_of_the_engine(value):
    """The request alone fails: its logits are not finite."""
    output = written()
    output[1, 2] = value
    assert not np.isfinite(checked(output, (3, 4))).all()


class Forgetful(Engine):
    """Returns its outputs; runs only once."""

    def __init__(self):
        self.outputs, self.has_run = marked(2, 1, 3), False

    def _run(self, ids, mask, types):
        self.outputs.view(np.uint8)[:] = MARK_BYTE
        if not self.has_run:
            self.outputs[:] = ids
        self.has_run = True
        return self.outputs


def test_an_engine_that_returns_without_running_is_found():
    engine, ids = Forgetful(), np.array([[1, 2, 3]])
    assert [output.tolist() for output in engine.logits(ids, ids, ids)] == [ids.tolist()] * 2
    with pytest.raises(EngineFaultError, match=NO_RESULTS):
        engine.logits(ids, ids, ids)

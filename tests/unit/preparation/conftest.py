from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qa_service.preparation.sources import Source


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]")
    (folder / "model.safetensors").write_bytes(b"weights")
    return Source("tiny", "tiny", folder)


def write_product(path: Path, weight: npt.NDArray[Any], opset: int = 17) -> None:
    """Writes a graph of one product."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, weight.shape[0]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, weight.shape[1]])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    weights = [numpy_helper.from_array(weight.astype(np.float32), "w")]
    graph = helper.make_graph([node], "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))

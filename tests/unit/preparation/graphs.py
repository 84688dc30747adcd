"""A graph to quantise."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_product(path: Path, weight: npt.NDArray[Any], opset: int = 17) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, weight.shape[0]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, weight.shape[1]])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    weights = [numpy_helper.from_array(weight.astype(np.float32), "w")]
    graph = helper.make_graph([node], "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))

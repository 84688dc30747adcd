"""Makes `model.int8.onnx`: products of 8-bit integers that keep the answers.

Two measures reduce the error. Each row of activations (a token) is divided by its largest value
before it is quantised, and the product multiplied by it again: in the first layers a few tokens are
ten times as large as all others, which with one scale for a batch would get only a few of the 256
steps. So an answer does not depend on its batch either. And weights not yet rounded compensate for
the error of those that are, so that the products on real text change little (E. Frantar et al.,
"GPTQ", 2023).

    x ─▶ Abs ─▶ ReduceMax ─▶ Max ─┬─────────────────────────────────────────┐
    └───────────────▶ Div ◀───────┘                                         ▼
                      └─▶ DynamicQuantizeLinear ─▶ MatMulInteger ─▶ scale ─▶ Mul
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.errors import QuestionTooLongError
from qa_service.instance.arrays import FloatArray, Int64Array
from qa_service.instance.engines.base import named_inputs
from qa_service.instance.model_folder.manifest import TOKENIZER_FILE, Manifest
from qa_service.instance.reader.windows import WindowBuilder, padded
from qa_service.preparation.graphs import MIN_OUTPUTS, opset_of
from qa_service.preparation.sources import as_setup_error
from qa_service.progress import progress_bar

Inputs = Mapping[str, Int64Array]
Rounded = tuple[npt.NDArray[np.int8], FloatArray]
"""A weight in int8, [columns, outputs], and each output's scale, float32 [outputs]."""

LARGEST = 64
"""Weights use 7 of the 8 bits: otherwise the sums overflow on x86 processors without VNNI
(onnxruntime, "Quantize ONNX models"). They are signed, as processors with VNNI require."""

DAMPING = 0.01
"""Added to the diagonal of a Gram matrix, as a share of its mean (GPTQ, section 3.3)."""

_AXES_ARE_INPUT = 18
"""The first version of ONNX's operators in which the axes of a ReduceMax are an input."""
_BLOCK = 64
"""Rows whose errors are carried over together: one large product is faster than many small."""
_SMALLEST_ROW = 1e-9
"""Divides a row of zeros, which stays zeros."""


def quantize(fp32: Path, int8: Path, texts: Sequence[Inputs]) -> None:
    """Writes a graph, fused if it can be, in int8; its weights are rounded for the texts."""
    with as_setup_error("the model cannot be quantised"):
        model = _with_products(onnx.load(str(fp32)))
        grams = _gram_matrices(model, texts)
        onnx.save(_quantized(model, lambda w, states: round_weights(w, grams[states])), str(int8))


def quantize_as_before(fp32: Path, int8: Path, corrections: bytes) -> None:
    """Writes the graph that `quantize` wrote of the same one, by what `corrections` found."""
    rest = np.frombuffer(corrections, np.int8)

    def corrected(weight: FloatArray, _: str) -> Rounded:
        nonlocal rest
        its, rest = rest[: weight.size], rest[weight.size :]
        steps, scale = _nearest(weight)
        return steps + its.reshape(weight.shape), scale

    with as_setup_error("the model cannot be quantised"):
        model = _quantized(_with_products(onnx.load(str(fp32))), corrected)
        if rest.size:
            raise ValueError("the corrections are another graph's")
        onnx.save(model, str(int8))


def corrections(fp32: Path, int8: Path) -> bytes:
    """By how many steps each weight differs from the nearest: int8, in the graph's order."""
    graph = _with_products(onnx.load(str(fp32)))
    weights, rounded = _weights(graph), _weights(onnx.load(str(int8)))
    return b"".join(
        (rounded[f"{_name(node)}_weight"] - _nearest(weights[node.input[1]])[0]).tobytes()
        for node in graph.graph.node
        if _is_product(node, weights)
    )


def calibration_inputs(model_dir: Path, manifest: Manifest) -> Sequence[Inputs]:
    """The windows of the project's own questions, one in each batch.

    Engines are compared on other questions (`data/agreement.json`).
    """
    tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
    overlap = manifest.reading.window_overlap_tokens
    builder = WindowBuilder(tokenizer, manifest.window_tokens, overlap)
    found = []
    for item in read_squad(OWN_QUESTIONS):
        try:
            encoded = builder.encode(item.question, item.context)
        except QuestionTooLongError:  # of a model with few positions
            encoded = builder.encode("Why?", item.context)
        for window in encoded.windows:
            batch = padded([window], manifest.pad_token_id)
            found.append(named_inputs(manifest.inputs, *batch))
    return found


def _with_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Moves the product with the weight of every fused Attention into a MatMul before it."""
    opset = opset_of(model)
    nodes = [new for node in model.graph.node for new in _attention_apart(node, opset)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _attention_apart(node: NodeProto, opset: int) -> list[NodeProto]:
    if node.op_type != "Attention":
        return [node]
    states, weight, bias, *mask = node.input
    name = node.name
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    heads = {
        key: attributes[key]
        for key in ("num_heads", "mask_filter_value", "scale")
        if key in attributes
    }
    if attributes.keys() - heads.keys() - {"unidirectional"} or attributes.get("unidirectional"):
        return [node]
    parts = [f"{name}_query", f"{name}_key", f"{name}_value"]
    in_three: dict[str, Any] = {"num_outputs": 3} if opset >= _AXES_ARE_INPUT else {}
    return [
        helper.make_node("MatMul", [states, weight], [f"{name}_qkv"], f"{name}_qkv"),
        helper.make_node("Split", [f"{name}_qkv"], parts, f"{name}_split", axis=-1, **in_three),
        helper.make_node(
            "MultiHeadAttention",
            [*parts, bias, *mask],
            node.output,
            name,
            domain="com.microsoft",
            **heads,
        ),
    ]


def _is_product(node: NodeProto, weights: Mapping[str, FloatArray]) -> bool:
    weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
    return weight is not None and weight.ndim == 2 and weight.shape[1] >= MIN_OUTPUTS


def _weights(model: onnx.ModelProto) -> dict[str, FloatArray]:
    return {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}


def _gram_matrices(model: onnx.ModelProto, texts: Sequence[Inputs]) -> dict[str, FloatArray]:
    """The Gram matrix of each product's input, float32 [columns, columns], by its name."""
    weights = _weights(model)
    names = sorted({node.input[0] for node in model.graph.node if _is_product(node, weights)})
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    grams: dict[str, FloatArray] = {}
    for inputs in progress_bar(iterable=texts, desc="running it", unit="text", leave=False):
        for name, value in zip(names, session.run(None, dict(inputs)), strict=True):
            rows = value.reshape(-1, value.shape[-1])
            grams[name] = grams.get(name, 0.0) + rows.T @ rows
    return grams


def _quantized(
    model: onnx.ModelProto, rounding: Callable[[FloatArray, str], Rounded]
) -> onnx.ModelProto:
    """Replaces every product; `rounding` is given a weight and the name of its other factor."""
    weights = _weights(model)
    constants: dict[str, npt.NDArray[np.generic]] = {
        "smallest_row": np.asarray(_SMALLEST_ROW, np.float32)
    }
    if opset_of(model) >= _AXES_ARE_INPUT:
        constants["last_axis"] = np.asarray([-1], np.int64)
    nodes: list[NodeProto] = []
    used = set()
    for node in model.graph.node:
        if not _is_product(node, weights):
            nodes.append(node)
            continue
        states, weight = node.input
        used.add(weight)
        rounded, scale = rounding(weights[weight], states)
        constants |= {f"{_name(node)}_weight": rounded, f"{_name(node)}_scale": scale}
        nodes.extend(_integer_product(node, axes_are_input="last_axis" in constants))
    if not used:
        raise ValueError("it has no product with a float32 weight")
    kept = [item for item in model.graph.initializer if item.name not in used]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    model.graph.node.extend(nodes)
    return model


def _name(node: NodeProto) -> str:
    return str(node.name or node.output[0])


def _integer_product(node: NodeProto, *, axes_are_input: bool) -> Iterator[NodeProto]:
    """The nodes that replace a MatMul, as in the module's drawing."""
    states, at = node.input[0], _name(node)

    def make(kind: str, inputs: Sequence[str], *outputs: str, **attributes: object) -> NodeProto:
        names = [f"{at}_{name}" for name in outputs]
        node = helper.make_node(kind, inputs, names, f"{at}_{outputs[0]}")
        node.attribute.extend(
            helper.make_attribute(key, value) for key, value in attributes.items()
        )
        return node

    yield make("Abs", [states], "absolute")
    if axes_are_input:
        yield make("ReduceMax", [f"{at}_absolute", "last_axis"], "largest", keepdims=1)
    else:
        yield make("ReduceMax", [f"{at}_absolute"], "largest", axes=[-1], keepdims=1)
    yield make("Max", [f"{at}_largest", "smallest_row"], "row")
    yield make("Div", [states, f"{at}_row"], "divided")
    yield make("DynamicQuantizeLinear", [f"{at}_divided"], "int8", "step", "zero")
    yield make("MatMulInteger", [f"{at}_int8", f"{at}_weight", f"{at}_zero"], "sums")
    yield make("Cast", [f"{at}_sums"], "floats", to=TensorProto.FLOAT)
    yield make("Mul", [f"{at}_step", f"{at}_scale"], "scales")
    yield make("Mul", [f"{at}_floats", f"{at}_scales"], "scaled")
    yield helper.make_node("Mul", [f"{at}_scaled", f"{at}_row"], node.output, f"{at}_times_row")


def _nearest(weight: FloatArray) -> Rounded:
    scale = np.maximum(np.abs(weight).max(axis=0) / LARGEST, np.finfo(np.float32).tiny)
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


def round_weights(weight: FloatArray, gram: FloatArray) -> Rounded:
    """Rounds a weight so that its products change little.

    Rows are rounded in turn; later rows compensate for the error, as far as the text's columns
    correlate: Frantar et al., algorithm 1, in the order of the columns' size.

    Args:
        weight: float32 [columns, outputs].
        gram: Gram matrix of the columns of the activations, float32 [columns, columns].
    """
    _, scale = _nearest(weight)
    order = np.argsort(-np.diag(gram))
    damped = gram[np.ix_(order, order)].astype(np.float64)
    damped[np.diag_indices_from(damped)] += DAMPING * np.diag(damped).mean() + 1e-12
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    left = weight[order]
    rounded = np.empty(weight.shape, np.int8)
    for first in range(0, len(order), _BLOCK):
        block = slice(first, first + _BLOCK)
        errors = np.empty_like(left[block])
        for row in range(first, min(first + _BLOCK, len(order))):
            steps = np.clip(np.rint(left[row] / scale), -LARGEST, LARGEST)
            rounded[order[row]] = steps
            errors[row - first] = (left[row] - steps * scale) / upper[row, row]
            left[row + 1 : block.stop] -= (
                upper[row, row + 1 : block.stop, None] * errors[row - first]
            )
        left[block.stop :] -= upper[block, block.stop :].T @ errors
    return rounded, scale

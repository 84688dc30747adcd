"""A model whose folder has its ONNX graph, as torch's export and `optimum` write it: no PyTorch.

    onnx/model.onnx or model.onnx, config.json, tokenizer.json (tokenizer_config.json)

Its own graph, run without optimizations, is what the files made of it are compared with.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx
import onnxruntime
from onnx import TensorProto, version_converter
from tokenizers import Tokenizer

from qa_service.errors import SetupError
from qa_service.instance.arrays import Int64Array, Logits
from qa_service.instance.engines.base import named_inputs
from qa_service.instance.engines.onnx import LogSeverity
from qa_service.instance.model_folder.manifest import CONFIG_FILE, TOKENIZER_FILE
from qa_service.preparation.graphs import MIN_OPSET, fuse, opset_of
from qa_service.preparation.source_model import (
    INPUTS,
    OUTPUTS,
    USUAL_MAX_TOKENS,
    SourceModel,
    checked_pair,
    null_position,
)
from qa_service.preparation.sources import Source, as_setup_error


class _Config(msgspec.Struct):
    """What is read of `config.json`; DistilBERT's has names of its own."""

    pad_token_id: int | None = None
    max_position_embeddings: int | None = None
    vocab_size: int | None = None
    num_attention_heads: int = 0
    n_heads: int = 0
    hidden_size: int = 0
    dim: int = 0


class _Named(msgspec.Struct):
    content: str


class _TokenizerConfig(msgspec.Struct):
    cls_token: str | _Named | None = None
    bos_token: str | _Named | None = None
    pad_token: str | _Named | None = None
    model_max_length: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel(SourceModel):
    """A model that is a graph."""

    graph: Path
    config_file: Path
    config: _Config
    session: onnxruntime.InferenceSession

    def logits(self, ids: Int64Array, mask: Int64Array, types: Int64Array) -> Logits:
        start, end = self.session.run(list(OUTPUTS), named_inputs(self.inputs, ids, mask, types))
        return start, end

    def save(self, folder: Path) -> None:
        shutil.copyfile(self.config_file, folder / CONFIG_FILE)
        self.tokenizer.save(str(folder / TOKENIZER_FILE))

    def write_graph(self, path: Path) -> int:
        self.write_plain_graph(path)
        its = self.config
        return fuse(path, its.num_attention_heads or its.n_heads, its.hidden_size or its.dim)

    def write_plain_graph(self, path: Path) -> None:
        """Writes the graph in one file, with the outputs that a server reads."""
        with as_setup_error(f"{self.graph} cannot be written as one file"):
            model = onnx.load(str(self.graph))
            outputs = {output.name: output for output in model.graph.output}
            del model.graph.output[:]
            model.graph.output.extend(outputs[name] for name in OUTPUTS)
            if opset_of(model) < MIN_OPSET:
                model = version_converter.convert_version(model, MIN_OPSET)
            onnx.save(model, str(path))


def load(source: Source) -> ExportedModel:
    assert source.graph is not None
    folder = source.model_dir
    with as_setup_error(f"{source.label}: its config.json or its tokenizer cannot be read"):
        config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=_Config)
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        path = folder / "tokenizer_config.json"
        encoded = path.read_bytes() if path.is_file() else b"{}"
        own = msgspec.json.decode(encoded, type=_TokenizerConfig)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = LogSeverity.FATAL
    with as_setup_error(f"ONNX Runtime cannot load {source.graph}"):
        session = onnxruntime.InferenceSession(str(source.graph), options, ["CPUExecutionProvider"])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pair = checked_pair(tokenizer, source.label, config.vocab_size)
    stated = config.max_position_embeddings or own.model_max_length or 0
    return ExportedModel(
        graph=source.graph,
        config_file=folder / CONFIG_FILE,
        config=config,
        session=session,
        tokenizer=tokenizer,
        inputs=_checked_inputs(source.graph),
        pad_token_id=config.pad_token_id or _id(tokenizer, own.pad_token) or 0,
        max_sequence_tokens=int(stated) if 0 < stated < 1e6 else USUAL_MAX_TOKENS,
        null_position=null_position(
            pair, _id(tokenizer, own.cls_token), _id(tokenizer, own.bos_token)
        ),
    )


def _id(tokenizer: Tokenizer, token: str | _Named | None) -> int | None:
    name = token.content if isinstance(token, _Named) else token
    return None if name is None else tokenizer.token_to_id(name)


def _checked_inputs(path: Path) -> tuple[str, ...]:
    """The graph's inputs, in its order."""
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    names = [value.name for value in inputs]
    if unknown := [name for name in names if name not in INPUTS]:
        raise SetupError(f"{path} takes {unknown[0]}, which a server has not: {', '.join(INPUTS)}")
    if not set(INPUTS[:2]) <= set(names):
        raise SetupError(f"{path} takes {', '.join(names)}, without {' and '.join(INPUTS[:2])}")
    found = [value.name for value in graph.output]
    if not set(OUTPUTS) <= set(found):
        raise SetupError(
            f"{path} is not the graph of a model for extractive question answering: it gives "
            f"{', '.join(found)}, not {' and '.join(OUTPUTS)}"
        )
    outputs = [value for value in graph.output if value.name in OUTPUTS]
    wanted = [TensorProto.INT64] * len(inputs) + [TensorProto.FLOAT] * len(outputs)
    for value, kind in zip([*inputs, *outputs], wanted, strict=True):
        its = value.type.tensor_type
        if its.elem_type != kind:
            has, needs = (TensorProto.DataType.Name(one).lower() for one in (its.elem_type, kind))
            raise SetupError(f"{path}: {value.name} is {has}, and a server needs {needs}")
        if sizes := [size.dim_value for size in its.shape.dim if size.HasField("dim_value")]:
            raise SetupError(
                f"{path}: {value.name} has a fixed size, {sizes[-1]}; export the model with "
                "dynamic axes for the batch and the sequence"
            )
    return tuple(names)

"""Finds a model's files: in the project, in a local directory, or on the Hugging Face hub.

A directory may also hold an adapter, as finetune_model.py or `peft` writes it; its encoder is
looked up in the same three places. Without PyTorch, or weights, a model's own ONNX graph is taken.
Nothing here imports torch or transformers, so that an up-to-date model is recognised in a fraction
of a second.
"""

from __future__ import annotations

import errno
import json
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_service.errors import SetupError
from qa_service.installation import install_hint, installed_version
from qa_service.instance.model_folder.manifest import (
    BUILTINS,
    CONFIG_FILE,
    HUB_ID,
    TOKENIZER_FILE,
    ReadingConfig,
)
from qa_service.preparation.encoders import (
    MINILM,
    MINILM_DIR,
    MODELS_DIR,
    MPNET,
    Results,
    cache_dir,
    check_shipped,
    fetched_mpnet,
    identity,
    load_results,
)

READING_FILE = "reading.json"

_HUB_EXAMPLE = "deepset/bert-base-cased-squad2"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_REASON = 300
"""Characters, so that a library's message does not hide ours."""

_CONFIG_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    READING_FILE,
)
_WEIGHT_FILES = ("model*.safetensors", "model.safetensors.index.json")
_OLD_WEIGHT_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
_PARTS = {
    CONFIG_FILE: (CONFIG_FILE,),
    "weights (model.safetensors or pytorch_model.bin) and no graph (onnx/model.onnx)": (
        *_WEIGHT_FILES,
        *_OLD_WEIGHT_FILES,
    ),
    "tokenizer (tokenizer.json or a vocabulary)": (
        TOKENIZER_FILE,
        "vocab.txt",
        "vocab.json",
        "*.model",
    ),
}
_GRAPHS = ("onnx/model.onnx", "model.onnx")
_GRAPH_FILES = tuple(f"{graph}*" for graph in _GRAPHS)
"""With the weights of a large graph: `model.onnx_data`, `model.onnx.data`."""
_GRAPHS_IN_INT8 = ("onnx/model_quantized.onnx", "model_quantized.onnx")
"""Taken where there is no other."""
ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors", READING_FILE)

_NOT_PLAIN_LORA = (
    "alpha_pattern", "fan_in_fan_out", "layer_replication", "lora_bias", "rank_pattern",
    "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
    "use_rslora",
)  # fmt: skip
"""Settings of `peft` under which an adapter is merged in another way than `shipped.merged` does."""

_PACKAGES = ("onnx", "safetensors", "tokenizers")
_TORCH_PACKAGES = ("torch", "transformers", "peft")
_ONNX_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, slots=True)
class Source:
    """A model's original files.

    Attributes:
        label: The manifest's name for it: one of `BUILTINS`, a hub id, or a directory's name.
        model_dir: Holds a model and its tokenizer, as `transformers` loads them.
        adapter_dir: Holds the `peft` adapter that makes an encoder answer questions.
        graph: The model's ONNX graph, if it is prepared from it and not from its weights.
    """

    name: str
    label: str
    model_dir: Path
    adapter_dir: Path | None = None
    graph: Path | None = None

    @property
    def needs_torch(self) -> bool:
        return self.graph is None and not self.is_shipped

    @property
    def reading_file(self) -> Path:
        return (self.adapter_dir or self.model_dir) / READING_FILE

    @property
    def is_shipped(self) -> bool:
        """Whether it is put together without PyTorch: a LoRA adapter over the shipped encoder."""
        if self.adapter_dir is None or self.model_dir != MINILM_DIR:
            return False
        config = json.loads((self.adapter_dir / ADAPTER_CONFIG).read_bytes())
        return config.get("peft_type") == "LORA" and not any(map(config.get, _NOT_PLAIN_LORA))

    def files(self) -> list[Path]:
        """Every file on which the prepared model depends, in a stable order."""
        if self.graph:
            graph = sorted(self.graph.parent.glob(f"{self.graph.name}*"))
            return _matching(self.model_dir, _CONFIG_FILES) + graph
        adapter = _matching(self.adapter_dir, _ADAPTER_FILES) if self.adapter_dir else []
        if self.is_shipped:
            adapter += _matching(self.model_dir, ("answers*.onnx",))
        return _matching(self.model_dir, _CONFIG_FILES) + _weights(self.model_dir) + adapter

    def results(self, reading: ReadingConfig) -> Results | None:
        """What preparing a shipped model computes, if it is shipped too."""
        if self.adapter_dir is None or not self.is_shipped:
            return None
        return load_results(self.adapter_dir, self.identity(reading))

    def identity(self, reading: ReadingConfig) -> str:
        files = [path for path in self.files() if path.name != READING_FILE]
        return identity(files, reading)


def find_source(model: str) -> Source:
    """Finds a model's files, fetching them if they are on the hub.

    Args:
        model: One of `BUILTINS`, a directory, or a hub id. A directory wins over a hub id of the
            same name, as in `transformers`.
    """
    if model in BUILTINS:
        adapter = MODELS_DIR / model
        if not (adapter / ADAPTER_CONFIG).is_file():
            raise SetupError(
                f"the adapter of the model {model} is not in {adapter}; "
                "run prepare_model.py from a clone of the project"
            )
        check_shipped(adapter)
        return Source(model, model, _base_dir(adapter), adapter)
    if Path(model).is_dir():
        directory = Path(model).resolve()
        if directory.name in BUILTINS:
            raise SetupError(
                f"{directory} cannot be called {directory.name}, the name of a built-in model"
            )
        if (directory / ADAPTER_CONFIG).is_file():
            return Source(directory.name, directory.name, _base_dir(directory), directory)
        return _plain(directory.name, directory.name, directory)
    if HUB_ID.fullmatch(model):
        # Joined with `--`, as in the hub's cache, so that two owners' models never share a folder.
        return _plain(model.replace("/", "--"), model, _fetched(model))
    raise SetupError(
        f"no model {model!r}: there is no such directory, and it is no hub id like {_HUB_EXAMPLE}"
    )


def package_versions(*, needs_torch: bool) -> dict[str, str]:
    """The versions of the packages that make the files, without importing them."""
    needed = (*_TORCH_PACKAGES, *_PACKAGES) if needs_torch else _PACKAGES
    installed = {name: installed_version(name) for name in (*needed, *_ONNX_RUNTIMES)}
    missing = [name for name in needed if not installed[name]]
    if not any(installed[name] for name in _ONNX_RUNTIMES):
        missing.append(_ONNX_RUNTIMES[0])
    if missing:
        extra, other = ("cpu,models", " (or gpu,models)") if needs_torch else ("cpu", " (or gpu)")
        raise SetupError(
            f"preparing this model needs {', '.join(missing)}: {install_hint(extra)}{other}"
        )
    return {name: version for name, version in installed.items() if version}


def base_dir(name: str) -> Path:
    """Finds an encoder: a built-in model's, in a directory, or on the hub."""
    if name == MINILM:
        check_shipped(MINILM_DIR)
        return MINILM_DIR
    package_versions(needs_torch=True)  # before hundreds of megabytes are fetched
    if name == MPNET:
        return fetched_mpnet(cache_dir())
    if Path(name).is_dir():
        return _checked(Path(name).resolve())
    if not HUB_ID.fullmatch(name):
        raise SetupError(f"no encoder {name}: there is no such directory, and it is no hub id")
    return _checked(_fetched(name))


def first_line(error: BaseException) -> str:
    """The first line of a library's message, shortened."""
    return textwrap.shorten(str(error).strip().partition("\n")[0], _MAX_REASON, placeholder=" ...")


@contextmanager
def as_setup_error(message: str) -> Iterator[None]:
    """Turns any exception into a `SetupError`: a library raises many kinds for an unusual model.

    A full disk stays an `OSError`, since it says nothing of the model.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise
        raise SetupError(f"{message}: {first_line(error)}") from None


def _base_dir(adapter: Path) -> Path:
    try:
        base = json.loads((adapter / ADAPTER_CONFIG).read_bytes())["base_model_name_or_path"]
        sibling = adapter.parent / base
    except (ValueError, LookupError, TypeError) as error:
        raise SetupError(f"{adapter / ADAPTER_CONFIG} cannot be read: {error!r}") from None
    return base_dir(str(sibling) if sibling.is_dir() else base)


def _plain(name: str, label: str, folder: Path) -> Source:
    """A source without an adapter: of its weights, or where it or PyTorch lacks them, its graph."""
    graphs = (folder / graph for graph in (*_GRAPHS, *_GRAPHS_IN_INT8))
    graph = next(filter(Path.is_file, graphs), None)
    if graph and not (_has_torch() and _weights(folder)):
        parts = {name: (name,) for name in (CONFIG_FILE, TOKENIZER_FILE)}
        return Source(name, label, _checked(folder, parts), graph=graph)
    return Source(name, label, _checked(folder))


def _has_torch() -> bool:
    return all(map(installed_version, _TORCH_PACKAGES))


def _fetched(model_id: str) -> Path:
    """A model's files of the hub, or as far as it has them."""
    graphs = (_GRAPH_FILES, _GRAPHS_IN_INT8)
    for wanted in (_WEIGHT_FILES, _OLD_WEIGHT_FILES, *graphs) if _has_torch() else graphs:
        folder = _download(model_id, _CONFIG_FILES + wanted)
        if _matching(folder, wanted):
            return folder
    package_versions(needs_torch=True)  # without it, weights were not looked for
    return folder


def _download(model_id: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import errors, get_session, snapshot_download  # noqa: PLC0415

    hooks = get_session().event_hooks["request"]
    if _bound not in hooks:
        hooks.append(_bound)
    try:
        return Path(snapshot_download(model_id, allow_patterns=list(patterns)))
    except errors.IncompleteSnapshotError as error:
        return Path(error.snapshot_path)  # offline; the cache may be enough
    except errors.GatedRepoError:
        raise SetupError(
            f"the hub gives out {model_id} only to those who accepted its terms; "
            "accept them on its page and set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise SetupError(
            f"there is no directory {model_id}, and no model of that name on the hub, unless it is "
            "private: check the name or set HF_TOKEN"
        ) from None
    except Exception as error:  # the hub's client also raises errors of its HTTP library
        reason = first_line(error.__cause__ or error).rstrip(".")
        raise SetupError(
            f"there is no directory {model_id}, and it cannot be fetched from the Hugging Face hub "
            f"({reason}); without network use --model DIRECTORY, --model builtin, or HF_HOME with "
            "a cache copied from a machine that has fetched it"
        ) from None


def _bound(request: Any) -> None:  # noqa: ANN401 - of the hub's HTTP library
    """Bounds each wait for the hub: its client asks for a model's files without a timeout."""
    from huggingface_hub import constants  # noqa: PLC0415

    timeouts = request.extensions["timeout"]
    for name, timeout_s in timeouts.items():
        timeouts[name] = timeout_s or constants.HF_HUB_ETAG_TIMEOUT


def _checked(folder: Path, parts: Mapping[str, tuple[str, ...]] = _PARTS) -> Path:
    """Checks that no part is missing; transformers would make up an empty vocabulary."""
    for part, patterns in parts.items():
        if not _matching(folder, patterns):
            raise SetupError(f"{folder} is not complete: it has no {part}")
    return folder


def _weights(folder: Path) -> list[Path]:
    return _matching(folder, _WEIGHT_FILES) or _matching(folder, _OLD_WEIGHT_FILES)


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())

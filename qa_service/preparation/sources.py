"""Finds a model's files: in the project, in a local directory, or on the Hugging Face hub.

A directory may also hold an adapter, as finetune_model.py or `peft` writes it; its encoder is
looked up in the same three places. Nothing here imports torch or transformers, so that an
up-to-date model is recognised in a fraction of a second.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qa_service.errors import SetupError
from qa_service.instance.model_folder.manifest import (
    BUILTINS,
    GRAPH_ALONE,
    HUB_ID,
    ReadingConfig,
    is_graph_alone,
)
from qa_service.preparation.encoders import MINILM_DIR, MODELS_DIR, find_encoder
from qa_service.preparation.results import Results, identity, load_results

READING_FILE = "reading.json"

_HUB_EXAMPLE = "deepset/bert-base-cased-squad2"

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
_VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_WEIGHT_FILES = ("model*.safetensors", "model.safetensors.index.json")
_OLD_WEIGHT_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors", READING_FILE)

_NOT_PLAIN_LORA = (
    "alpha_pattern", "fan_in_fan_out", "layer_replication", "lora_bias", "rank_pattern",
    "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
    "use_rslora",
)  # fmt: skip
"""Settings of `peft` under which an adapter is merged in another way than `shipped.merged` does."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model's original files.

    Attributes:
        label: The manifest's name for it: one of `BUILTINS`, a hub id, or a directory's name.
        model_dir: Holds a model and its tokenizer, as `transformers` loads them.
        adapter_dir: Holds the `peft` adapter that makes an encoder answer questions.
    """

    name: str
    label: str
    model_dir: Path
    adapter_dir: Path | None = None

    @property
    def reading_file(self) -> Path:
        """The model's own reading settings, if the file exists."""
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
        adapter = _matching(self.adapter_dir, _ADAPTER_FILES) if self.adapter_dir else []
        if self.is_shipped:
            adapter += _matching(self.model_dir, ("answers*.onnx",))
        return _matching(self.model_dir, _CONFIG_FILES) + _weights(self.model_dir) + adapter

    def results(self, reading: ReadingConfig) -> Results | None:
        """What preparing a shipped model computes, if it is shipped too.

        Raises:
            SetupError: Its file is damaged.
        """
        if self.adapter_dir is None or not self.is_shipped:
            return None
        return load_results(self.adapter_dir, self.identity(reading))

    def identity(self, reading: ReadingConfig) -> str:
        """A hash of all that a shipped model's results depend on."""
        files = [path for path in self.files() if path.name != READING_FILE]
        return identity(files, reading)


def find_source(model: str) -> Source:
    """Finds a model's files, fetching them if they are on the hub.

    Args:
        model: One of `BUILTINS`, a directory, or a hub id. A directory wins over a hub id of the
            same name, as in `transformers`.

    Raises:
        SetupError: There is no such model, or it cannot be fetched.
    """
    if model in BUILTINS:
        return _builtin(model)
    directory = Path(model)
    if directory.is_dir():
        return _directory(directory.resolve())
    if HUB_ID.fullmatch(model):
        # Joined with `--`, as in the hub's cache, so that two owners' models never share a folder.
        return Source(model.replace("/", "--"), model, _fetched(model))
    raise SetupError(
        f"no model {model!r}: there is no such directory, and it is no hub id like {_HUB_EXAMPLE}"
    )


def base_dir(name: str) -> Path:
    """Finds an encoder: a built-in model's, in a directory, or on the hub.

    Raises:
        SetupError: There is no such encoder, or it cannot be fetched.
    """
    if known := find_encoder(name):
        return known
    if Path(name).is_dir():
        return _checked(Path(name).resolve())
    if not HUB_ID.fullmatch(name):
        raise SetupError(f"no encoder {name}: there is no such directory, and it is no hub id")
    return _fetched(name)


def first_line(error: BaseException) -> str:
    """The first line of a library's message, shortened."""
    return textwrap.shorten(str(error).strip().partition("\n")[0], _MAX_REASON, placeholder=" ...")


@contextmanager
def as_setup_error(message: str) -> Iterator[None]:
    """Turns any exception into a `SetupError`: a library raises many kinds for an unusual model."""
    try:
        yield
    except Exception as error:
        raise SetupError(f"{message}: {first_line(error)}") from None


def _builtin(name: str) -> Source:
    adapter = MODELS_DIR / name
    if not (adapter / ADAPTER_CONFIG).is_file():
        raise SetupError(
            f"the adapter of the model {name} is not in {adapter}; "
            "run prepare_model.py from a clone of the project"
        )
    return Source(name, name, _base_dir(adapter), adapter)


def _directory(directory: Path) -> Source:
    if directory.name in BUILTINS:
        raise SetupError(
            f"{directory} cannot be called {directory.name}, the name of a built-in model"
        )
    if (directory / ADAPTER_CONFIG).is_file():
        return Source(directory.name, directory.name, _base_dir(directory), directory)
    return Source(directory.name, directory.name, _checked(directory))


def _base_dir(adapter: Path) -> Path:
    """Finds the encoder that an adapter names."""
    try:
        base = json.loads((adapter / ADAPTER_CONFIG).read_bytes())["base_model_name_or_path"]
        sibling = adapter.parent / base
    except (ValueError, LookupError, TypeError) as error:
        raise SetupError(f"{adapter / ADAPTER_CONFIG} cannot be read: {error!r}") from None
    return base_dir(str(sibling) if sibling.is_dir() else base)


def _fetched(model_id: str) -> Path:
    folder = _download(model_id, _CONFIG_FILES + _WEIGHT_FILES)
    if not _matching(folder, _WEIGHT_FILES):
        folder = _download(model_id, _CONFIG_FILES + _OLD_WEIGHT_FILES)
    return _checked(folder)


def _download(model_id: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415

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


def _checked(folder: Path) -> Path:
    """Checks that no part is missing; transformers would make up an empty vocabulary."""
    if is_graph_alone(folder):
        raise SetupError(f"{folder} {GRAPH_ALONE}")
    parts = {
        "config.json": _matching(folder, ("config.json",)),
        "weights (model.safetensors or pytorch_model.bin)": _weights(folder),
        "tokenizer (tokenizer.json or a vocabulary)": _matching(folder, _VOCABULARY_FILES),
    }
    for part, files in parts.items():
        if not files:
            raise SetupError(f"{folder} is not a complete transformers model: it has no {part}")
    return folder


def _weights(folder: Path) -> list[Path]:
    return _matching(folder, _WEIGHT_FILES) or _matching(folder, _OLD_WEIGHT_FILES)


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())

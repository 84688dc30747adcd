"""A prepared model's `manifest.json`: what is in the folder and how its logits are read.

`prepare_model.py` writes it last, so a folder that has one is whole. The server reads it
before it starts an instance, and every instance reads it again for itself.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from qa_service.engine_catalogue import ONNX_FILE, PREPARING_FLAGS, ROWS
from qa_service.errors import SetupError

_PROGRAM = Path(__file__).resolve().parents[2] / "prepare_model.py"
MANIFEST_FILE = "manifest.json"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"


class ReadingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How texts are cut into windows and how logits become an answer.

    Attributes:
        max_answer_tokens: Longest span considered, in tokens.
        usual_answer_tokens: A span of more tokens than this loses score by its length.
        length_penalty: What each further token takes from a span's logit sum.
        window_tokens: Longest window, in tokens, question and special tokens included.
        window_overlap_tokens: Text tokens that two neighbouring windows share.
        temperature: Divides span logits before the softmax that makes a score (Guo et al.
            2017, "On Calibration of Modern Neural Networks").
        null_threshold: The minimum by which a span's logit sum must exceed that of the null
            answer (start and end on the CLS token, as in SQuAD 2.0 readers); None for a model
            that was never shown an unanswerable question and so cannot abstain.
        null_position: Where the CLS token is in a window, from its end if negative;
            `prepare_model.py` finds it.
        passage_weight: What a point of BM25 adds to the log scores of a passage's spans, and to
            that of its null answer, where several passages of a collection are compared.
    """

    max_answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 30
    usual_answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 12
    length_penalty: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    window_tokens: Annotated[int, msgspec.Meta(ge=16)] = 384
    window_overlap_tokens: Annotated[int, msgspec.Meta(ge=0)] = 128
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    null_threshold: float | None = None
    null_position: int = 0
    passage_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.2

    @property
    def null_log_score(self) -> float | None:
        """The log score of the null answer, on the scale of the spans'; None without one."""
        return None if self.null_threshold is None else self.null_threshold / self.temperature


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `manifest.json`.

    Attributes:
        name: The model's name, which is also its folder's.
        source: Where it came from: `builtin`, a hub id, or a directory's name.
        fingerprint: SHA-256 over everything the model was made from; prepare_model.py
            compares it to see whether there is anything to do.
        files: SHA-256 by file name.
        inputs: Names of the model's inputs, in the order of its `forward`.
        pad_token_id: What fills the end of shorter rows in a batch.
        max_sequence_tokens: The longest sequence the model has positions for.
        can_abstain: Whether the model answers "no answer" of its own accord.
        reading: How its logits are read.
        versions: Versions of the packages that made the files.
        may_pad: Whether rows of different lengths may be padded to one; not where a row's logits
            change with what is padded beside it.
        without: Why a file is not there that others have, by file name.
    """

    name: str
    source: str
    fingerprint: str
    files: dict[str, str]
    inputs: tuple[str, ...]
    pad_token_id: int
    max_sequence_tokens: Annotated[int, msgspec.Meta(ge=16)]
    can_abstain: bool
    reading: ReadingConfig
    versions: dict[str, str]
    may_pad: bool = True
    without: dict[str, str] = {}

    @property
    def window_tokens(self) -> int:
        """The longest window that the model is given."""
        return min(self.reading.window_tokens, self.max_sequence_tokens)


def load_manifest(model_dir: Path) -> Manifest:
    """Reads the manifest of a prepared model.

    Raises:
        SetupError: The folder holds no prepared model, or one of another format.
    """
    try:
        return msgspec.json.decode((model_dir / MANIFEST_FILE).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise SetupError(
            f"no prepared model in {model_dir}; make it with: {_making_command(model_dir)}"
        ) from None
    except (msgspec.DecodeError, OSError) as error:
        raise SetupError(
            f"{model_dir / MANIFEST_FILE} cannot be read ({error}); "
            f"make it again with: {preparing_program()}"
        ) from None


def fingerprint_of(model_dir: Path) -> str:
    """SHA-256 of a model's manifest; empty if there is none."""
    try:
        return hashlib.sha256((model_dir / MANIFEST_FILE).read_bytes()).hexdigest()
    except OSError:
        return ""


def model_files(engine_type: str, precision: str) -> list[str]:
    """The files that an instance loads; without an engine, those that cost no time to check."""
    row = ROWS.get((engine_type, precision))
    return [CONFIG_FILE, TOKENIZER_FILE, *([row.file] if row and row.file else [])]


def check_files(model_dir: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Sees that files are what the manifest says; those that it does not name are left alone.

    Raises:
        SetupError: One is missing, or is another.
    """
    for name in names:
        if expected := manifest.files.get(name):
            try:
                with (model_dir / name).open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise SetupError(f"{model_dir / name} cannot be read: {error.strerror}") from None
            if found != expected:
                raise SetupError(
                    f"{model_dir / name} is not what its manifest says: it was changed, or is not "
                    "all there"
                )


def preparing_program() -> str:
    """What prepares models here: the installed program, or the one beside the package."""
    is_installed = Path(sys.argv[0]).name.startswith("qa-") or not _PROGRAM.is_file()
    return "qa-prepare-model" if is_installed else f"python {_PROGRAM.name}"


def _making_command(model_dir: Path) -> str:
    """The command that makes a folder: its name says of which model, `--` standing for `/`."""
    output = "" if model_dir.parent.name == "saved_models" else f" --output_dir {model_dir.parent}"
    return f"{preparing_program()} --model {model_dir.name.replace('--', '/')}{output}"


def prepared_file(model_dir: Path, manifest: Manifest, name: str) -> Path:
    """Finds a file of a prepared model.

    Raises:
        SetupError: The model was not prepared with it.
    """
    if name in manifest.files:
        return model_dir / name
    if reason := manifest.without.get(name) or manifest.without.get(ONNX_FILE):
        raise SetupError(f"{manifest.name} has no {name}: {reason}")
    command = (
        f"{preparing_program()} --model {manifest.source} {PREPARING_FLAGS.get(name, '')}".rstrip()
    )
    raise SetupError(f"there is no {name} in {model_dir}; make it with: {command}")


def save_manifest(model_dir: Path, manifest: Manifest) -> None:
    """Writes the manifest, indented for people; whole or not at all."""
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    new = model_dir / f".{MANIFEST_FILE}.new"
    new.write_bytes(encoded + b"\n")
    new.replace(model_dir / MANIFEST_FILE)

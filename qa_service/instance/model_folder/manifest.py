"""A prepared model's `manifest.json`: the files in the folder, and how its logits are read.

`prepare_model.py` writes it last, so a folder with a manifest is complete. The server reads it
before it starts an instance, and every instance reads it again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from qa_service.engine_catalogue import ONNX_FILE, PREPARING_FLAGS, ROWS
from qa_service.errors import SetupError
from qa_service.files import SAVED_MODELS, read_file, saved_models, sha256_of
from qa_service.installation import preparing_program

BUILTINS = ("builtin", "builtin-base")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
"""A model's name on the Hugging Face hub: OWNER/NAME, or NAME alone."""
MANIFEST_FILE = "manifest.json"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
KNOWN_ANSWERS_FILE = "known_answers.json"


class ReadingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How texts are cut into windows and how logits become an answer.

    Attributes:
        max_answer_tokens: The longest span considered.
        usual_answer_tokens: The longest span without a length penalty.
        length_penalty: What each further token subtracts from a span's logit sum.
        window_tokens: The longest window, question and special tokens included.
        window_overlap_tokens: Text tokens that two neighbouring windows share.
        temperature: Divides span logits before the softmax that makes a score (Guo et al.
            2017, "On Calibration of Modern Neural Networks").
        null_threshold: The minimum by which a span's logit sum must exceed that of the null
            answer (start and end on the CLS token, as in SQuAD 2.0 readers); None for a model
            that was never trained on unanswerable questions and so cannot abstain.
        collection_threshold: What `null_threshold` is for passages of a collection, where a search
            has found the texts; None for the same.
        null_position: Where the CLS token is in a window, from its end if negative.
        passage_weight: What a point of a search's score adds to the log scores of a passage's spans
            and null answer, when passages of a collection are compared.
        similarity_weight: What the highest cosine of a question's passages takes off the null
            answer's log score, counted from `TYPICAL_COSINE`: where nothing is about
            what is asked, there is no answer.
        lead_weight: What a point by which the best passage's search score leads takes off it too,
            up to `MAX_LEAD` points: a search that is sure has mostly found the answer.
        name_weight: What each name or year of a question that is missing even in the passage with
            most of them adds to it (`asked_names`).
        score_margin: By how much the null answer's log score is higher where answers of a
            collection are scored than where is decided whether there is one: an answer that is
            hardly better than none is mostly wrong, which its score should say.
    """

    max_answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 30
    usual_answer_tokens: Annotated[int, msgspec.Meta(ge=1)] = 12
    length_penalty: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    window_tokens: Annotated[int, msgspec.Meta(ge=16)] = 384
    window_overlap_tokens: Annotated[int, msgspec.Meta(ge=0)] = 128
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    null_threshold: float | None = None
    collection_threshold: float | None = None
    null_position: int = 0
    passage_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.2
    similarity_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    lead_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    name_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    score_margin: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    @property
    def null_log_score(self) -> float | None:
        """The null answer's log score, on the spans' scale; None if the model cannot abstain."""
        return None if self.null_threshold is None else self.null_threshold / self.temperature

    @property
    def collection_null_log_score(self) -> float | None:
        """The same, where passages of a collection are read."""
        if self.null_threshold is None or self.collection_threshold is None:
            return self.null_log_score
        return self.collection_threshold / self.temperature


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `manifest.json`.

    Attributes:
        source: `builtin`, a hub id, or a directory's name.
        fingerprint: SHA-256 over everything the model was made from; `prepare_model.py` compares
            it to see whether the folder is up to date.
        files: SHA-256 by file name.
        inputs: The model's inputs, in the order of its `forward`.
        pad_token_id: Fills the end of shorter rows in a batch.
        max_sequence_tokens: The longest sequence the model has positions for.
        can_abstain: Whether the model itself can answer "no answer".
        versions: Of the packages that made the files.
        may_pad: Whether rows may be padded to one length; not if padding changes a row's logits.
        without: Why an optional file is missing, by file name.
        differences: By engine and precision, as in `onnx int8`, and by the known row's name: the
            largest difference of a logit on the CPU that prepared the model.
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
    differences: dict[str, dict[str, float]] = {}

    @property
    def window_tokens(self) -> int:
        return min(self.reading.window_tokens, self.max_sequence_tokens)

    @property
    def computing_files(self) -> dict[str, str]:
        """The files on which answers and their times depend: all but the known answers."""
        return {name: hash for name, hash in self.files.items() if name != KNOWN_ANSWERS_FILE}


def load_manifest(model_dir: Path) -> Manifest:
    try:
        return msgspec.json.decode(read_file(model_dir / MANIFEST_FILE), type=Manifest)
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
        return hashlib.sha256(read_file(model_dir / MANIFEST_FILE)).hexdigest()
    except OSError:
        return ""


def model_files(engine_type: str, precision: str) -> list[str]:
    """The files that an instance loads; without an engine, only those quick to check."""
    row = ROWS.get((engine_type, precision))
    return [CONFIG_FILE, TOKENIZER_FILE, *([row.file] if row and row.file else [])]


def check_files(model_dir: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Compares files with their SHA-256 in the manifest; skips files that it does not name."""
    for name in names:
        if expected := manifest.files.get(name):
            try:
                found = sha256_of(model_dir / name)
            except OSError as error:
                raise SetupError(f"{model_dir / name} cannot be read: {error.strerror}") from None
            if found != expected:
                raise SetupError(
                    f"{model_dir / name} is not what its manifest says: it was changed, or is not "
                    "all there"
                )


def is_on_hub(model: Path) -> bool:
    """Whether what is no folder may be the name of a model on the hub."""
    is_path = model.exists() or (model.parent != Path() and model.parent.exists())
    is_name = HUB_ID.fullmatch(str(model)) is not None
    return is_name and not is_path and model.parent != SAVED_MODELS


def folder_of(source: str, models: Path | None = None) -> Path:
    """The folder in which `prepare_model.py` puts a built-in model, or one of the hub.

    Args:
        models: The folder of prepared models, if it is not the usual one.
    """
    return (models or saved_models()) / source.replace("/", "--")


def _making_command(model_dir: Path) -> str:
    """The command that prepares a folder's own model, or one of the folder's name."""
    if (model_dir / CONFIG_FILE).is_file():
        return f"{preparing_program()} --model {model_dir}"
    if is_on_hub(model_dir):
        name = str(model_dir)
        return f"{preparing_program()} --model {name}, which writes {folder_of(name)}"
    is_usual = model_dir.parent in (SAVED_MODELS, Path())
    output = "" if is_usual else f" --output_dir {model_dir.parent}"
    return f"{preparing_program()} --model {model_dir.name.replace('--', '/')}{output}"


def prepared_file(model_dir: Path, manifest: Manifest, name: str) -> Path:
    if name in manifest.files:
        return model_dir / name
    if reason := manifest.without.get(name) or manifest.without.get(ONNX_FILE):
        raise SetupError(f"{manifest.name} has no {name}: {reason}")
    command = (
        f"{preparing_program()} --model {manifest.source} {PREPARING_FLAGS.get(name, '')}".rstrip()
    )
    raise SetupError(f"there is no {name} in {model_dir}; make it with: {command}")


def save_manifest(model_dir: Path, manifest: Manifest) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    new = model_dir / f".{MANIFEST_FILE}.new"
    new.write_bytes(encoded + b"\n")
    new.replace(model_dir / MANIFEST_FILE)

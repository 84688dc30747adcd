"""Prepares the encoder that embeds passages and questions: `saved_models/encoder`.

It is all-MiniLM-L6-v2, the sentence encoder under the built-in model, without the adapter.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec

from qa_service.errors import SetupError
from qa_service.files import sha256_of
from qa_service.preparation.encoders import MINILM, MINILM_DIR, are_whole, check_shipped
from qa_service.preparation.folder import locked, replacing, say
from qa_service.preparation.sources import package_versions
from qa_service.retrieval.encoder_folder import (
    DEFAULT_ENCODER,
    ENCODER_FILE,
    KNOWN_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    EncoderManifest,
    load_encoder_manifest,
)

MAX_TOKENS = 256
"""As many as the encoder was published for; passages have about 150, and their headings."""

FILES = (ENCODER_FILE, TOKENIZER_FILE, KNOWN_FILE)

_FORMAT_VERSION = 1
"""To be incremented when embeddings can no longer be compared with those made before."""

_PUBLISHED = [
    ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
]
"""SHA-256 of the files that all-MiniLM-L6-v2 was published with: the shipped ones are the same but
for a rounding that changes no embedding's cosine by more than int8 does."""


def prepare_encoder(output_dir: Path) -> Path:
    """Makes the encoder's folder, unless it is there and whole."""
    target = output_dir / DEFAULT_ENCODER.name
    check_shipped(MINILM_DIR)
    with locked(target, lambda: say(f"waiting for another run to finish {target}")):
        # Whose weights embed a text, and how: the rounding differs a little between machines.
        parts = {"format": _FORMAT_VERSION, "max_tokens": MAX_TOKENS, "files": _PUBLISHED}
        identity = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
        if is_complete(target, identity):
            say(f"{target} is up to date")
            return target
        if target.exists() and not (target / MANIFEST_FILE).is_file():
            raise SetupError(f"{target} is no encoder; move it away, or choose --output_dir")
        started = time.monotonic()
        say("preparing the encoder of passages")
        with replacing(target) as folder:
            _make(identity, folder)
        say(f"prepared {target} in {time.monotonic() - started:.0f} s")
    return target


def is_complete(folder: Path, identity: str) -> bool:
    try:
        manifest = load_encoder_manifest(folder)
    except SetupError:
        return False
    files = {name: manifest.files.get(name, "") for name in FILES}
    return manifest.identity == identity and are_whole(folder, files)


def _make(identity: str, folder: Path) -> None:
    from qa_service.preparation import sentence_graph  # noqa: PLC0415
    from qa_service.preparation.source_model import quiet_libraries  # noqa: PLC0415

    say("converting it to int8, and comparing its embeddings with those in fp32")
    with quiet_libraries():
        dimensions, cosine = sentence_graph.write(MINILM_DIR, folder, MAX_TOKENS)
    manifest = EncoderManifest(
        name=MINILM,
        identity=identity,
        dimensions=dimensions,
        max_tokens=MAX_TOKENS,
        files={name: sha256_of(folder / name) for name in FILES},
        versions=package_versions(needs_torch=False),
    )
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST_FILE).write_bytes(encoded + b"\n")
    say(f"its embeddings have a cosine of {cosine:.3f} with those in fp32, or more")

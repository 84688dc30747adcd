"""Decides how a prepared model's logits are read: by flags, by its own file or by its name."""

from __future__ import annotations

import re

import msgspec

from qa_service.errors import SetupError
from qa_service.files import read_text
from qa_service.instance.model_folder.manifest import ReadingConfig
from qa_service.preparation.sources import Source

NOT_ASKED = "unless it does when it is asked; or give --can_abstain"
"""Why a model is said not to abstain that neither flags nor its files or name say anything of."""

_ABSTAINING_NAME = re.compile(r"squad[-_]?v?2(?!\d)", re.IGNORECASE)


def choose_reading(
    source: Source, can_abstain: bool | None = None, null_threshold: float | None = None
) -> tuple[ReadingConfig, str]:
    """Decides how the model's logits are read.

    A model's config does not say whether it was trained to abstain. Flags win over the model's own
    `reading.json`, and that over its name; if none of them says it, the model is asked when it is
    loaded. A flag that is not given is None.

    Returns:
        The decision, and its part on "no answer" in words.
    """
    if null_threshold is not None and can_abstain is False:
        raise SetupError("--null_threshold makes no sense with --no-can_abstain")
    reading, why = _own_reading(source)
    threshold = reading.null_threshold
    if can_abstain is not None or null_threshold is not None:
        why = "as you chose"
        threshold = None if can_abstain is False else threshold or 0.0
    if null_threshold is not None:
        threshold = null_threshold
        reading = msgspec.structs.replace(reading, collection_threshold=None)
    verb = "never abstains" if threshold is None else f"abstains below a threshold of {threshold:g}"
    return msgspec.structs.replace(reading, null_threshold=threshold), f"it {verb} ({why})"


def _own_reading(source: Source) -> tuple[ReadingConfig, str]:
    path = source.reading_file
    try:
        reading = msgspec.json.decode(read_text(path), type=ReadingConfig)
        return reading, f"its {path.name} says so"
    except FileNotFoundError:
        pass
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read {path}: {error}") from None
    if _ABSTAINING_NAME.search(source.label):
        return ReadingConfig(null_threshold=0.0), "guessed from its name; or give --no-can_abstain"
    return ReadingConfig(), NOT_ASKED

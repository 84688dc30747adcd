"""Names that a client has probably meant otherwise: `context` for `text`, `topk` for `top_k`.

A field that the server does not know is ignored, so that clients may send more than it reads. One
that is nearly a field of the server, where that field is missing, would be ignored to the client's
cost: its sender is asked what it means.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

MAX_NAMED_CHARS = 64
"""Of a client's name that a message repeats."""
MAX_COMPARED = 32
"""Unknown names that are looked at: comparing one takes some 50 µs."""
SIMILARITY = 0.85
"""difflib's ratio: a letter too many, missing or exchanged in a name of seven letters."""

OTHER_NAMES = {
    **dict.fromkeys(("context", "passage", "paragraph", "content", "document", "txt"), "text"),
    **dict.fromkeys(("q", "query"), "question"),
    **dict.fromkeys(("k", "nbest", "topn"), "top_k"),
    "timeout": "timeout_ms",
}
"""What other servers call a field, in small letters without `_` and `-`."""


def near_miss(
    given: Collection[str], known: Collection[str], other_names: Mapping[str, str] = OTHER_NAMES
) -> str:
    """What is wrong with a name; empty if none is nearly that of a missing field.

    Args:
        other_names: What else a field may be called, folded.
    """
    unknown = [name for name in given if name not in known]
    missing = {name for name in known if name not in given}
    if "collection" in given:
        missing.discard("text")
    for name in (name[:MAX_NAMED_CHARS] for name in unknown[:MAX_COMPARED]):
        meant = {_folded(one): one for one in missing}.get(_folded(name))
        meant = meant or other_names.get(_folded(name), "")
        if meant not in missing:
            close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=SIMILARITY)
            meant = close[0] if close else ""
        if meant:
            return f"there is no `{name}`: did you mean `{meant}`?"
    return ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")

"""Inline markup of reStructuredText: what it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qa_service.retrieval.blocks import scripted
from qa_service.retrieval.formats.markdown_source import role_text

_MARKUP = re.compile(
    r"(?P<literal>``(?P<code>[^`](?:[^`]|`(?!`))*?)``(?=[^\w`]|$|_))"
    r"|(?P<role>:[\w:+.-]{1,60}:)?(?<![\w`\\])`(?P<text>(?=[^\s`])(?:[^`\\]|\\.)*)`(?P<after>:[\w:+.-]{1,60}:|__?(?!\w))?"
    r"|(?<![\w*\\])\*\*(?P<strong>[^\s*](?:[^*]|\*(?!\*))*?)\*\*(?![\w*])"
    r"|(?<![\w*\\])\*(?P<emphasis>[^\s*](?:[^*\\]|\\.)*?)(?<![\s\\])\*(?![\w*])"
    r"|(?<![\w|\\])\|(?P<name>[^\s|](?:[^|\n]*[^\s|])?)\|(?!\w)_{0,2}"
    r"|(?P<note>\s?\[(?:\#[\w.-]*|\d+|\*)\]_(?!\w))"
    r"|\[(?P<citation>[\w.-]+)\]_(?!\w)"
    r"|(?<![\w:/.\\@-])(?P<reference>[^\W_](?:[\w.+-]*[^\W_])?)__?(?=[\s.,;:!?)\]}'\"]|$)"
    r"|\\(?P<escaped>[\s\S]?)"
)
_TRIGGERS = re.compile(r"[`*|_\\]")
_WIKI = {"pep": "PEP ", "rfc": "RFC ", "issue": "#", "pr": "#", "pull": "#", "gh": "#"}
_VERBATIM = frozenset({"math", "code", "abbr", "regexp", "token"})
_NESTED = 3


def inline_text(text: str, substitutions: Mapping[str, str], depth: int = 0) -> str:
    """A text as it is shown.

    Args:
        substitutions: What `|name|` stands for.
    """
    if not _TRIGGERS.search(text):
        return text

    def shown(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return _interpreted(found, text)
        inner = found["strong"] or found["emphasis"]
        if inner is not None:
            return inline_text(inner, substitutions, depth + 1) if depth < _NESTED else inner
        if found["name"] is not None:
            return substitutions.get(found["name"].lower(), found["name"])
        if found["citation"] is not None:
            return f"[{found['citation']}]"
        return found["code"] or found["reference"] or (found["escaped"] or "").strip()

    return _MARKUP.sub(shown, text)


def _interpreted(found: re.Match[str], text: str) -> str:
    after = found["after"] or ""
    role = (found["role"] or (after if after.startswith(":") else "")).strip(":")
    name = role.rsplit(":", 1)[-1].lower()
    words = found["text"] if "\\" not in found["text"] else re.sub(r"\\(.?)", r"\1", found["text"])
    if name in _VERBATIM:
        return words
    if name in {"sup", "superscript", "sub", "subscript"}:
        return scripted(name[:3], text[: found.start()].removesuffix("\\ "), words)
    shown = role_text(words)
    if name in _WIKI and shown[:1].isdigit():
        return _WIKI[name] + shown.replace("#", " § ")
    if name == "doc" and shown == words:
        return shown.rsplit("/", 1)[-1]
    return shown

"""Takes from Markdown what is for other programs: templates' tags, directives, attributes, imports.

Dialects write further things between the lines: Hugo's and Jekyll's tags, MkDocs' and Docusaurus'
boxes, MyST's directives, JSX. What is left of them is the text that they show, as plain Markdown.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FENCE = re.compile(
    r"(?P<lead>[ \t]*(?:>[ \t]?)*(?:[-*+][ \t]+|\d{1,3}[.)][ \t]+)?)"
    r"(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>.*)"
)
_DIRECTIVE = re.compile(r"\{(?P<name>[\w:.-]+)\}[ \t]*(?P<argument>.*)")
_CONTAINER = re.compile(
    r"(?P<name>[\w-]+)(?![\w.])[ \t]*(?:\[(?P<label>[^\]]*)\]|(?P<title>[^{\n:]*))"
)
_CODE_TAG = re.compile(r"[ \t]*\{\{<[ \t]*(?P<end>/?)[ \t]*highlight\b.*>\}\}[ \t]*")
_BOX = re.compile(
    r"(?P<lead>[ \t]*)(?:!!!|\?\?\?\+?|===[!+]?(?=[ \t]))[ \t]*"
    r"(?P<name>[\w-]*)[^\"\n]*(?:\"(?P<title>.*)\")?[ \t]*$"
)
_BLOCK = re.compile(r"[ \t]*///[ \t]*(?P<name>[\w-]*)[ \t]*(?:\|[ \t]*(?P<title>.*))?$")
_OPTION = re.compile(r"[ \t]*:[\w-]+:(?:[ \t].*)?$")
_DROPPED = re.compile(
    r"[ \t]*(?:"
    r"\([\w:. -]+\)=|\{:.*\}|\[\[_?TOC_?\]\]|\[TOC\]|%(?:[ \t].*)?"
    r"|\{\{#\w+.*\}\}|\{\*.*\*\}|\{!.*!\}|-+8<-+.*|<<<.*"
    r"|import\b.*\bfrom[ \t]*['\"].*['\"];?|import[ \t]*['\"].*['\"];?"
    r"|export[ \t]+(?:const|default|function)\b.*"
    r")[ \t]*"
)
_NAME = r"(?![A-Z\d]+[\s/>])[A-Z][\w.]*"  # HTML's names may be in uppercase letters alone
_JSX = re.compile(rf"[ \t]*</?{_NAME}(?:\s+[A-Za-z_:][\w:.-]*=?)*\s*/?>\s*")
_JSX_START, _JSX_END = re.compile(rf"[ \t]*<{_NAME}(?:[ \t][^<>]*)?"), re.compile(r"(?<!=)>\s*$")
_VALUE, _MAX_NESTED = re.compile(r"\"[^\"]*\"|'[^']*'|\{[^{}]*\}"), 8
_SHOWN = re.compile(  # strings of properties and of records in their values
    r"\b(?:label|title|header|summary|caption|description|text|hint|command|(?P<name>name))"
    r"\s*[=:]\s*(?P<quote>[\"'])(?P<text>(?:\\.|(?!(?P=quote)|\\).)*)(?P=quote)|(?P<brace>[{}])"
)
_NAMED = re.compile(
    r"(?=.*\bname=[\"'](?P<name>[^\"']+))(?=.*\btype=[\"'](?P<type>[^\"']+)).*[^/]>", re.DOTALL
)
"""What a reference says of a property, as in `<Property name="port" type="number">`."""
_TAG_START, _TAG_END = re.compile(r"\{\{[<%]|\{%"), re.compile(r"[>%]\}\}|%\}")
_CODE_OR_TAG = re.compile(
    r"(?P<code>(?<![`\\}])(?P<ticks>`+)(?!`)(?:.|\n)+?(?<!`)(?P=ticks)(?!`))"
    r"|\{\{[<%](?P<short>(?:(?!\{\{).)*?)[%>]\}\}"
    r"|\{%(?P<tag>(?:(?!\{%).)*?)%\}"
    r"|(?P<property>[ \t]\w+=\{\{[^<>\n]*?\}\}(?=[ \t/>]))"
    r"|\{\{(?P<value>(?:(?!\{\{).)*?)\}\}"
    r"|<%(?:(?!<%).)*?%>"
    r"|\{(?P<role>[\w:+.-]+)\}(?P<open>`+)(?P<target>[^`\n]+)(?P=open)"
    r"|(?P<attributes>[ \t]?\{[ \t]*:?[ \t]*[.#][^{}\n]*\})"
    r"|(?P<data>(?<=[\])`*_])\{:?[ \t]*[\w-]+=[^{}\n]*\})"
    r"|(?P<note>\[\^[^\]\s]+\](?!:))"
    r"|(?P<icon>:(?:material|fontawesome|octicons|simple)-[\w-]+:)"
    r"|\[\[(?P<wiki>[^\[\]\n|]+)(?:\|(?P<shown>[^\[\]\n]+))?\]\]"
)
_NOTE = re.compile(r"[ \t]*\[\^[^\]\s]+\]:[ \t]*")
_TEXT = re.compile(r"\b(?:text|title|label|header)[ \t]*=[ \t]*[\"'](?P<text>[^\"']+)[\"']")
_TRIGGERS = re.compile(
    r"[{<][{%:]|\}`|\[\^|\{[ \t]*[:.#]|[\])`*_]\{|:(?:material|font|octi|simple)|\[\[|<%"
)
_TARGET = re.compile(r"(?P<text>.*?)[ \t]*<[^<>]*>", re.DOTALL)

_CODES = frozenset({
    "code", "code-block", "sourcecode", "code-cell", "literalinclude", "parsed-literal", "doctest",
    "testcode", "prompt", "console", "eval-rst", "highlight", "math",
})  # fmt: skip
_SILENT = frozenset({
    "toctree", "image", "mermaid", "include", "raw", "index", "only", "contents",
    "currentmodule", "bibliography", "tableofcontents", "plantuml", "graphviz", "video", "iframe",
})  # fmt: skip
BOXES = frozenset({
    "attention", "caution", "danger", "error", "hint", "important", "note", "tip", "warning",
    "info", "seealso", "see-also", "success", "question", "failure", "bug", "example", "quote",
    "abstract", "summary", "check", "details", "deprecated",
})  # fmt: skip
"""Boxes whose kind is said before their text."""
BOX_MARK = "\ue010"
"""Begins a paragraph that is put before the next one."""
RST_CODE = "eval-rst"
_TAB_COLUMNS = 4
_NO_TAG, _MAX_TAG_LINES, _MAX_TAG_CHARS = 1 << 30, 100, 1 << 16


def clean(text: str, first_line: int = 1) -> tuple[list[str], list[int], bool]:
    """A dialect's lines as plain Markdown, their numbers in the file, and whether it is MDX."""
    cleaner = _Cleaner()
    for number, line in enumerate(text.split("\n"), first_line):
        cleaner.take(line, number)
    cleaner.end()
    return cleaner.lines, cleaner.numbers, cleaner.is_mdx


class _Fence(NamedTuple):
    mark: str
    is_code: bool
    is_shown: bool


class _Cleaner:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.is_mdx = False
        self._number = 0
        self._fences: list[_Fence] = []
        self._dedents: list[tuple[int, int]] = []
        """How far boxes indent their text, and how many columns of that are taken off."""
        self._indent, self._tag_indent = 0, _NO_TAG
        """Of this line, and of JSX's tag if that is in the line before."""
        self._in_options = False
        self._in_yaml = False
        self._tag_lines: list[tuple[int, str]] = []
        self._in_html_table = False

    def take(self, line: str, number: int) -> None:
        self._number = number
        line = self._dedented(line)
        if self._fences and self._fences[-1].is_code:
            self._take_code(line)
        elif found := _FENCE.match(line):
            self.end()
            self._take_fence(line, found)
        elif self._in_options and line.strip() == "---":  # around options that are YAML
            self._in_yaml = not self._in_yaml
            self._in_options = self._in_yaml
            self._add("")
        elif self._in_options and (self._in_yaml or _OPTION.match(line)):
            self._add("")
        else:
            self._in_options = False
            self._take_prose(line)

    def end(self) -> None:
        """What began as a tag is none: it is text."""
        for number, line in self._tag_lines:
            self.lines.append(self._within_table(_inline(line)))
            self.numbers.append(number)
        self._tag_lines = []

    def _add(self, line: str) -> None:
        self.lines.append(line)
        self.numbers.append(self._number)

    def _add_block(self, words: str) -> None:
        """Adds a line that is a paragraph; of a box's kind, one that goes before the next."""
        for line in ("", words, "") if words else ("",):
            self._add(line)

    def _add_box(self, name: str, title: str | None) -> None:
        kind = f"{BOX_MARK}{name.replace('-', ' ').capitalize()}: "
        self._add_block(title or (kind if name.lower() in BOXES else ""))

    def _add_jsx(self, tag: str) -> None:
        self._add_block("")
        for words in _texts_of(tag):
            self._add_block(words)
        if found := _NAMED.fullmatch(tag.rstrip()):
            self._add_block(f"{BOX_MARK}{found['name']} ({found['type']}): ")
        # What only looks like JSX, such as `<Enter>`, is not closed.
        self.is_mdx |= tag.lstrip().startswith("</") or tag.rstrip().endswith("/>")
        if not tag.lstrip().startswith("</") and not tag.rstrip().endswith("/>"):
            self._tag_indent = self._indent

    def _dedented(self, line: str) -> str:
        if not line.strip():
            return line
        expanded = line.expandtabs(_TAB_COLUMNS)
        self._indent = len(expanded) - len(expanded.lstrip())
        before = self._dedents[-1][1] if self._dedents else 0
        if self._indent > self._tag_indent:
            self._dedents.append((self._indent, before + self._indent - self._tag_indent))
        self._tag_indent = _NO_TAG
        while self._dedents and self._indent < self._dedents[-1][0]:
            self._dedents.pop()
            self._add("")
        return expanded[self._dedents[-1][1] :] if self._dedents else line

    def _take_code(self, line: str) -> None:
        fence = self._fences[-1]
        bare = line.lstrip(" \t>")
        if fence.mark == "{{<":
            is_end = (tag := _CODE_TAG.fullmatch(line)) is not None and tag["end"]
            self._fences = self._fences[:-1] if is_end else self._fences
            self._add("```" if is_end else line)
        elif bare.startswith(fence.mark) and not bare.strip(fence.mark[0] + " \t\r"):
            self._fences.pop()
            self._add(line if fence.is_shown else "")
        elif fence.is_shown:
            self._add(line)

    def _take_fence(self, line: str, found: re.Match[str]) -> None:
        mark, info = found["fence"], found["info"].strip()
        directive = _DIRECTIVE.match(info)
        if not info and self._fences and self._fences[-1].mark[0] == mark[0]:
            self._fences.pop()
            self._add("")
        elif mark[0] != ":" and not directive:
            if mark[0] == "`" and "`" in info:
                self._take_prose(line)
                return
            self._fences.append(_Fence(mark, is_code=True, is_shown=True))
            self._add(f"{found['lead']}{mark}")
        elif not info:
            self._add("")
        elif directive:
            self._open_directive(found["lead"], mark, directive)
        else:
            self._fences.append(_Fence(mark, is_code=False, is_shown=True))
            if box := _CONTAINER.match(info):
                self._add_box(box["name"], (box["label"] or box["title"] or "").strip())

    def _open_directive(self, lead: str, mark: str, directive: re.Match[str]) -> None:
        name, argument = directive["name"].lower(), directive["argument"].strip()
        self._in_options = True
        is_code = name in _SILENT or name in _CODES
        self._fences.append(_Fence(mark, is_code, is_shown=name not in _SILENT))
        if name in _CODES:
            self._in_options = False
            self._add(f"{lead}{mark.replace(':', '`')}{RST_CODE if name == 'eval-rst' else ''}")
        elif name in BOXES:
            self._add_box(name, "")
            self._add(_inline(argument))
        elif name not in _SILENT and name != "figure":
            self._add_block(_inline(argument))

    def _take_prose(self, line: str) -> None:
        tags = [*_TAG_START.finditer(line)] if "{" in line else []
        # What is indented by four columns is code, except in MDX, which has no such code.
        may_be_jsx = line.lstrip()[:1] == "<" and (
            self.is_mdx or line.expandtabs(_TAB_COLUMNS)[:4].strip() != ""
        )
        is_jsx = may_be_jsx and _is_jsx(line)
        is_open = (tags and not _TAG_END.search(line, tags[-1].end())) or (
            may_be_jsx and _JSX_START.fullmatch(line)
        )
        if self._tag_lines or is_open:
            self._take_tag(line)
        elif _DROPPED.fullmatch(line):
            self._add("")
        elif "{{<" in line and _CODE_TAG.fullmatch(line):
            self._fences.append(_Fence("{{<", is_code=True, is_shown=True))
            self._add("```")
        elif line[:20].lstrip()[:3] in {"!!!", "???", "==="} and (box := _BOX.match(line)):
            self._add_box(box["name"], box["title"])
            columns = self._indent + _TAB_COLUMNS
            self._dedents.append((columns, columns))
        elif line.lstrip().startswith("///") and (box := _BLOCK.match(line)):
            self._add_box(box["name"], box["title"])
        elif is_jsx:
            self._add_jsx(line)
        else:
            self._add(self._within_table(_inline(line)))

    def _take_tag(self, line: str) -> None:
        """Takes a line of a tag over several lines: a template's, or JSX, which shows its label."""
        self._tag_lines.append((self._number, line))
        tag = " ".join(line for _, line in self._tag_lines)
        is_jsx = _JSX_START.fullmatch(self._tag_lines[0][1]) is not None
        if is_jsx and _JSX_END.search(line) and _is_jsx(tag):
            self._tag_lines = []
            self._add_jsx(tag)
        elif not is_jsx and _TAG_END.search(line):
            self._tag_lines = []
            self._add(_inline(tag))
        elif (is_jsx and not line.strip()) or (
            len(self._tag_lines) > _MAX_TAG_LINES or len(tag) > _MAX_TAG_CHARS
        ):
            self.end()

    def _within_table(self, line: str) -> str:
        """Keeps HTML's tables in one piece, which an empty line would end."""
        lower = line.lower() if "<" in line else ""
        if "<table" in lower:
            self._in_html_table = True
        if "</table" in lower:
            self._in_html_table = False
        elif self._in_html_table and not line.strip():
            return "<!-- -->"
        return line


def _is_jsx(tag: str) -> bool:
    """Whether it is a tag of JSX and nothing else, whatever its properties' values hold."""
    for _ in range(_MAX_NESTED):
        tag = _VALUE.sub("", tag)
    return _JSX.fullmatch(tag) is not None


def _texts_of(tag: str) -> list[str]:
    """What a tag's properties show, and as items what records in their values do."""
    depth, groups = 0, [("", list[str]())]
    for found in _SHOWN.finditer(tag):
        if found["brace"]:
            depth += 1 if found["brace"] == "{" else -1
            groups.append(("- " if depth > 0 else "", []))
        elif depth > 0 or not found["name"]:
            groups[-1][1].append(found["text"])
    return [mark + ": ".join(texts) for mark, texts in groups if texts]


def _inline(line: str) -> str:
    if not _TRIGGERS.search(line):
        return line
    return _CODE_OR_TAG.sub(_shown, _NOTE.sub("", line, count=1))


def _shown(found: re.Match[str]) -> str:
    if found["code"]:
        return found["code"]
    if found["role"]:
        ticks = found["open"]
        return f"{ticks}{role_text(found['target'])}{ticks}"
    if found["property"] and "<" not in found.string[: found.start()]:
        return found["property"].partition("{{")[0]
    if found["wiki"]:
        return found["shown"] or found["wiki"]
    tag = found["short"] or found["tag"] or ""
    text = _TEXT.search(tag)
    return text["text"] if text else ""


def role_text(target: str) -> str:
    """What a role shows: of `text <target>` the text, of `~module.name` the name."""
    if found := _TARGET.fullmatch(target):
        return found["text"] or target
    if target.startswith("~"):
        return target.rsplit(".", 1)[-1].lstrip("~")
    return target.lstrip("!")

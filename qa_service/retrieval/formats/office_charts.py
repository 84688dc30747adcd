"""Charts of Word's and PowerPoint's files: tables of what their bars, lines and slices stand for.

Format: ECMA-376, part 1, 21.2. The values are those that the file keeps of the sheet behind it.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from qa_service.retrieval.documents import BlockList
from qa_service.retrieval.formats.number_formats import GENERAL, shown
from qa_service.retrieval.formats.office_package import (
    attribute,
    child,
    descendants,
    is_on,
    name_of,
    number,
    text_of,
)

_NUMBER = re.compile(r"-?\d*\.?\d+(?:e[+-]?\d{1,3})?", re.IGNORECASE)
_MAX_CATEGORIES = 100
"""Of a chart with more a person sees no values, but how they change."""


def add_chart(out: BlockList, part: Xml.Element) -> None:
    """Adds a chart's title, and a row of each category: `Category; Series: value`."""
    chart = child(part, "chart")
    area = child(chart, "plotArea")
    plots = list(area) if area is not None else []
    drawn = [(plot, one) for plot in plots for one in plot if name_of(one) == "ser"]
    series = [one for _, one in drawn]
    names = [" ".join(_points(child(one, "tx")).values()) for one in series]
    title = text_of(child(chart, "title", "tx", "rich"))
    if not title and len(names) == 1 and not is_on(child(chart, "autoTitleDeleted")):
        title = names[0]
    values = [_values(one, plot) for plot, one in drawn]
    categories = next(filter(None, (_points(child(one, "cat")) for one in series)), {})
    places = sorted(set().union(categories, *values))
    if not categories or len(places) > _MAX_CATEGORIES:
        out.paragraph(title)
        return
    rows = [[categories.get(n, ""), *(one.get(n, "") for one in values)] for n in places]
    if len(series) == 1 and (names[0] in {"", title} or child(chart, "legend") is None):
        rows = [[": ".join(filter(None, row))] for row in rows]
    out.table(["", *names], [(0, row) for row in rows], title)


def _values(series: Xml.Element, plot: Xml.Element) -> dict[int, str]:
    """A series' values, or their shares of all, if these are what is written in the chart."""
    data, own = child(series, "val"), child(series, "dLbls")
    labels = child(plot, "dLbls") if own is None else own
    is_share = is_on(child(labels, "showPercent")) and not is_on(child(labels, "showVal"))
    if not is_share or data is None:
        return _points(data)
    numbers = {number(one, "idx") or 0: _value(one) for one in descendants(data, "pt")}
    code = attribute(child(labels, "numFmt"), "formatCode")
    total = sum(numbers.values()) or 1.0
    return {n: shown(one / total, code if "%" in code else "0%") for n, one in numbers.items()}


def _points(data: Xml.Element | None) -> dict[int, str]:
    """Names or numbers by their places; of names on several levels, the outer ones first."""
    found = dict[int, str]()
    if data is None:
        return found
    levels = [one for one in data.iter() if name_of(one) == "lvl"]
    for level in levels or [data]:
        code = text_of(next(descendants(level, "formatCode"), None)) or GENERAL
        texts = {
            number(point, "idx") or 0: _shown(point, code) for point in descendants(level, "pt")
        }
        outer = ""
        for place in sorted({*found, *texts}):
            outer = texts.get(place, outer if found else "")
            found[place] = " ".join(filter(None, (outer, found.get(place, ""))))
    return found


def _shown(point: Xml.Element, code: str) -> str:
    text = text_of(child(point, "v"))
    return (
        shown(_value(point), attribute(point, "formatCode") or code) if _is_number(text) else text
    )


def _value(point: Xml.Element) -> float:
    text = text_of(child(point, "v"))
    return float(text) if _is_number(text) else 0.0


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None

"""Boxes on a page of a PDF as it is shown: in points from its upper left corner, y downwards."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy.typing as npt

_N = TypeVar("_N", float, npt.NDArray[Any])


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def around(boxes: list[Box]) -> Box:
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return Box(min(lefts), min(tops), max(rights), max(bottoms))


def turned(left: _N, bottom: _N, right: _N, top: _N, turn: int) -> tuple[_N, _N, _N, _N]:
    """The sides of a box, or of boxes, on the page as it is shown, turned clockwise by quarters.

    Args:
        left: In PDF's coordinates, as the next three.

    Returns:
        Left, top, right and bottom.
    """
    if turn == 1:
        return bottom, left, top, right
    if turn == 2:
        return -right, bottom, -left, top
    if turn == 3:
        return -top, -right, -bottom, -left
    return left, -top, right, -bottom

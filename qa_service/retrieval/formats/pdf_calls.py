"""Calls of PDFium for what a page has thousands of: characters, and objects that are drawn.

PDFium answers for one of them at a time, in less time than `ctypes` takes for the call. The
package's own functions check the type of each argument; these take pointers, references, and whole
numbers that a C `int` holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

_CHUNK = 4096
"""Characters that are asked for at once: references to their results are made once."""

_Array = npt.NDArray[Any]
_Page = Any
"""PDFium's `FPDF_TEXTPAGE`."""


@cache
def plain(raw: ModuleType, name: str, result: type = ctypes.c_int) -> Callable[..., Any]:
    """A function of PDFium that does not check its arguments."""
    address = ctypes.cast(getattr(raw, name), ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(result)(address)


class Results:
    """What PDFium knows of each of many characters: numbers that it writes where it is told to.

    Args:
        name: The function of a page, a character's number and the places for its results.
        kind: Of the numbers.
        num_results: Places that the function takes.
        num_values: Numbers that it writes to each place.
    """

    def __init__(
        self,
        raw: ModuleType,
        name: str,
        kind: type[ctypes._SimpleCData[Any]],
        num_results: int = 1,
        num_values: int = 1,
    ) -> None:
        self._get = plain(raw, name)
        room = (kind * (_CHUNK * num_results * num_values))()
        size = ctypes.sizeof(kind) * num_values
        offsets = range(0, ctypes.sizeof(room), size)
        places = [ctypes.byref(room, offset) for offset in offsets]
        self._places = [places[result::num_results] for result in range(num_results)]
        self._room: _Array = np.ctypeslib.as_array(room).reshape(_CHUNK, num_results * num_values)

    def of(self, page: _Page, numbers: Sequence[int]) -> tuple[_Array, _Array]:
        """Asks for characters.

        Returns:
            Whether PDFium knows it of each: bool [characters]; and what it has written: float64
            [characters, numbers].
        """
        is_known = np.zeros(len(numbers), bool)
        values = np.zeros((len(numbers), self._room.shape[1]))
        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            found = map(self._get, repeat(page), chunk, *self._places)
            is_known[start : start + _CHUNK] = np.fromiter(found, bool, len(chunk))
            values[start : start + _CHUNK] = self._room[: len(chunk)]
        return is_known, values


results = cache(Results)
"""One for each function: references to places take long to make."""

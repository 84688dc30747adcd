"""What a figure was measured on: machine, versions, date and command."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from qa_service.machine import num_cpus, processor


def machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{num_cpus()} cores of {processor().name}, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release().partition('-')[0]}"
    )


def versions(*packages: str) -> str:
    """Python's version and those of the packages; what is not installed is said to be so."""
    return ", ".join([f"Python {platform.python_version()}", *map(_version, packages)])


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} not installed"


def command() -> str:
    """The command line, with each file by its name alone."""
    module = sys.modules["__main__"].__spec__
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", module.name if module else "?", *words])


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def load_average() -> str:
    """How many processes ran or waited in the last minute: what else the machine was doing."""
    return f"{os.getloadavg()[0]:.1f}"

"""The catalogue of engines agrees with all that has to repeat a part of it."""

import re
import tomllib
from typing import get_args

import pytest

from harness.server import ROOT
from qa_service.engine_catalogue import (
    AUTO,
    ENGINES,
    MODEL_ENGINES,
    PREPARING_FLAGS,
    PROCESSOR_FLAGS,
    ROWS,
    EngineType,
    Precision,
    precisions_of,
)
from qa_service.instance.model_folder.manifest import model_files
from qa_service.options import options_of
from qa_service.server.config import ServerConfig
from tests.support import present

FILES = {row.file for row in ROWS.values() if row.file}
PRECISIONS = {precision for _, precision in ROWS}


def test_allowed_engine_and_precision_names_are_those_of_the_catalogue():
    assert set(get_args(EngineType)) == {AUTO, *ENGINES}
    assert set(get_args(Precision)) == {AUTO, *PRECISIONS}


@pytest.mark.parametrize(
    ("name", "literal"), [("inference_engine_type", EngineType), ("precision", Precision)]
)
def test_the_options_offer_the_catalogues_names(name, literal):
    (option,) = [option for option in options_of(ServerConfig) if option.name == name]
    assert tuple(option.choices) == get_args(literal)


def test_the_options_help_lists_each_engines_precisions():
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    (line,) = re.findall(r"^\| `--precision` \|.*\| (.*) \|$", page, re.MULTILINE)
    said = {}
    for clause in re.sub(r"\(.*?\)", "", line).split(";"):
        words = re.findall(r"\w+", clause)
        for engine_type in ENGINES.keys() & {*words}:
            said[engine_type] = PRECISIONS & {*words}
    assert said == {name: {*precisions_of(name)} for name in MODEL_ENGINES}


def test_the_page_of_prepared_models_has_a_row_for_each_file():
    page = (ROOT / "saved_models" / "README.md").read_text()
    for file in FILES:
        (line,) = [
            line for line in page.splitlines() if line.startswith("|") and f"`{file}`" in line
        ]
        assert PREPARING_FLAGS.get(file, "") in line, file
    assert PREPARING_FLAGS.keys() <= FILES


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_an_engines_packages_are_in_their_extras(engine):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, package in engine.packages.items():
        lines = project["optional-dependencies"][extra]
        assert package in {present(re.match(r"[\w-]+", line))[0] for line in lines}


@pytest.mark.parametrize("kind", ROWS, ids=" ".join)
def test_every_row_is_complete(kind):
    row = ROWS[kind]
    assert row.tried_on <= row.devices <= {"cpu", "cuda"}
    assert row.requires in {"", *PROCESSOR_FLAGS}
    assert bool(row.file) == (row.engine.name in MODEL_ENGINES)
    assert model_files(*kind)[2:] == ([row.file] if row.file else [])

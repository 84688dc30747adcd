"""What is said of a model, whatever runs it."""

from typing import Any, get_args

import pytest

from qa_service.engine_catalogue import EngineType, precisions_of
from qa_service.wire.http import model_reports
from qa_service.wire.http.model_reports import CASCADE, ModelReport

ENGINES = [
    (engine_type, precision)
    for engine_type in get_args(EngineType)
    for precision in precisions_of(engine_type) or ("auto", "fp32")
]
"""Each engine of the options with each of its precisions; auto until one is chosen."""


@pytest.mark.parametrize(("engine_type", "precision"), ENGINES)
def test_every_engine_has_a_platform_and_precision(engine_type, precision):
    report = ModelReport("m", "1", engine_type, "READY", True, "", 2, 0, precision=precision)
    assert model_reports.metadata(report)["platform"] == model_reports.config(report)["platform"]
    config: dict[str, Any] = model_reports.config(report)
    assert config["parameters"]["precision"] == {"string_value": precision}


def test_a_route_has_a_config_and_metadata():
    route = ModelReport("r", "", CASCADE, "READY", True, "", 0, 0, cascade=["a", "b"])
    config = model_reports.config(route)
    assert (config["platform"], config["instance_group"]) == ("cascade", [])
    assert config["parameters"] == {"cascade": {"string_value": "a,b"}}
    assert model_reports.metadata(route)["versions"] == []
    assert model_reports.statistics([route]) == {"model_stats": []}

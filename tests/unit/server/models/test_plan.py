"""A plan whose engines are chosen after it was made."""

from pathlib import Path

import msgspec

from qa_service.instance.instance_options import InstanceOptions
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.plan import ModelPlan, Plan, VersionSpec


def spec(model, number, engine):
    options = InstanceOptions(inference_engine_type=engine, precision="fp32")
    return VersionSpec(model, FoundVersion(number, Path(str(number)), "f"), options)


def models(*specs):
    names = {its.model for its in specs}
    return {
        name: ModelPlan(name, {its.number: its for its in specs if its.model == name}, {"l": 1})
        for name in names
    }


def test_an_engine_is_chosen_for_each_version_that_has_none_and_for_no_other():
    asked = []

    def choose(model, found, options):
        asked.append((model, found.number))
        return msgspec.structs.replace(options, inference_engine_type="openvino")

    plan = Plan(models(spec("a", 1, "auto"), spec("a", 2, "onnx"), spec("b", 1, "auto")), {})
    assert plan.models["a"].versions[2].is_loadable
    assert not plan.models["a"].versions[1].is_loadable

    filled = models(spec("a", 1, "openvino"), spec("a", 2, "onnx"), spec("b", 1, "openvino"))
    assert plan.with_engines(choose) == Plan(filled, {})
    assert sorted(asked) == [("a", 1), ("b", 1)]


def test_a_version_whose_engine_is_not_measured_yet_stays_open():
    plan = Plan(models(spec("a", 1, "auto")), {})
    assert plan.with_engines(lambda _model, _found, options: options) == plan

"""Where requests go by what they name, and cascades; models and a clock are the test's own."""

import pytest

from qa_service.errors import (
    DeadlineExceededError,
    QueueFullError,
    UnavailableError,
    UnknownModelError,
    WorkerCrashedError,
)
from qa_service.server.services.router import Cascade, Router
from qa_service.server.services.service_options import RouteOptions
from qa_service.server.telemetry.services import CascadeCounts, ServiceCounts
from qa_service.wire.messages import Answer, Answered, AnswerSource, Timings
from tests.unit.calls import make_call
from tests.unit.server.fake_services import Client, FakeService, ManualClock


class Setting:
    def __init__(self, *routes):
        self.models = {name: FakeService() for name in ("small", "large")}
        self.outcomes: list[str] = []
        self.router = Router(self, ManualClock(), ServiceCounts())
        self.use(*routes)

    def find(self, name):
        """As `Catalog` does."""
        if name not in self.models:
            raise UnknownModelError(f"there is no model {name}")
        return self.models[name]

    def use(self, *names, **models):
        """Has routes ask a model, the small one if none is given."""
        models = {**dict.fromkeys(names, "small"), **models}
        self.router.use({name: RouteOptions(cascade=[one]) for name, one in models.items()})

    def ask(self, **named):
        call = make_call(on_settled=lambda outcome: self.outcomes.append(outcome.code), **named)
        self.router.submit(call)
        return call


def test_a_model_is_asked_by_its_name():
    setting = Setting("default")
    call = setting.ask(model="large", version=3)
    assert setting.models["large"].submitted == [call]


@pytest.mark.parametrize(("named", "model"), [({}, "small"), ({"model": "fast"}, "large")])
def test_a_route_is_asked_by_its_name_or_by_none(named, model):
    setting = Setting("default")
    setting.use("default", fast="large")
    setting.ask(**named)
    asked = {name: len(service.submitted) for name, service in setting.models.items()}
    assert asked == {"small": 0, "large": 0, model: 1}


@pytest.mark.parametrize(
    "named", [{"model": "x"}, {"version": 3}, {"model": "default", "version": "canary"}]
)
def test_an_unknown_name_gets_unknown_model(named):
    setting = Setting("default")
    setting.ask(**named)
    assert setting.outcomes == ["unknown_model"]


def test_an_unloaded_model_gets_unavailable():
    setting = Setting()

    def refuse(call):
        raise UnavailableError

    setting.models["large"].submit = refuse
    setting.ask(model="large")
    assert setting.outcomes == ["unavailable"]


def test_a_cancellation_follows_the_request_though_the_route_has_changed():
    setting = Setting("default")
    call = setting.ask()
    setting.use(default="large")
    call.cancel()
    assert setting.models["small"].cancelled == setting.models["small"].submitted


def test_a_route_that_has_not_changed_stays_the_same():
    setting = Setting("default", "fast")
    before = dict(setting.router._routes)
    setting.use("default")
    assert setting.router._routes == {"default": before["default"]}
    setting.use(default="large")
    assert setting.router._routes["default"] != before["default"]
    setting.ask(model="fast")
    assert setting.outcomes == ["unknown_model"]


SURE, UNSURE = Answer("Ada", 0.8, 0, 3), Answer("notes", 0.3, 14, 19)
UNKNOWN = Answer("", 0.9, None, None)
BETTER = Answer("London", 0.4, 23, 29)


class CascadeSetting:
    """A route with models that answer when the test says."""

    def __init__(self, *models, **options):
        self.router, self.clock, self.counts = FakeService(), ManualClock(), CascadeCounts()
        route = RouteOptions(cascade=list(models or ("small", "large")), **options)
        self.cascade = Cascade(self.router, route, self.clock, self.counts)
        self.client = Client(self.cascade)
        self.ask, self.of = self.client.ask, self.client.of

    def source(self, call):
        return self.client.outcomes[call].source

    @property
    def asked(self):
        return [call.request.model for call in self.router.submitted]

    def answer(self, answer, queue_ms=1.0, inference_ms=10.0, *, after_s=0.0):
        child = self.router.submitted[-1]
        self.clock.advance(after_s)
        source = AnswerSource(child.request.model, 1)
        child.settle(Answered([answer], Timings(queue_ms, inference_ms), source))

    def fail(self, error):
        self.router.submitted[-1].fail(error)


@pytest.fixture
def setting():
    return CascadeSetting()


def test_a_model_that_is_sure_is_the_only_one_asked(setting):
    call = setting.ask()
    setting.answer(SURE)
    assert (setting.of(call), setting.asked) == (SURE, ["small"])
    assert setting.source(call) == AnswerSource("small", 1, models_asked=1)


def test_an_unsure_model_has_the_next_one_asked_whose_clock_starts_then(setting):
    call = setting.ask()
    setting.answer(UNSURE, 1.0, 10.0, after_s=0.011)
    assert setting.of(call) is None
    child = setting.router.submitted[-1]
    assert child.scope.arrived_s == pytest.approx(call.scope.arrived_s + 0.011)
    setting.answer(BETTER, 2.0, 90.0)
    assert (setting.of(call), setting.asked) == (BETTER, ["small", "large"])
    assert setting.source(call) == AnswerSource("large", 1, models_asked=2)
    assert setting.client.outcomes[call].timings == Timings(3.0, 100.0)
    assert setting.counts.models_asked == {2: 1}


def test_a_score_of_exactly_the_minimum_is_enough():
    setting = CascadeSetting(min_score=0.3)
    call = setting.ask()
    setting.answer(UNSURE)
    assert setting.of(call) == UNSURE


@pytest.mark.parametrize(("asks_next", "asked"), [(False, ["small"]), (True, ["small", "large"])])
def test_no_answer_ends_the_cascade_unless_the_next_is_asked_on_unknown(asks_next, asked):
    setting = CascadeSetting(ask_next_if_unknown=asks_next)
    setting.ask()
    setting.answer(UNKNOWN)
    assert setting.asked == asked


def test_the_last_models_answer_is_taken_at_any_score():
    setting = CascadeSetting("small", "middle", "large")
    call = setting.ask()
    for _ in range(3):
        setting.answer(UNSURE)
    assert setting.of(call) == UNSURE
    assert setting.source(call) == AnswerSource("large", 1, models_asked=3)


def test_all_models_share_one_deadline(setting):
    setting.ask(deadline_s=103.0, flow="ada", weight=2.0)
    setting.answer(UNSURE, after_s=2.0)
    scopes = [child.scope for child in setting.router.submitted]
    assert [(s.deadline_s, s.flow, s.weight) for s in scopes] == [(103.0, "ada", 2.0)] * 2


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "error", [DeadlineExceededError, WorkerCrashedError, UnavailableError, QueueFullError]
)
def test_an_error_of_the_next_model_leaves_the_first_ones_answer(setting, error, at_once):
    call = setting.ask()
    setting.router.refuse = error() if at_once else None
    setting.answer(UNSURE)
    if not at_once:
        setting.fail(error())
    assert setting.of(call) == UNSURE
    assert setting.source(call) == AnswerSource("small", 1, models_asked=2)
    assert setting.counts.fallbacks == 1


def test_an_error_of_the_first_model_fails_the_request(setting):
    call = setting.ask()
    setting.fail(QueueFullError(retry_after_ms=70))
    assert (setting.of(call), setting.asked) == ("queue_full", ["small"])


@pytest.mark.parametrize("num_answered", [0, 1])
def test_a_disconnect_cancels_the_model_that_is_being_asked(setting, num_answered):
    call = setting.ask()
    for _ in range(num_answered):
        setting.answer(UNSURE)
    call.cancel()
    [cancelled] = setting.router.cancelled
    assert cancelled is setting.router.submitted[-1]
    assert cancelled.is_settled


def test_a_route_is_asked_and_models_are_named_to_the_router(setting):
    setting.ask(model="default", version=3)
    [child] = setting.router.submitted
    assert (child.request.model, child.request.version) == ("small", None)

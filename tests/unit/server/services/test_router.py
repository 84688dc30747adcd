"""Where requests go by what they name, with models and routes of the test's own."""

from __future__ import annotations

import pytest

from qa_service.errors import UnavailableError, UnknownModelError
from qa_service.server.services.router import Router
from qa_service.server.services.service_options import RouteOptions
from tests.unit.calls import make_call


class Taker:
    """A service that takes everything, and remembers it."""

    def __init__(self, name):
        self.name, self.taken, self.ended = name, [], []

    def submit(self, call):
        call.on_end(self.ended.append)
        self.taken.append(call)


class Setting:
    def __init__(self, *routes):
        self.models = {name: Taker(name) for name in ("small", "large")}
        self.made, self.outcomes = [], []
        self.router = Router(self, self.make_route)
        self.use(*routes)

    def find(self, name):
        """As `Catalog` does."""
        if name not in self.models:
            raise UnknownModelError(f"there is no model {name}")
        return self.models[name]

    def make_route(self, name, options, models):
        assert models is self.router
        self.made.append(Taker(name))
        return self.made[-1]

    def use(self, *names, min_score=0.5):
        self.router.use({n: RouteOptions(cascade=["small"], min_score=min_score) for n in names})

    def ask(self, **named):
        call = make_call(on_settled=lambda outcome: self.outcomes.append(outcome.code), **named)
        self.router.submit(call)
        return call


def test_a_model_is_asked_by_its_name():
    setting = Setting("default")
    call = setting.ask(model="large", version=3)
    assert setting.models["large"].taken == [call]


@pytest.mark.parametrize(("named", "route"), [({}, "default"), ({"model": "fast"}, "fast")])
def test_a_route_is_asked_by_its_name_or_by_none(named, route):
    setting = Setting("default", "fast")
    call = setting.ask(**named)
    (taker,) = [taker for taker in setting.made if taker.taken]
    assert (taker.name, taker.taken) == (route, [call])


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
    setting.use("default", min_score=0.9)
    call.cancel()
    assert setting.made[0].ended == [call]


def test_a_route_that_has_not_changed_stays_the_same():
    setting = Setting("default", "fast")
    setting.use("default")
    assert len(setting.made) == 2
    setting.use("default", min_score=0.9)
    assert len(setting.made) == 3
    setting.ask(model="fast")
    assert setting.outcomes == ["unknown_model"]

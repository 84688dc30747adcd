"""Where requests go by what they name, with models and routes of the test's own."""

from __future__ import annotations

import pytest
from msgspec import structs

from qa_service.errors import UnavailableError, UnknownModelError
from qa_service.serving.options import RouteOptions
from qa_service.serving.router import Router
from tests.unit.pendings import make_pending


class Taker:
    """A service that takes everything, and remembers it."""

    def __init__(self, name):
        self.name, self.taken, self.cancelled = name, [], []

    def submit(self, pending):
        pending.on_cancel = self.cancel
        self.taken.append(pending)

    def cancel(self, pending):
        self.cancelled.append(pending)


class Setting:
    def __init__(self, *routes):
        self.models = {name: Taker(name) for name in ("small", "large")}
        self.made, self.outcomes = [], []
        self.router = Router(self, self.make_route)
        self.use(*routes)

    def find(self, name):
        """As `Models` does."""
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
        pending = make_pending(on_settled=lambda _, outcome: self.outcomes.append(outcome.code))
        pending.request = structs.replace(pending.request, **named)
        self.router.submit(pending)
        return pending


def test_a_model_is_asked_by_its_name():
    setting = Setting("default")
    pending = setting.ask(model="large", version=3)
    assert setting.models["large"].taken == [pending]


@pytest.mark.parametrize(("named", "route"), [({}, "default"), ({"model": "fast"}, "fast")])
def test_a_route_is_asked_by_its_name_or_by_none(named, route):
    setting = Setting("default", "fast")
    pending = setting.ask(**named)
    (taker,) = [taker for taker in setting.made if taker.taken]
    assert (taker.name, taker.taken) == (route, [pending])


@pytest.mark.parametrize(
    "named", [{"model": "x"}, {"version": 3}, {"model": "default", "version": "canary"}]
)
def test_what_is_not_there_is_told(named):
    setting = Setting("default")
    setting.ask(**named)
    assert setting.outcomes == ["unknown_model"]


def test_what_is_not_loaded_is_told():
    setting = Setting()

    def refuse(pending):
        raise UnavailableError

    setting.models["large"].submit = refuse
    setting.ask(model="large")
    assert setting.outcomes == ["unavailable"]


def test_a_cancellation_follows_the_request_though_the_route_has_changed():
    setting = Setting("default")
    pending = setting.ask()
    setting.use("default", min_score=0.9)
    setting.router.cancel(pending)
    assert setting.made[0].cancelled == [pending]


def test_a_route_that_has_not_changed_stays_the_same():
    setting = Setting("default", "fast")
    setting.use("default")
    assert len(setting.made) == 2
    setting.use("default", min_score=0.9)
    assert len(setting.made) == 3
    setting.ask(model="fast")
    assert setting.outcomes == ["unknown_model"]


def test_what_was_refused_can_be_cancelled():
    setting = Setting()
    setting.router.cancel(setting.ask(model="x"))

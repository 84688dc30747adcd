"""A model brought to its plan, step by step: with versions and a clock of the test's own."""

import math
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.errors import ERROR_KINDS, SetupError, UnavailableError, UnknownModelError
from qa_service.instance.instance_options import InstanceOptions
from qa_service.server.instances.pool import WorkerPool
from qa_service.server.models.model import FIRST_RETRY_S, LOADING_RETRY_S, MAX_RETRY_S, Model
from qa_service.server.models.on_disk import FoundVersion
from qa_service.server.models.plan import ModelPlan, VersionSpec
from qa_service.server.models.version import Version, VersionState
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.telemetry.metrics import ModelMetrics
from tests.support import all_of
from tests.unit.calls import make_call
from tests.unit.server.fake_services import FakeService, ManualClock

READY, GONE = VersionState.READY, VersionState.GONE


def spec(number, instances=1, generation=0, engine="onnx"):
    options = InstanceOptions(
        num_inference_sessions=instances, inference_engine_type=engine, precision="fp32"
    )
    return VersionSpec("m", FoundVersion(number, Path(str(number)), "f"), options, generation)


def plan(*specs, labels=None, traffic=None, rolling=False):
    versions = {its.number: its for its in specs}
    return ModelPlan("m", versions, labels or {}, traffic or {}, is_rolling=rolling)


class FakePool:
    """Its instances, of which there are as many as the test says."""

    def __init__(self):
        self.size = self.alive = self.ending = 0
        self.is_booting = True
        self.is_wrong = False
        self.failure = ""
        self.is_gone = False

    @property
    def is_complete(self):
        return 0 < self.size <= self.alive

    @property
    def num_processes(self):
        return 0 if self.is_gone else self.size + self.ending

    def resize(self, size):
        self.is_booting |= size > self.size
        self.ending += max(0, self.alive - size)
        self.size, self.alive = size, min(size, self.alive)

    def take_failure(self):
        failure, self.failure = self.failure, ""
        return failure

    def close(self):
        pass

    def kill(self):
        pass


class HeldVersion(Version):
    """A version whose instances and one request start and end when the test says so."""

    pool: Any  # a FakePool

    def __init__(self, its, clock):
        metrics = ModelMetrics(ERROR_KINDS)
        pool, dispatcher = cast(WorkerPool, FakePool()), cast(Dispatcher, None)
        super().__init__(its, clock, pool, dispatcher, FakeService(), metrics=metrics)
        self.call = make_call()
        self.submit(self.call)

    def start(self):
        """All instances that it should have are ready."""
        self.pool.alive, self.pool.is_booting = self.pool.size, False
        self.clock.mark()

    def fail(self, message):
        """No instance can be started."""
        self.pool.failure = message
        self.clock.mark()

    def end(self):
        """Everything that is to end has ended."""
        self.pool.ending = 0
        if self.state in {VersionState.DRAINING, VersionState.ENDING}:
            self.call.cancel()
            self.pool.is_gone = True
        self.clock.mark()


class Setting(ManualClock):
    """A model, and the server around it."""

    def __init__(self, *specs, **more):
        super().__init__()
        self.lost, self.made = [], []
        self.is_marked, self.room = False, True
        draws = count()
        self.model = Model("m", self, self.make_version, lambda: (next(draws) * 0.618034) % 1)
        self.apply(*specs, at_once=True, **more)
        self.settle()

    # The loop.

    def mark(self):
        self.is_marked = True

    def advance(self, seconds):
        super().advance(seconds)
        self.run()

    def run(self, *, at_once=False):
        """The end of a round."""
        while self.is_marked:
            self.is_marked = False
            self.model.reconcile(at_once=at_once)
            self.lost += [self.model.loss] if self.model.loss else []

    # The catalog.

    def make_version(self, its, num_instances):
        if not self.room:
            raise SetupError("there is no memory")
        self.made.append(HeldVersion(its, self))
        return self.made[-1]

    # The test.

    def apply(self, *specs, at_once=False, **more):
        self.model.apply(plan(*specs, **more))
        self.run(at_once=at_once)

    def start(self, version):
        version.start()
        self.run()

    def fail(self, version, message="it is broken"):
        """Its instances are gone, or cannot be started."""
        version.pool.alive = 0
        version.fail(message)
        self.run()

    def fail_and_end(self, version):
        self.fail(version)
        version.end()
        self.run()

    def loading(self):
        return self.model.versions_in(VersionState.LOADING)

    def settle(self):
        """Lets everything start and end that can, until nothing changes any more."""
        for _ in range(30):
            for version in self.versions():
                if version.state in {VersionState.LOADING, READY}:
                    version.start()
                version.end()
            self.run()

    def versions(self):
        return all_of(HeldVersion, self.model.versions)

    def numbers(self):
        return [version.spec.number for version in self.model.versions]

    def picks(self, version=None, times=1000):
        return Counter(self.model.pick(version).spec.number for _ in range(times))


def rolling():
    """Version 4 takes the place of version 3, an instance at a time."""
    setting = Setting(spec(3, 3), rolling=True)
    setting.apply(spec(4, 3), rolling=True)
    return setting, *setting.made


def replacing():
    """Version 4 takes the place of version 3, which serves."""
    setting = Setting(spec(3))
    setting.apply(spec(4))
    return setting


def test_at_the_start_everything_is_loaded_at_once():
    setting = Setting(spec(3, 2), spec(4, 2))
    assert [version.pool.size for version in setting.made] == [2, 2]
    assert setting.numbers() == [3, 4]


def test_a_swap_loads_an_instance_at_a_time_and_serves_when_all_are_ready():
    setting = Setting(spec(3, 2))
    setting.apply(spec(4, 2))
    (new,) = setting.loading()
    assert (new.pool.size, setting.picks()) == (1, {3: 1000})
    setting.start(new)
    assert (new.pool.size, new.state, setting.picks()) == (2, VersionState.LOADING, {3: 1000})
    setting.start(new)
    assert (new.state, setting.picks()) == (READY, {4: 1000})
    assert setting.made[0].state is VersionState.DRAINING


def test_rolling_never_has_more_than_one_instance_more():
    setting, old, new = rolling()
    sizes = []
    for _ in range(12):
        sizes.append(old.pool.size + old.pool.ending + new.pool.size)
        if new.pool.is_booting:
            new.start()
        elif old.pool.ending:
            old.end()
        setting.run()
    assert max(sizes) == 4
    assert (new.pool.size, old.state) == (3, VersionState.DRAINING)


def test_rolling_shares_requests_by_instances():
    setting, old, new = rolling()
    setting.start(new)
    assert (old.pool.alive, new.pool.alive) == (2, 1)
    assert setting.picks()[4] == pytest.approx(333, abs=20)


def test_a_failed_rolling_reload_returns_its_instances():
    setting, old, new = rolling()
    setting.start(new)
    setting.fail(new)
    assert (new.state, old.pool.size) == (VersionState.ENDING, 3)
    assert setting.picks() == {3: 1000}


def test_a_version_without_instances_gets_no_requests():
    """Also those that come before the model is reconciled, in the same round."""
    setting = Setting(spec(3), spec(4), traffic={3: 1, 4: 1})
    old, new = setting.made
    new.pool.alive = 0
    new.fail("it is gone")
    assert setting.picks() == {3: 1000}
    old.pool.alive = 0
    old.fail("it is gone too")
    setting.run()
    with pytest.raises(UnavailableError):
        setting.model.pick(None)


def test_a_failed_version_is_retried_with_backoff():
    setting = replacing()
    waits = []
    for _ in range(8):
        setting.fail_and_end(setting.loading()[0])
        assert not setting.loading()
        waits.append(next(iter(setting.model.failures.values())).retry_s - setting.time_s)
        assert setting.picks(times=1) == {3: 1}
        setting.advance(waits[-1])
    assert waits[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert waits[-1] == MAX_RETRY_S


def test_a_changed_version_is_retried_at_once():
    setting = replacing()
    setting.fail_and_end(setting.loading()[0])
    setting.apply(spec(4, instances=2))
    assert setting.loading()[0].spec == spec(4, instances=2)


def test_without_memory_no_instance_is_started():
    setting = Setting(spec(3))
    setting.room = False
    setting.apply(spec(4))
    assert len(setting.made) == 1
    assert setting.model.failures[spec(4)].message == "there is no memory"
    setting.room = True
    setting.advance(FIRST_RETRY_S)
    assert len(setting.made) == 2


def test_loading_stops_when_a_version_is_no_longer_wanted():
    setting = replacing()
    setting.apply(spec(5))
    assert setting.made[1].state is VersionState.ENDING
    assert not setting.loading()  # until that has ended
    setting.settle()
    assert setting.numbers() == [5]


def test_a_reload_asked_for_again_comes_after_the_one_under_way():
    setting = Setting(spec(3))
    setting.apply(spec(3, generation=1))
    setting.apply(spec(3, generation=2))
    assert setting.loading()[0].spec.generation == 1
    setting.start(setting.loading()[0])
    assert not setting.loading()  # the first one drains
    setting.settle()
    assert [version.spec.generation for version in setting.model.versions] == [2]


def test_the_old_version_stays_while_one_of_the_new_ones_fails():
    setting = Setting(spec(3))
    setting.apply(spec(4), spec(5))
    for _ in range(2):
        version = setting.loading()[0]
        if version.spec.number == 4:
            setting.start(version)
        else:
            setting.fail(version)
    assert {3, 4} <= set(setting.numbers())
    assert setting.picks() == {4: 1000}


def test_labels_move_when_their_targets_are_ready():
    setting = Setting(spec(3), labels={"stable": 3, "old": 3})
    setting.apply(spec(4), labels={"stable": 4, "new": 4})
    assert setting.model.labels == {"stable": 3}
    with pytest.raises(UnavailableError):
        setting.model.pick("new")
    setting.settle()
    assert setting.model.labels == {"stable": 4, "new": 4}
    assert setting.picks("stable") == {4: 1000}


def test_traffic_is_shared_by_weights_among_ready_versions():
    setting = Setting(spec(3), spec(4), traffic={3: 95, 4: 5})
    assert setting.picks(times=10_000)[4] == pytest.approx(500, abs=20)
    setting.made[1].pool.alive = 0  # its instances have died
    assert setting.picks() == {3: 1000}
    setting.made[0].pool.alive = 0
    assert setting.picks().total() == 1000  # they wait for what is started again


def test_the_share_of_a_version_that_is_not_ready_goes_to_the_others():
    setting = Setting(spec(3))
    setting.apply(spec(3), spec(4), traffic={3: 50, 4: 50})
    assert setting.picks() == {3: 1000}
    setting.settle()
    assert setting.picks()[4] == pytest.approx(500, abs=20)


@pytest.mark.parametrize(
    "version", [9, "9", "nobody", "03", "\u0663", " 1", "+1", "1_0", "1" * 5000, "-1", "1.0"]
)
def test_unknown_model_names_the_models_that_exist(version):
    setting = Setting(spec(3), labels={"stable": 3})
    with pytest.raises(UnknownModelError, match="there are 3, stable"):
        setting.model.pick(version)


def test_a_model_that_is_no_longer_planned_is_unloaded():
    setting = Setting(spec(3), spec(4))
    setting.apply()
    setting.settle()
    assert setting.model.versions == []


def test_a_lost_version_is_reported_and_loaded_again():
    setting = Setting(spec(3))
    (version,) = setting.versions()
    setting.fail(version, "they all died")
    assert setting.lost == ["they all died"]
    version.end()
    setting.run()
    setting.advance(FIRST_RETRY_S)
    setting.settle()
    assert setting.numbers() == [3]


PLANS = st.lists(
    st.tuples(st.sets(st.integers(1, 4), min_size=1), st.integers(1, 3), st.booleans()),
    min_size=1, max_size=5,
)  # fmt: skip


@given(PLANS)
def test_after_any_sequence_of_plans_the_last_is_reached(plans):
    first, *others = [
        (tuple(spec(number, instances) for number in sorted(numbers)), rolling)
        for numbers, instances, rolling in plans
    ]
    setting = Setting(*first[0], rolling=first[1])
    for specs, rolling in others:
        setting.apply(*specs, rolling=rolling)
        assert setting.model.versions_in(READY), "something serves at any time"
    setting.settle()
    last = (first, *others)[-1][0]
    assert sorted(setting.model.ready_specs, key=str) == sorted(last, key=str)
    assert all(version.pool.size == version.full_size for version in setting.model.versions)
    assert math.isclose(sum(map(setting.model.share, setting.model.versions)), 1.0)


class TestAnEngineIsNotKnown:
    """A version whose engines are being measured."""

    def test_a_model_is_loaded_once_its_engine_is_chosen(self):
        setting = Setting(spec(1, engine="auto"))
        assert not setting.made
        setting.apply(spec(1), at_once=True)
        assert [version.spec for version in setting.made] == [spec(1)]

    def test_the_serving_version_is_not_drained(self):
        setting = Setting(spec(1))
        setting.start(setting.made[0])
        setting.apply(spec(2, engine="auto"))
        assert setting.made[0].state is READY

    def test_a_request_for_the_unmeasured_version_has_a_retry_time(self):
        with pytest.raises(UnavailableError) as raised:
            Setting(spec(1, engine="auto")).model.pick(None)
        assert raised.value.retry_after_ms == LOADING_RETRY_S * 1e3


def test_a_failed_versions_retry_time_is_in_its_error():
    setting = Setting(spec(1))
    for _ in range(3):
        setting.fail_and_end(setting.made[-1])
        wait_s = setting.model.failures[spec(1)].retry_s - setting.time_s
        with pytest.raises(UnavailableError) as raised:
            setting.model.pick(1)
        assert raised.value.retry_after_ms == wait_s * 1e3
        setting.advance(wait_s)


def test_a_failed_version_is_not_retried_by_another_models_plan():
    """While the server starts, a plan is applied whenever an engine has been measured."""
    setting = Setting(spec(1))
    setting.fail(setting.made[0])
    setting.apply(spec(1), at_once=True)
    assert len(setting.made) == 1

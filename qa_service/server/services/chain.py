"""The services in their order, from the connection's side to the dispatcher.

Gate ▸ Access ▸ Router ▸ Cascade ▸ Version ▸ Shadow ▸ Cached ▸ Collections ▸ Segments ▸ Dispatcher
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from qa_service.instance.instance_options import InstanceOptions
from qa_service.net.timers import Clock
from qa_service.server.services.cache import Cached, CacheStore
from qa_service.server.services.collection_set import CollectionSet
from qa_service.server.services.collections import Collections, edition
from qa_service.server.services.dispatcher import Dispatcher
from qa_service.server.services.segments import Segments
from qa_service.server.services.service import Service
from qa_service.server.services.shadow import Shadow, ShadowedModel
from qa_service.server.telemetry.metrics import ModelMetrics
from qa_service.server.telemetry.services import ServiceCounts
from qa_service.wire.messages import Request


class Services(msgspec.Struct, frozen=True):
    """Makes the services that stand before the models, of what all of them share."""

    clock: Clock
    store: CacheStore
    counts: ServiceCounts
    max_queue_size: int
    collections: CollectionSet
    num_wrong: Callable[[], int]

    def around_version(
        self,
        dispatcher: Dispatcher,
        model: ShadowedModel,
        number: int,
        options: InstanceOptions,
        counts: ModelMetrics,
    ) -> Service:
        """What a request passes that has been routed to one version of a model."""
        service: Service = Collections(Segments(dispatcher), dispatcher, self.collections)
        # A new service goes here, around what stands: service = MyService(service)
        if self.store.max_bytes:

            def answerer(request: Request) -> str:
                its = dispatcher.pool.model
                runs = f"{its.fingerprint} {options.inference_engine_type} {options.precision}"
                # What an instance answered that then failed its self-test is in doubt.
                doubts = self.num_wrong()
                return f"{runs} {its.hooks} {edition(self.collections, request)} {doubts}"

            service = Cached(
                service, self.store, answerer, self.clock, counts,
                max_queue_size=self.max_queue_size,
            )  # fmt: skip
        return Shadow(service, model, number, partial(self.counts.shadow, model.name))

"""The service that sends each call to the route or the model that it names.

model is a route's name, or there is none ─▶ the route's cascade
model is a model's name                   ─▶ its version of that number or label, else by share
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from qa_service.errors import QaError, UnknownModelError
from qa_service.server.scheduling.call import Call
from qa_service.server.services.service import Service
from qa_service.server.services.service_options import DEFAULT_ROUTE, RouteOptions


class Models(Protocol):
    def find(self, name: str | None) -> Service:
        """A model, the default one without a name; raises `UnknownModelError`."""


RouteMaker = Callable[[str, RouteOptions, Service], Service]
"""Makes the service of a route, which sends calls for models to the last argument."""


class Router:
    def __init__(self, models: Models, make_route: RouteMaker) -> None:
        self._models = models
        self._make_route = make_route
        self._options: Mapping[str, RouteOptions] = {}
        self._routes: dict[str, Service] = {}

    def use(self, routes: Mapping[str, RouteOptions]) -> None:
        """Takes other routes; the services of unchanged ones stay."""
        self._routes = {
            name: self._routes[name]
            if self._options.get(name) == options
            else self._make_route(name, options, self)
            for name, options in routes.items()
        }
        self._options = routes

    def submit(self, call: Call) -> None:
        request = call.request
        route = self._routes.get(request.model or DEFAULT_ROUTE)
        try:
            if route is None:
                self._models.find(request.model).submit(call)
                return
            if request.version is not None:
                raise UnknownModelError("a route has no versions; name a model with the version")
        except QaError as error:
            call.fail(error)
            return
        route.submit(call)

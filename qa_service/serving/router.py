"""The service that sends each request to what it names: a route, or a version of a model.

model is a route's name, or there is none ─▶ the route's cascade
model is a model's name                   ─▶ its version of that number or label, else by share
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qa_service.errors import QaError, UnknownModelError
from qa_service.scheduling.call import Call
from qa_service.serving.catalog import Catalog
from qa_service.serving.options import RouteOptions
from qa_service.serving.plan import DEFAULT_ROUTE
from qa_service.serving.service import Service

RouteMaker = Callable[[str, RouteOptions, Service], Service]
"""Makes the service of a route; it asks models of the last argument."""


class Router:
    """Sends requests where they are to go.

    Args:
        catalog: What is served.
        make_route: Makes a route's service.
    """

    def __init__(self, catalog: Catalog, make_route: RouteMaker) -> None:
        self._catalog = catalog
        self._make_route = make_route
        self._options: Mapping[str, RouteOptions] = {}
        self._routes: dict[str, Service] = {}

    def use(self, routes: Mapping[str, RouteOptions]) -> None:
        """Has these routes from now on; those that have not changed stay as they are."""
        self._routes = {
            name: self._routes[name]
            if self._options.get(name) == options
            else self._make_route(name, options, self)
            for name, options in routes.items()
        }
        self._options = routes

    def submit(self, call: Call) -> None:
        """Sends a request where it is to go, or fails it."""
        request = call.request
        route = self._routes.get(request.model or DEFAULT_ROUTE)
        try:
            if route is None:
                self._catalog.find(request.model).submit(call)
                return
            if request.version is not None:
                raise UnknownModelError("a route has no versions; name a model with the version")
        except QaError as error:
            call.fail(error)
            return
        route.submit(call)

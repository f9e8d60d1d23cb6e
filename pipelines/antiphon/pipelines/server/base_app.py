"""What every application of a service has: its state, error handlers, shutdown, limits and access rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from antiphon.pipelines.server.errors import add_error_handlers
from antiphon.pipelines.server.request_limits import RequestLimits
from antiphon.pipelines.server.service import Service


def make_base_app(service: Service, **options: Any) -> FastAPI:
    """Return an application without endpoints; it closes the service's request queue when it shuts down.

    Args:
        service: the service.
        **options: arguments of `FastAPI`.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.queue.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, **options)
    app.state.service = service
    app.state.is_draining = False
    add_error_handlers(app)
    settings = service.settings
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id"],
        )
    app.add_middleware(RequestLimits, settings=settings, metrics=service.metrics, keys=service.keys)
    return app

"""The FastAPI application: endpoints, error handlers and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles

from antiphon.pipelines.extractive_model import ExtractiveModel
from antiphon.pipelines.server import (
    chat_completions,
    completions,
    documents,
    passage_views,
    responses,
    retrieval,
)
from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.errors import ERRORS, ApiError, ErrorBody, add_error_handlers
from antiphon.pipelines.server.request_limits import RequestLimits
from antiphon.pipelines.server.service import Service, access_of, service_of

DRAINING = "The server is shutting down: it finishes the requests in progress; send new ones to another server."

PAGE = Path(__file__).with_name("web")
"""The folder of the web page and its static files, which ship with the package.

They contain no documents and no answers, so they are served without a key.
"""


def create_app(service: Service) -> FastAPI:
    """Return the application of a service. When the application shuts down, it closes the service's request queue."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.queue.close()

    description = "Language models and documents in OpenAI's protocol."
    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        title="Antiphon",
        description=description,
        version="1",
    )
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
    for module in (chat_completions, completions, responses, retrieval, passage_views, documents):
        app.include_router(module.router)
    _add_operations(app)
    app.mount("/static", StaticFiles(directory=PAGE))
    return app


def _add_operations(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        """Serve the page."""
        return FileResponse(PAGE / "index.html")

    @app.get("/docs", include_in_schema=False)
    def api_reference() -> FileResponse:
        """Serve the list of endpoints, which the page reads from /openapi.json."""
        return FileResponse(PAGE / "docs.html")

    @app.get("/v1/models", tags=["OpenAI"], responses=ERRORS)
    def list_models(request: Request, access: Annotated[Access, Depends(access_of)]) -> dict[str, Any]:
        """List the models that the API key may use."""
        service = service_of(request)
        return {"object": "list", "data": [_model_object(service, name) for name in service.readable_models(access)]}

    @app.get("/v1/models/{name:path}", tags=["OpenAI"], responses=ERRORS)
    def one_model(name: str, request: Request, access: Annotated[Access, Depends(access_of)]) -> dict[str, Any]:
        """Describe one model."""
        return _model_object(service_of(request), service_of(request).model(name, access).id)

    @app.get("/health", tags=["Operation"])
    async def health(request: Request) -> dict[str, Any]:
        """Return the status "ok", and the number of running and waiting generations."""
        queue = service_of(request).queue
        return {"status": "ok", "running": queue.running, "waiting": queue.waiting}

    @app.get("/ready", tags=["Operation"], responses={503: {"model": ErrorBody}})
    async def ready() -> dict[str, Any]:
        """Return 200 while the server accepts requests, and 503 as soon as it begins to shut down.

        The server starts to listen after its models are loaded; until then, connections are refused.
        """
        if app.state.is_draining:
            raise ApiError(503, DRAINING, code="server_shutting_down", headers={"Retry-After": "1"})
        return {"status": "ready"}

    @app.get("/metrics", tags=["Operation"], responses=ERRORS)
    def metrics(request: Request, _: Annotated[Access, Depends(access_of)]) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(service_of(request).metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _model_object(service: Service, name: str) -> dict[str, Any]:
    served = service.models[name]
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "antiphon",
        "max_model_len": served.language_model.context_window,
        "collection": served.collection,
        "extractive": isinstance(served.language_model, ExtractiveModel),
    }

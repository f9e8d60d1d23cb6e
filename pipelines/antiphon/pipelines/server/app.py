"""The application: endpoints, errors and manners put together. Knows no command and no model by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware

from antiphon.pipelines.server import chat, completions, documents, page, responses, retrieval
from antiphon.pipelines.server.errors import add_error_handlers
from antiphon.pipelines.server.guard import Guard
from antiphon.pipelines.server.service import Service, key_of, service_of


def create_app(service: Service) -> FastAPI:
    """The application of a service; it closes the service when it ends."""

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.scheduler.close()

    app = FastAPI(
        title="Antiphon",
        description="Language models and documents in OpenAI's words.",
        version="1",
        lifespan=living,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    add_error_handlers(app)
    for each in (chat, completions, responses, retrieval, documents, page):
        app.include_router(each.router)
    _add_operations(app)
    page.add_files(app)
    settings = service.settings
    if settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"]
        )
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    return app


def _add_operations(app: FastAPI) -> None:
    @app.get("/v1/models", tags=["OpenAI"], responses=chat.ERRORS)
    def list_models(request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
        """The models of this server."""
        return {"object": "list", "data": [_entry(service_of(request), name) for name in service_of(request).models]}

    @app.get("/v1/models/{name:path}", tags=["OpenAI"], responses=chat.ERRORS)
    def one_model(name: str, request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
        """One model."""
        return _entry(service_of(request), service_of(request).model(name).id)

    @app.get("/health", tags=["Operation"])
    def health(request: Request) -> dict[str, Any]:
        """Whether the server answers, and how much it has to do."""
        scheduler = service_of(request).scheduler
        return {"status": "ok", "running": scheduler.running, "waiting": scheduler.waiting}

    @app.get("/metrics", tags=["Operation"], responses=chat.ERRORS)
    def metrics(request: Request, _: Annotated[str, Depends(key_of)]) -> Response:
        """Figures for Prometheus."""
        return Response(service_of(request).metrics.told(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _entry(service: Service, name: str) -> dict[str, Any]:
    served = service.models[name]
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "antiphon",
        "max_model_len": served.language_model.context_window,
    }

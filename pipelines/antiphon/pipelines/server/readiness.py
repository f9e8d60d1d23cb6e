"""Readiness: tells load balancers and systemd whether the server accepts requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request

from antiphon.pipelines.server.errors import ApiError, ErrorBody
from antiphon.pipelines.server.systemd import notify_service_manager

DRAINING = "The server is shutting down: it finishes the requests in progress; send new ones to another server."

router = APIRouter(tags=["Operation"])


@router.get("/ready", responses={503: {"model": ErrorBody}})
async def ready(request: Request) -> dict[str, Any]:
    """Return 200 while the server accepts requests, and 503 as soon as it begins to shut down.

    The server starts to listen after its models are loaded; until then, connections are refused.
    """
    if request.app.state.is_draining:
        raise ApiError(503, DRAINING, code="server_shutting_down", headers={"Retry-After": "1"})
    return {"status": "ready"}


def start_draining(app: FastAPI) -> None:
    """Answer 503 at /ready from now on, and tell systemd that the server is stopping."""
    app.state.is_draining = True
    notify_service_manager("STOPPING=1")

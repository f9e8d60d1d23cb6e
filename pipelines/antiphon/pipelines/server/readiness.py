"""Readiness: tells load balancers and systemd whether the server accepts requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from antiphon.pipelines.server.errors import ApiError, ErrorBody

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

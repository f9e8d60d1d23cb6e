"""Readiness: tells load balancers and systemd whether the server accepts requests."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from fastapi import APIRouter, FastAPI, Request

from antiphon.pipelines.server.errors import ApiError, ErrorBody

DRAINING = "The server is shutting down: it finishes the requests in progress; send new ones to another server."

logger = logging.getLogger("antiphon.server")

router = APIRouter(tags=["Operation"])


@router.get("/ready", responses={503: {"model": ErrorBody}})
async def ready(request: Request) -> dict[str, Any]:
    """Return 200 while the server accepts requests, and 503 from the moment in which it begins to shut down.

    The server listens once its models are loaded; before, connections are refused.
    """
    if request.app.state.is_draining:
        raise ApiError(503, DRAINING, code="server_shutting_down", headers={"Retry-After": "1"})
    return {"status": "ready"}


def start_draining(app: FastAPI) -> None:
    """Answer 503 at /ready from now on, and tell systemd that the server is stopping."""
    app.state.is_draining = True
    notify_service_manager("STOPPING=1")


def notify_service_manager(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd, which names its socket in ``NOTIFY_SOCKET``; else do nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    abstract = address.startswith("@")  # a name in Linux' abstract namespace, which begins with a zero byte
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)
    except OSError as error:
        logger.warning("systemd is not told %s: %s", state, error)

"""The service behind an MCP server, which may still be loading while the server already answers its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from antiphon.pipelines.server.errors import ApiError

if TYPE_CHECKING:
    from antiphon.pipelines.server.service import Service

Report = Callable[[str], Awaitable[None]]
"""Sends a progress notification with this message to the client."""

ACCESS = "antiphon.access"
"""The key of an HTTP request's scope that holds the rights of its API key."""

LOADING = "Loading the documents and the model"

REPORT_SECONDS = 2.0
"""Seconds between two progress notifications while the service is loading."""

logger = logging.getLogger("antiphon.server")


class ServiceSource:
    """Loads a service once, in a thread.

    Args:
        load: loads the service.
    """

    def __init__(self, load: Callable[[], Service]) -> None:
        self._load = load
        self._loading: asyncio.Future[Service] | None = None

    def start(self) -> None:
        """Begin to load the service, if that has not begun."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
            self._loading.add_done_callback(_log_failure)

    @property
    def loaded(self) -> Service | None:
        """The service, if it is loaded."""
        is_loaded = self._loading is not None and self._loading.done() and self._loading.exception() is None
        return self._loading.result() if is_loaded and self._loading is not None else None

    async def service(self, report: Report) -> Service:
        """Wait for the service and return it.

        Args:
            report: receives progress while it is loading.

        Raises:
            ApiError: 503, it cannot be loaded.
        """
        self.start()
        loading = self._loading
        assert loading is not None
        while not loading.done():
            await report(LOADING)
            await asyncio.wait({loading}, timeout=REPORT_SECONDS)
        if (error := loading.exception()) is not None:
            raise ApiError(503, f"The documents or the model cannot be loaded: {error}") from error
        return loading.result()

    async def close(self) -> None:
        """Wait until loading has ended, and close the service's request queue."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
        if (service := self.loaded) is not None:
            await asyncio.to_thread(service.queue.close)


def _log_failure(loading: asyncio.Future[Service]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        logger.error("the documents or the model cannot be loaded: %s", error)

"""The server as a process: where it listens, what it logs, how it ends. Knows no endpoint."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import json
import logging
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from antiphon.pipelines.server.guard import CURRENT
from antiphon.pipelines.server.settings import ServerSettings

SILENCE = 20
"""Seconds that a client has for the head of its request, after connecting and after each answer."""

FAREWELL = 1
"""Seconds for telling whoever waits when the server ends."""

SETTLED = 5
"""Seconds after the start at which what it has left behind is freed: not before the first answer."""

TAKEN = "The server cannot listen at {}, port {}; is another program there? Give another --host or --port."

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_place(host: str, settings: ServerSettings, *, lets_anybody: bool) -> None:
    """Refuse to listen where others can come from without a key.

    Raises:
        ValueError: the address is not this machine's own, there is no key, and nobody said that this is meant.
    """
    if is_loopback(host) or settings.keys or lets_anybody:
        return
    raise ValueError(
        f"{host} can be reached from other machines, and no key is set: anybody there could read the documents. Set "
        "one (--api-key, or ANTIPHON_API_KEY), or say --allow-without-key."
    )


def check_free(host: str, port: int) -> None:
    """Refuse an address that cannot be had, before anything is loaded.

    Raises:
        OSError: another program listens there, or it is not this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(found[0][4])
    except OSError as error:
        raise OSError(TAKEN.format(host, port)) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run_server(app: FastAPI, host: str, port: int, *, drain_seconds: int) -> None:
    """Serve until SIGTERM or Ctrl-C; then answer what has begun, for ``drain_seconds`` at most.

    Whoever waits longer is told that the server ends.

    Raises:
        OSError: the address cannot be had.
    """
    _log_as_json()
    _take_all_files()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_Impatient,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=SILENCE,
        timeout_graceful_shutdown=drain_seconds + FAREWELL,
    )
    server = _Telling(config, app.state.service.scheduler.end, drain_seconds)
    try:
        server.run()
    except SystemExit as error:  # uvicorn's word for an address that cannot be had
        raise OSError(TAKEN.format(host, port)) from error


class _Telling(uvicorn.Server):
    """uvicorn's own, which waits for answers when it ends and then breaks off; here whoever waits is told before."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[], None], seconds: float) -> None:
        super().__init__(config)
        self._tell = tell
        self._seconds = seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; what was made until now is for as long as the process lives, and is looked through once, later."""
        await super().startup(sockets)
        asyncio.get_running_loop().call_later(SETTLED, settle)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait, tell whoever waits still, and close."""
        telling = asyncio.get_running_loop().call_later(self._seconds, self._tell)
        try:
            await super().shutdown(sockets)
        finally:
            telling.cancel()


class _Impatient(H11Protocol):
    """uvicorn's own, which gives a client some seconds for its next request, and here for the whole head of each."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def handle_events(self) -> None:
        """Wait no more once the head of a request is there."""
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        """Wait for the next request; who is still sending the last one does not come to it."""
        is_sending = self.conn.their_state is h11.SEND_BODY
        self._wait()
        super().on_response_complete()
        if is_sending:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._wait_no_more()
        self._waiting = self.loop.call_later(SILENCE, self._tired)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _tired(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()


def settle() -> None:
    """Free what the start has left, and have Python's collector pass over all the rest from now on."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _take_all_files() -> None:
    """Let the process have as many connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; what a record says in JSON already is part of it."""
        said = record.getMessage()
        told: dict[str, Any] = json.loads(said) if said.startswith("{") else {"message": said.strip()}
        if (number := CURRENT.get(None)) is not None:
            told.setdefault("request", number)
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps({"time": self.formatTime(record), "level": record.levelname, **told})


def _log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("antiphon.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False

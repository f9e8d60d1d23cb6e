"""The server process: listening, timeouts, logging, graceful shutdown, and notices to systemd."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import sys
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from uvicorn.protocols.http.h11_impl import H11Protocol

from antiphon.pipelines.server.request_limits import REQUEST_ID
from antiphon.pipelines.tracing import current_ids

HEADER_TIMEOUT = 20
"""Seconds in which a client must send the head of a request, after connecting and after each response."""

SHUTDOWN_GRACE = 1
"""Seconds for sending the shutdown error to clients after the drain time."""

ADDRESS_IN_USE = (
    "The server cannot listen at {}, port {}; is another program listening there? Give another --host or --port."
)


def listen_address(host: str, port: int) -> tuple[str, int]:
    """Return the address at which the server will listen: the address of systemd's socket, or else the given address.

    Raises:
        OSError: another program listens there, or the address does not belong to this machine.
        ValueError: systemd passes a socket that the server cannot use.
    """
    if (inherited := inherited_socket()) is not None:
        with inherited:
            address: tuple[str, int] = inherited.getsockname()[:2]
        return address
    check_port_is_free(host, port)
    return host, port


def check_port_is_free(host: str, port: int) -> None:
    """Check that the server can listen at an address, before anything is loaded.

    Raises:
        OSError: another program listens there, or the address does not belong to this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(found[0][4])
    except OSError as error:
        raise OSError(ADDRESS_IN_USE.format(host, port)) from error


def run_server(app: FastAPI, host: str, port: int, *, drain_seconds: int, drain_delay: float = 0) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests in progress.

    A socket passed by systemd replaces the address.

    Args:
        drain_seconds: seconds in which requests in progress may finish; unfinished ones then receive the shutdown
            error.
        drain_delay: seconds in which new requests are still accepted, while /ready answers 503.

    Raises:
        OSError: the server cannot listen at the address.
    """
    _start_logging()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != soft:  # each connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = make_server(app, host, port, drain_seconds=drain_seconds, drain_delay=drain_delay)
    inherited = inherited_socket()
    try:
        server.run(None if inherited is None else [inherited])
    except SystemExit as error:  # uvicorn exits if it cannot listen
        raise OSError(ADDRESS_IN_USE.format(host, port)) from error


def make_server(app: FastAPI, host: str, port: int, *, drain_seconds: int, drain_delay: float = 0) -> DrainingServer:
    """Return the server of an application; `run_server` describes the arguments."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=HeaderTimeoutProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=HEADER_TIMEOUT,
        timeout_graceful_shutdown=drain_seconds + SHUTDOWN_GRACE,
    )
    return DrainingServer(config, app, drain_seconds, drain_delay)


class DrainingServer(uvicorn.Server):
    """A uvicorn server. Before it closes, it answers 503 at /ready, and sends an error to unfinished requests."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_seconds: float, drain_delay: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_seconds = drain_seconds
        self._drain_delay = drain_delay

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, notify systemd, and exclude the loaded objects from garbage collection."""
        await super().startup(sockets)
        notify_service_manager("READY=1")
        gc.freeze()
        gc.enable()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer 503 at /ready, wait for the requests in progress for at most the drain time, and close."""
        loop = asyncio.get_running_loop()
        self._app.state.is_draining = True
        notify_service_manager("STOPPING=1")
        until = loop.time() + self._drain_delay
        while loop.time() < until and not self.force_exit:
            await asyncio.sleep(0.05)
        timer = loop.call_later(self._drain_seconds, self._app.state.service.queue.shut_down)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            gc.unfreeze()


class HeaderTimeoutProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a time limit for receiving the headers of each request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def handle_events(self) -> None:
        """Stop the timer if the headers of a request are complete."""
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Start the timer for the next request. Close the connection if the client is still sending the last body."""
        is_sending = self.conn.their_state is h11.SEND_BODY
        self._start_timer()
        super().on_response_complete()
        if is_sending:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEADER_TIMEOUT, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class JsonLogFormatter(JsonFormatter):
    """A log formatter that writes each record as a line of JSON. If the message is a dict, its items become fields."""

    def __init__(self) -> None:
        super().__init__(
            ["asctime", "levelname", "message"],
            rename_fields={"asctime": "time", "levelname": "level", "exc_info": "error"},
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Add the ids of the request and its trace, and remove an empty message."""
        ids = current_ids()
        if (request := REQUEST_ID.get(None)) is not None:
            ids["request"] = request
        return {name: value for name, value in (log_data | ids).items() if value != ""}


class ReadableFormatter(logging.Formatter):
    """A log formatter for terminals: the time and the message; for a request its method, path, status and seconds."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """Return the line of a record."""
        if isinstance(record.msg, dict) and "path" in record.msg:
            record.message = "{method} {path} {status} {seconds:.2f} s".format(**record.msg)
        return super().formatMessage(record)


def _start_logging() -> None:
    """Log to standard error: readable lines on a terminal, else JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ReadableFormatter() if sys.stderr.isatty() else JsonLogFormatter())
    for name in ("antiphon.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


FIRST_DESCRIPTOR = 3
"""The file descriptor of the first socket that systemd passes."""

logger = logging.getLogger("antiphon.server")


def notify_service_manager(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd's ``NOTIFY_SOCKET``; do nothing if that variable is not set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    abstract = address.startswith("@")  # a name in Linux' abstract namespace, which begins with a zero byte
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)
    except OSError as error:
        logger.warning("systemd is not told %s: %s", state, error)


def inherited_socket() -> socket.socket | None:
    """Return the socket at which systemd listens for this process, or None.

    systemd keeps the socket open while the service restarts, so clients wait instead of being refused.

    Raises:
        ValueError: systemd passes several sockets, or one that is not a TCP socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(os.environ.get("LISTEN_FDS", "0"))
    if count != 1:
        raise ValueError(f"systemd passes {count} sockets; the server needs one ListenStream= in its socket unit.")
    found = socket.socket(fileno=os.dup(FIRST_DESCRIPTOR))
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        raise ValueError(f"systemd passes a socket of {found.family.name}; set ListenStream= to an address and a port.")
    return found

"""A small server with OpenAI's protocol over real sockets, which tests can make fail."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "Bees live in colonies of up to sixty thousand, and each colony has one queen."


@dataclass
class FakeServer:
    """Settings of the server, and the requests that it received.

    Attributes:
        owner: The ``owned_by`` field of its models.
        key: API key; None accepts any.
        models: Names of its models.
        window: Context window of its models.
        pieces: Text pieces of every answer, one event each.
        thoughts: Fields of the message that are sent before the pieces, once or as often as there are entries.
        is_off: Returns whether a request turns thinking off; by default none does.
        rejects: Fields of a request, and types of its response format, that are answered with 400.
        pages: What further paths answer: JSON, or a function of the request.
        calls: Parts of tool calls, sent after the pieces.
        usage: Reported token counts.
        metrics: Reported metrics.
        error_codes: HTTP status of the next requests, one each; later ones succeed.
        breaks_after: Number of pieces after which the connection is closed.
        fails_inside: Whether an error event is sent before the connection is closed.
        pause: Seconds before each piece.
        takes_references: Whether references are validated, as vLLM with the plug-in does.
        requests: Bodies of the requests to generate.
        paths: Paths of all requests.
        max_running: Maximum number of concurrent requests.
        running: Number of current requests.
        disconnects: Number of clients that closed the connection early.
    """

    owner: str = "someone"
    key: str | None = None
    models: tuple[str, ...] = ("tiny",)
    window: int | None = None
    pieces: tuple[str, ...] = (*(word + " " for word in ANSWER.split(" ")[:-1]), "queen.")
    thoughts: dict[str, str] | list[dict[str, str]] = field(default_factory=dict)
    is_off: Callable[[dict[str, Any]], bool] = lambda _: False
    rejects: tuple[str, ...] = ()
    pages: dict[str, Any] = field(default_factory=dict)
    calls: tuple[dict[str, Any], ...] = ()
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 15})
    metrics: dict[str, Any] | None = None
    error_codes: list[int] = field(default_factory=list)
    breaks_after: int | None = None
    fails_inside: bool = False
    pause: float = 0.0
    takes_references: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    max_running: int = 0
    running: int = 0
    disconnects: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


@contextmanager
def run_server(fake: FakeServer) -> Iterator[FakeServer]:
    """Run the server at ``fake.url`` until the block ends."""

    class Handler(_Handler):
        settings = fake

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    settings: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.settings.paths.append(self.path)
        if self._is_authorized() and self.path == "/v1/models":
            window = {} if self.settings.window is None else {"max_model_len": self.settings.window}
            models = [
                {"id": name, "object": "model", "owned_by": self.settings.owner} | window
                for name in self.settings.models
            ]
            self._answer(200, {"object": "list", "data": models})
        elif self._is_authorized():
            self._answer(*self._page())

    def _page(self) -> tuple[int, Any]:
        page = self.settings.pages.get(self.path)
        return (404, {"detail": "Not Found"}) if page is None else (200, page)

    def do_POST(self) -> None:
        self.settings.paths.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_authorized():
            return
        if self.path == "/tokenize":
            self._answer(200, {"count": len(json.dumps(body))})
            return
        if self.path in self.settings.pages:
            status, page = self._page()
            self._answer(status, page(body) if callable(page) else page)
            return
        known = {*body, (body.get("response_format") or {}).get("type")}
        if found := [name for name in self.settings.rejects if name in known]:
            unknown = f"Unrecognized request argument supplied: {found[0]}"
            self._fail(400, unknown if found[0] in body else "Input should be 'text' or 'json_object'")
            return
        references = (body.get("vllm_xargs") or {}).get("references")
        if references == 0:
            is_rejected = self.settings.takes_references
            self._fail(400, "references is 0") if is_rejected else self._answer(200, {"choices": []})
            return
        with self.settings.lock:
            status = self.settings.error_codes.pop(0) if self.settings.error_codes else 200
        if body["model"] not in self.settings.models:
            self._fail(404, f"The model `{body['model']}` does not exist.")
        elif status != 200:
            self._fail(status, "not now")
        else:
            self._stream(body)

    def _is_authorized(self) -> bool:
        if self.settings.key in (None, self.headers.get("Authorization", "").removeprefix("Bearer ")):
            return True
        self._fail(401, "Unauthorized")
        return False

    def _stream(self, body: dict[str, Any]) -> None:
        settings = self.settings
        with settings.lock:
            settings.requests.append(body)
            settings.running += 1
            settings.max_running = max(settings.max_running, settings.running)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            completed = self._events(body)
        except OSError:  # the client has disconnected
            with settings.lock:
                settings.disconnects += 1
            completed = False
        with settings.lock:
            settings.running -= 1
        if completed:  # after the count, as the client may send its next request at once
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    def _events(self, body: dict[str, Any]) -> bool:
        """Send the events of an answer, and return whether the connection is still open."""
        settings, is_chat = self.settings, self.path.endswith("/chat/completions")
        thoughts = [settings.thoughts] if isinstance(settings.thoughts, dict) else settings.thoughts
        thoughts = [] if settings.is_off(body) else [thought for thought in thoughts if thought]
        limit = body.get("max_tokens") or 10_000
        for thought in thoughts[:limit]:
            self._event(_choice(thought))
        for count, piece in enumerate(
            settings.pieces[: max(limit - len(thoughts), 0)] if thoughts else settings.pieces
        ):
            if count == settings.breaks_after:
                if settings.fails_inside:
                    self._event({"error": {"message": "the engine is dead", "code": 500}})
                self.close_connection = True
                self.connection.close()
                return False
            time.sleep(settings.pause)
            self._event(
                _choice({"content": piece} if is_chat else piece, ids=[count] if body.get("return_token_ids") else [])
            )
        for call in settings.calls:
            self._event(_choice({"tool_calls": [call]}))
        length = limit < len(settings.pieces) + len(thoughts)
        self._event(_choice({} if is_chat else "", finish="length" if length else "stop"))
        if settings.usage is not None:
            self._event({"choices": [], "usage": settings.usage, "metrics": settings.metrics})
        return True

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps({'id': 'x', 'model': 'tiny', 'created': 0} | event)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _fail(self, status: int, message: str) -> None:
        self._answer(status, {"error": {"message": message, "type": "error", "param": None, "code": status}})

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _choice(
    content: dict[str, Any] | str, *, finish: str | None = None, ids: list[int] | None = None
) -> dict[str, Any]:
    fields = {"text": content} if isinstance(content, str) else {"delta": content}
    own = {"token_ids": ids} if ids else {}
    return {"choices": [{"index": 0, "finish_reason": finish} | fields | own]}

"""A small server of the tests' own that speaks OpenAI's protocol over real sockets, and can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "Bees live in colonies of up to sixty thousand, and each colony has one queen."


@dataclass
class Speaking:
    """What the server says, and what it was asked: one body for each request to an endpoint that generates.

    ``pieces`` are streamed, one event each. ``refuse`` is a status for the next so many requests; ``breaks`` ends the
    connection after so many pieces; ``pause`` is waited before each, in seconds.
    """

    owner: str = "someone"
    key: str | None = None
    models: tuple[str, ...] = ("tiny",)
    window: int | None = None
    pieces: tuple[str, ...] = (*(word + " " for word in ANSWER.split(" ")[:-1]), "queen.")
    calls: tuple[dict[str, Any], ...] = ()
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 15})
    metrics: dict[str, Any] | None = None
    refuse: list[int] = field(default_factory=list)
    breaks: int | None = None
    fails_inside: bool = False
    pause: float = 0.0
    takes_references: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    most: int = 0
    running: int = 0
    cut: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


@contextmanager
def serving(speaking: Speaking) -> Iterator[Speaking]:
    """The server, running at ``speaking.url`` until the block ends."""

    class Handler(_Handler):
        says = speaking

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    speaking.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield speaking
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that went away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    says: Speaking
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.says.seen.append(self.path)
        if self._is_let_in() and self.path == "/v1/models":
            window = {} if self.says.window is None else {"max_model_len": self.says.window}
            models = [
                {"id": name, "object": "model", "owned_by": self.says.owner} | window for name in self.says.models
            ]
            self._answer(200, {"object": "list", "data": models})
        elif self._is_let_in():
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        self.says.seen.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_let_in():
            return
        if self.path == "/tokenize":
            self._answer(200, {"count": len(json.dumps(body))})
            return
        references = (body.get("vllm_xargs") or {}).get("references")
        if references == 0:
            refused = self.says.takes_references
            self._refuse(400, "references is 0") if refused else self._answer(200, {"choices": []})
            return
        with self.says.lock:
            status = self.says.refuse.pop(0) if self.says.refuse else 200
        if body["model"] not in self.says.models:
            self._refuse(404, f"The model `{body['model']}` does not exist.")
        elif status != 200:
            self._refuse(status, "not now")
        else:
            self._say(body)

    def _is_let_in(self) -> bool:
        if self.says.key in (None, self.headers.get("Authorization", "").removeprefix("Bearer ")):
            return True
        self._refuse(401, "Unauthorized")
        return False

    def _say(self, body: dict[str, Any]) -> None:
        says = self.says
        with says.lock:
            says.asked.append(body)
            says.running += 1
            says.most = max(says.most, says.running)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._events(body)
        except OSError:  # the client has gone
            with says.lock:
                says.cut += 1
        finally:
            with says.lock:
                says.running -= 1

    def _events(self, body: dict[str, Any]) -> None:
        says, is_chat = self.says, self.path.endswith("/chat/completions")
        for count, piece in enumerate(says.pieces):
            if count == says.breaks:
                if says.fails_inside:
                    self._event({"error": {"message": "the engine is dead", "code": 500}})
                self.close_connection = True
                self.connection.close()
                return
            time.sleep(says.pause)
            self._event(
                _choice({"content": piece} if is_chat else piece, ids=[count] if body.get("return_token_ids") else [])
            )
        for call in says.calls:
            self._event(_choice({"tool_calls": [call]}))
        length = (body.get("max_tokens") or 10_000) < len(says.pieces)
        self._event(_choice({} if is_chat else "", finish="length" if length else "stop"))
        if says.usage is not None:
            self._event({"choices": [], "usage": says.usage, "metrics": says.metrics})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps({'id': 'x', 'model': 'tiny', 'created': 0} | event)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, {"error": {"message": message, "type": "error", "param": None, "code": status}})

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _choice(said: dict[str, Any] | str, *, finish: str | None = None, ids: list[int] | None = None) -> dict[str, Any]:
    kind = {"text": said} if isinstance(said, str) else {"delta": said}
    own = {"token_ids": ids} if ids else {}
    return {"choices": [{"index": 0, "finish_reason": finish} | kind | own]}

"""A local server with the hub's endpoints for one model, and a function that runs scripts against it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME = "someone/model"


class FakeHub(BaseHTTPRequestHandler):
    """Answers what the hub's client asks about one model."""

    files: Mapping[str, bytes]
    requests: list[str]
    broken: set[str]
    """Files whose download fails."""

    @classmethod
    def downloaded(cls) -> list[str]:
        """Return the names of the files that were downloaded, in order."""
        found = [each for each in cls.requests if each.startswith("GET") and "/resolve/" in each]
        return [file_of(each) for each in found]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        if "/resolve/" not in self.path:
            about: Any = self._tree() if "/tree/" in self.path else self._information()
            return self._send(json.dumps(about).encode(), {})
        file = file_of(self.path)
        if file not in self.files or (file in self.broken and self.command == "GET"):
            return self.send_error(404)
        return self._send(self.files[file], {"ETag": f'"{file.replace("/", "-")}"', "X-Repo-Commit": "c" * 40})

    def _information(self) -> dict[str, Any]:
        files = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
        return {"id": NAME, "modelId": NAME, "sha": "c" * 40, "siblings": files}

    def _tree(self) -> list[dict[str, Any]]:
        """Return the files at the top, as the hub lists them."""
        top = {name: content for name, content in self.files.items() if "/" not in name}
        return [{"type": "file", "path": name, "size": len(content), "oid": name} for name, content in top.items()]

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Write no log."""


def file_of(path: str) -> str:
    """Return the name of the file in a path such as /someone/model/resolve/main/config.json."""
    return path.partition("/resolve/")[2].partition("/")[2]


@contextmanager
def fake_hub(files: Mapping[str, bytes]) -> Iterator[tuple[str, type[FakeHub]]]:
    """Serve a model's files; yield the address and the handler, which records the requests."""
    handler = type("Handler", (FakeHub,), {"files": files, "requests": [], "broken": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def run_with_hub(address: str, cache: Path, script: str, **more: str) -> list[str]:
    """Return the lines that a script prints in a new process with this hub, an empty cache, and more variables."""
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)} | more
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | settings
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip().splitlines()

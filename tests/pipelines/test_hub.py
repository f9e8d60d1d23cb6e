"""Weights of a hub model are downloaded with progress in megabytes, continued, and refused if the disk is too small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

NAME = "someone/model"
PARTS = {"model-1.safetensors": b"a" * 3_000_000, "model-2.safetensors": b"b" * 2_500_000}
INDEX = {"weight_map": {"first": "model-1.safetensors", "second": "model-2.safetensors"}}
FILES = PARTS | {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "consolidated.safetensors": b"c" * 1000,
}

SCRIPT = """
import json, sys
from antiphon.pipelines import resolve_model
said = []
try:
    print(resolve_model("someone/model", progress=lambda *report: said.append(report)))
except ValueError as error:
    print(error)
print(json.dumps(said))
"""

FULL_DISK = """
import shutil
shutil.disk_usage = lambda path: type("Usage", (), {"free": 1_000_000})
"""


class FakeHub(BaseHTTPRequestHandler):
    """Answers what the hub's client asks about one model."""

    requests: list[str]
    broken: set[str]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        if "/resolve/" not in self.path:
            return self._send(json.dumps(self._information()).encode(), {})
        file = self.path.rpartition("/")[2]
        if file not in FILES or (file in self.broken and self.command == "GET"):
            return self.send_error(404)
        return self._send(FILES[file], {"ETag": f'"{file}"', "X-Repo-Commit": "c" * 40})

    def _information(self) -> dict[str, Any]:
        files = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
        return {"id": NAME, "modelId": NAME, "sha": "c" * 40, "siblings": files}

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Write no log."""


@pytest.fixture
def hub() -> Iterator[tuple[str, type[FakeHub]]]:
    handler = type("Handler", (FakeHub,), {"requests": [], "broken": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def resolve(address: str, cache: Path, prelude: str = "") -> tuple[str, list[tuple[str, int, int]]]:
    """Return the result or the error of `resolve_model`, and its progress reports, in a new process."""
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | settings
    command = [sys.executable, "-c", prelude + SCRIPT]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    answer, reports = run.stdout.strip().splitlines()
    return answer, [(stage, done, total) for stage, done, total in json.loads(reports)]


def downloaded(handler: type[FakeHub]) -> set[str]:
    """Return the names of the files that were downloaded."""
    return {each.rpartition("/")[2] for each in handler.requests if each.startswith("GET") and "/resolve/" in each}


def test_the_parts_of_the_weights_are_downloaded_with_progress(hub: tuple[str, type[FakeHub]], tmp_path: Path) -> None:
    address, handler = hub
    answer, reports = resolve(address, tmp_path)
    assert answer == NAME
    assert {stage for stage, _, _ in reports} == {"Downloading someone/model, MB"}
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert reports[-1][1:] == (5, 5)
    assert downloaded(handler) == {*PARTS, "model.safetensors.index.json"}  # not the same weights in one file
    handler.requests.clear()
    assert resolve(address, tmp_path)[1] == []
    assert downloaded(handler) == set()


def test_after_an_interrupted_download_only_the_rest_is_fetched(hub: tuple[str, type[FakeHub]], tmp_path: Path) -> None:
    address, handler = hub
    handler.broken.add("model-2.safetensors")
    answer, _ = resolve(address, tmp_path)
    assert answer.startswith("The weights of 'someone/model' cannot be downloaded (")
    assert answer.endswith("What has arrived is kept: run the command again.")
    handler.broken.clear()
    handler.requests.clear()
    answer, reports = resolve(address, tmp_path)
    assert answer == NAME
    assert reports[-1][1:] == (2, 2)
    assert downloaded(handler) == {"model-2.safetensors"}


def test_a_disk_with_too_little_space_is_named_before_the_download(
    hub: tuple[str, type[FakeHub]], tmp_path: Path
) -> None:
    address, handler = hub
    answer, _ = resolve(address, tmp_path, FULL_DISK)
    assert answer.startswith("The weights of 'someone/model' need 0.0 GB, and 0.0 GB are free in ")
    assert answer.endswith("free some, or set HF_HOME to a folder on another disk.")
    assert not downloaded(handler) & set(PARTS)

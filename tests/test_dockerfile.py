"""The Dockerfile, checked step by step without Docker: its packages, folders and entrypoint serve requests."""

import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from antiphon.pipelines.cli.console import quiet_libraries
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.load.servers import Command, serving
from tests.test_wheel import ROOT, installed, wheel
from tests.tiny import save_model, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

__all__ = ["wheel"]

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


def arguments_of(instruction: str) -> list[str]:
    """Return the arguments of each use of a Dockerfile instruction."""
    return re.findall(rf"^{instruction} (.*)$", DOCKERFILE, re.MULTILINE)


def test_the_server_writes_only_to_folders_that_any_user_may_write() -> None:
    [folders] = re.findall(r"mkdir -m 1777 (.*?) &&", DOCKERFILE)
    [index] = [json.loads(words)[1] for words in arguments_of("CMD")]
    home = re.findall(r"HOME=(\S+)", DOCKERFILE)
    assert {index, f"{index}-uploads", *home} <= set(folders.split())


def test_the_installed_packages_serve_with_the_entrypoint(
    wheel: Path, passages: list[Passage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [extras] = re.findall(r"\.whl\)\[([\w,-]+)\]", DOCKERFILE)
    place = installed(wheel, tmp_path / "image", extras.split(","), re.findall(r"--no-deps ([\w-]+)==", DOCKERFILE))
    quiet_libraries()
    save_model(tiny_model(max_position_embeddings=2048), tmp_path / "tiny")
    index_passages(passages, tmp_path / "index", HashEmbedder())
    [entrypoint], [command] = map(json.loads, arguments_of("ENTRYPOINT")), map(json.loads, arguments_of("CMD"))
    words = [*entrypoint, *command, "--model", str(tmp_path / "tiny"), "--engine", "torch"]
    own = {"antiphon": str(place / "bin" / "antiphon"), "0.0.0.0": "127.0.0.1", "/index": str(tmp_path / "index")}
    for name in ("PYTHONPATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANTIPHON_API_KEY", "KEY")
    with serving(Command("image", tuple(own.get(word, word) for word in words)), tmp_path / "log") as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        headers = {"Authorization": "Bearer KEY"}
        listed = httpx.get(f"{server.url}/v1/models", headers=headers).json()["data"]
        assert [each["id"] for each in listed] == ["tiny", "tiny+index"]
        asked = {"model": "tiny+index", "messages": [{"role": "user", "content": "Bees?"}], "max_tokens": 4}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, headers=headers, timeout=120)
        assert answer.json()["usage"]["completion_tokens"] == 4
        long = asked | {"messages": [{"role": "user", "content": "Bees? " * 1000}]}
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=long, headers=headers, timeout=120)
        assert "'tiny'" in refused.json()["error"]["message"]
        assert str(tmp_path) not in refused.text
        files = {"file": ("a.txt", b"Bees dance.")}
        assert httpx.post(f"{server.url}/documents", files=files, headers=headers, timeout=60).status_code == 200
    assert sys.prefix not in (tmp_path / "log").read_text("utf-8")

"""No command and no framework class reaches for another machine unasked; importing OpenVINO would."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import platformdirs
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from antiphon.accel.no_telemetry import OPT_OUTS
from tests.load.servers import Command, serving

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(600)]

FORBID = Path(__file__).parent / "forbid_network"
QUESTION = "How many eggs does a queen lay?"
CLI = (sys.executable, "-m", "antiphon.pipelines.cli")

FRAMEWORKS = f"""
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.integrations.llama_index import AntiphonQueryEngine
from antiphon.pipelines import Rag
from antiphon.retrieval import Retriever
chain = ChatAntiphon(model="reader").with_retriever(AntiphonRetriever.open("index"))
print(chain.invoke({QUESTION!r})["answer"].text)
print(AntiphonQueryEngine(Rag(Retriever.open("index"))).query({QUESTION!r}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, reader_folder: Path) -> Path:
    """A folder of documents with an index and a separate home folder."""
    folder = tmp_path_factory.mktemp("no-network")
    (folder / "home").mkdir()
    (folder / "documents").mkdir()
    text = "A queen lays as many as two thousand eggs on a summer's day."
    (folder / "documents" / "bees.txt").write_text(text, encoding="utf-8")
    assert "1 passage" in run(folder, *CLI, "index", "documents", "--out", "index")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return an environment that forbids the network; already converted models stay in their folder."""
    kept = {name: value for name, value in os.environ.items() if name not in OPT_OUTS}
    paths = [str(FORBID), *sys.path]
    return kept | {
        "HOME": str(folder / "home"),
        "NETWORK_LOG": str(folder / "network.log"),
        "PYTHONPATH": os.pathsep.join(paths),
        "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),
    }


def run(folder: Path, *command: str, spoken: str = "") -> str:
    """Run a command in a folder; return what it prints."""
    process = subprocess.run(
        command, cwd=folder, env=environment(folder), input=spoken, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr


def check(folder: Path) -> None:
    """Check that no process tried to reach another machine, or left a file in the home folder."""
    log = folder / "network.log"
    assert not log.exists(), log.read_text()
    assert list((folder / "home").iterdir()) == []


@pytest.mark.parametrize(
    ("command", "spoken"),
    [
        (("ask", QUESTION, "--index", "index"), ""),
        (("ask", QUESTION, "--index", "index", "--model", "reader"), ""),
        (("chat", "--index", "index"), f"{QUESTION}\n"),
        (("doctor", "smollm2"), ""),
        (("demo",), ""),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else "",
)
def test_a_command_reaches_for_no_other_machine(command: Sequence[str], spoken: str, folder: Path) -> None:
    shown = run(folder, *CLI, *command, spoken=spoken)
    assert "two thousand eggs" in shown or command[0] in ("doctor", "demo")
    check(folder)


def test_the_server_reaches_for_no_other_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPT_OUTS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    with serving(Command("antiphon", (*CLI, "serve", "--index", str(folder / "index"))), folder / "log") as server:
        body = {"model": "reader+index", "messages": [{"role": "user", "content": QUESTION}]}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    assert "two thousand eggs" in answer["choices"][0]["message"]["content"]
    check(folder)


async def test_the_mcp_server_reaches_for_no_other_machine(folder: Path) -> None:
    arguments = [*CLI[1:], "mcp", "--index", "index"]
    server = StdioServerParameters(command=CLI[0], args=arguments, env=environment(folder), cwd=folder)
    async with Client(stdio_client(server)) as client:
        assert "two thousand eggs" in str((await client.call_tool("ask", {"question": QUESTION})).content)
    check(folder)


def test_the_framework_classes_reach_for_no_other_machine(folder: Path) -> None:
    assert run(folder, sys.executable, "-c", FRAMEWORKS).count("two thousand eggs") == 2
    check(folder)


def test_an_attempt_would_be_found(folder: Path) -> None:
    script = "import urllib.request; urllib.request.urlopen('http://analytics.example.org')"
    with pytest.raises(AssertionError, match=r"analytics\.example\.org is another machine"):
        run(folder, sys.executable, "-c", script)
    log = folder / "network.log"
    assert "socket.getaddrinfo analytics.example.org" in log.read_text()
    log.unlink()

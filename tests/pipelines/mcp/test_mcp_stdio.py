"""The command `antiphon mcp` on standard input and output, and its options."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.pipelines.mcp.conftest import ProgressLog, index_of_documents

QUESTION = "How many eggs does a queen lay?"
DOCUMENT = "A queen lays as many as two thousand eggs on a summer's day."


@pytest.mark.slow
async def test_an_agent_that_starts_the_command_receives_answers_and_only_messages(tmp_path: Path) -> None:
    folder = index_of_documents(tmp_path / "index", {"bees.txt": DOCUMENT})
    command = [sys.executable, "-m", "antiphon.pipelines.cli", "mcp", "--index", str(folder)]
    copied = StdioServerParameters(command="sh", args=["-c", '"$@" | tee stdout', "sh", *command], cwd=tmp_path)
    log = ProgressLog()
    with (tmp_path / "stderr").open("w") as stderr:
        async with Client(stdio_client(copied, errlog=stderr)) as client:
            tools = (await client.list_tools()).tools
            result = await client.call_tool("ask", {"question": QUESTION}, progress_callback=log)
    assert [tool.name for tool in tools] == ["search", "ask", "read_passage"]
    assert "two thousand eggs" in result.structured_content["answer"]
    assert result.structured_content["citations"][0]["source"] == "bees.txt"
    assert log.messages[0] == "Loading the documents and the model"
    messages = [json.loads(line) for line in (tmp_path / "stdout").read_text().splitlines()]
    assert len(messages) >= 4
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert (tmp_path / "stderr").read_text().startswith("Opening")

"""Thinking of a model on a server: separated, switched and limited as that of a local one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import Conversation, RemoteLanguageModel
from antiphon.accel.remote.request_body import build_body
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.text.parameters import Settings
from antiphon.pipelines.server.app import create_app
from tests.accel.thinking_models import QUESTION, thinking_tokenizer, writing
from tests.pipelines.server.conftest import tiny_service
from tests.pipelines.server.live_server import live_server

OUTPUT = "<think>\nBees do.\n</think>\n\nSo it is."


@pytest.fixture(scope="module")
def remote(index_folder: Path) -> Iterator[RemoteLanguageModel]:
    model = writing(thinking_tokenizer("decides"), OUTPUT)
    with live_server(create_app(tiny_service(model, index_folder))) as address:
        yield RemoteLanguageModel(f"{address}/v1", "tiny")


def test_thinking_is_separated_from_the_answer(remote: RemoteLanguageModel) -> None:
    with remote.stream(QUESTION) as stream:
        pieces = list(iter(stream.next_piece, None))
    found = stream.completion
    assert (found.reasoning, found.text, found.ended_in_thinking) == ("Bees do.", "So it is.", False)
    assert "".join(piece.text for piece in pieces if piece.is_thinking) == found.reasoning
    assert "".join(remote.stream(QUESTION)) == found.text
    assert found.usage.reasoning_tokens == len(OUTPUT) - len("So it is.")


def test_thinking_is_switched_and_limited(remote: RemoteLanguageModel) -> None:
    usual = remote.generate(QUESTION, max_new_tokens=1).usage.prompt_tokens
    off = remote.generate(QUESTION, max_new_tokens=1, thinking=False).usage.prompt_tokens
    assert off - usual == len("<think>\n\n</think>\n\n")
    limited = remote.generate(QUESTION, max_new_tokens=3, max_thinking_tokens=5)
    assert (limited.reasoning, len(limited.text)) == ("Bees", 3)
    cut = remote.generate(QUESTION, max_new_tokens=12)
    assert (cut.text, cut.finish_reason, cut.ended_in_thinking) == ("", "length", True)


def body(kind: Any, **conversation: Any) -> dict[str, Any]:
    prompt = Conversation(QUESTION, **conversation)
    return build_body(prompt, Settings(), ServedModel("m", kind, None, ""))[1]


def test_each_kind_of_server_gets_the_variables_that_it_knows() -> None:
    variables = {"reasoning_effort": "high", "date": "today"}
    on = {"thinking": True, "template_variables": variables}
    switched = {**variables, "enable_thinking": True, "thinking": True}
    for kind in ("vllm", "antiphon", "llamacpp", "lmstudio", "other"):
        assert body(kind, **on)["chat_template_kwargs"] == switched
        assert "chat_template_kwargs" not in body(kind)
    assert body("other", **on)["reasoning_effort"] == "high"
    assert (body("ollama", **on)["reasoning_effort"], body("ollama", **on)["think"]) == ("high", True)
    off = body("ollama", thinking=False)
    assert (off["reasoning_effort"], off["think"], "chat_template_kwargs" in off) == ("none", False, False)
    assert not {"think", "reasoning_effort"} & body("ollama").keys()
    with pytest.raises(ValueError, match="max_thinking_tokens is 5, which only local models"):
        build_body(Conversation(QUESTION), Settings(max_thinking_tokens=5), ServedModel("m", "vllm", None, ""))

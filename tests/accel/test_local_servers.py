"""Models on local servers: addresses, kinds of servers, context windows, and thinking that was not asked for."""

import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from antiphon.accel import RemoteLanguageModel
from antiphon.accel.remote import server as remote_server
from antiphon.accel.remote.errors import RemoteError
from antiphon.accel.remote.server import find_model, is_address, local_servers, split_address
from antiphon.accel.remote.thinking_tags import TAGS, TaggedContent
from tests.accel.fake_server import ANSWER, FakeServer, run_server

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "How do bees live?"}]
OLLAMA = {
    "/api/tags": {
        "models": [
            {"name": "qwen3:4b", "details": {"family": "qwen3"}},
            {"name": "paraphrase:latest", "details": {"family": "bert"}},
        ]
    },
    "/api/show": {
        "capabilities": ["completion", "tools", "thinking"],
        "model_info": {"qwen3.context_length": 40960},
        "parameters": "temperature 1\nstop <|im_end|>",
    },
    "/api/ps": {"models": []},
}
LM_STUDIO = {
    "/api/v0/models": {
        "data": [
            {"id": "qwen/qwen3-4b", "type": "llm", "loaded_context_length": 9000, "max_context_length": 32768},
            {"id": "nomic", "type": "embeddings"},
        ]
    }
}


@pytest.fixture
def ollama() -> Iterator[FakeServer]:
    fake = FakeServer(owner="library", models=("qwen3:4b", "paraphrase:latest", "bge-m3:latest"), pages=dict(OLLAMA))
    with run_server(fake) as running:
        yield running


def test_short_names_are_addresses_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_address("ollama/qwen3:4b") == ("http://127.0.0.1:11434/v1", "qwen3:4b")
    assert split_address("lmstudio/qwen/qwen3-4b") == ("http://127.0.0.1:1234/v1", "qwen/qwen3-4b")
    assert split_address("http://host:1/v1#m") == ("http://host:1/v1", "m")
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:9999")
    assert split_address("ollama/x")[0] == "http://127.0.0.1:9999/v1"
    assert [is_address(name) for name in ("ollama/x", "https://x", "Qwen/Qwen3-8B", "reader")] == [
        True,
        True,
        False,
        False,
    ]


def test_ollama_reports_its_window_its_thinking_and_its_chat_models(ollama: FakeServer) -> None:
    found = find_model(ollama.url.removesuffix("/v1"), None)
    assert (found.name, found.kind, found.thinks, found.others) == ("qwen3:4b", "ollama", True, ())
    assert (found.base_url, found.context_window) == (ollama.url, 4096), "the window that Ollama loads by default"
    ollama.pages["/api/show"] = {"parameters": "num_ctx    16384"}
    assert find_model(ollama.url, "qwen3:4b").context_window == 16384
    ollama.pages["/api/ps"] = {"models": [{"name": "qwen3:4b", "context_length": 32768}]}
    assert find_model(ollama.url, None).context_window == 32768


def test_lm_studio_and_llama_cpp_report_the_window_that_they_loaded() -> None:
    with run_server(
        FakeServer(owner="organization_owner", models=("qwen/qwen3-4b", "nomic"), pages=LM_STUDIO)
    ) as server:
        found = find_model(server.url, None)
    assert (found.name, found.kind, found.context_window) == ("qwen/qwen3-4b", "lmstudio", 9000)
    page = {"/props": {"default_generation_settings": {"n_ctx": 2048}}}
    with run_server(FakeServer(owner="llamacpp", pages=page)) as server:
        assert find_model(server.url, None).context_window == 2048


def test_one_of_several_models_has_to_be_named() -> None:
    with run_server(FakeServer(models=("qwen3", "llama3", "nomic-embed-text"))) as server:
        with pytest.raises(RemoteError, match=r"several models \('qwen3', 'llama3'\); name one, such as .*#qwen3"):
            find_model(server.url, None)
        with pytest.raises(RemoteError, match=r"no model 'lama3'; it has .*; did you mean 'llama3'\?"):
            find_model(server.url, "lama3")
        assert RemoteLanguageModel(f"{server.url}#llama3").generate(USER).text == ANSWER
    with (
        run_server(FakeServer(models=("nomic-embed-text",))) as server,
        pytest.raises(RemoteError, match="none that can"),
    ):
        find_model(server.url, None)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no-such-host.invalid/v1"])
def test_a_wrong_address_is_reported_within_two_seconds(address: str) -> None:
    started = time.monotonic()
    with pytest.raises(RemoteError, match="cannot be reached"):
        find_model(address, None)
    assert time.monotonic() - started < 2


def test_servers_on_usual_ports_are_found(ollama: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ports = dict.fromkeys(remote_server.PORTS, free.getsockname()[1])
        monkeypatch.setattr(
            remote_server, "PORTS", ports | {"ollama": int(ollama.url.split(":")[2].removesuffix("/v1"))}
        )
        assert local_servers() == {"ollama": ["qwen3:4b"]}


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_thinking_between_tags_is_no_answer(tag: str, size: int) -> None:
    text = f"\n{tag}I see < 3 bees.{TAGS[tag]}\n\nBees <think> so."
    reader, thinking, answer = TaggedContent(), "", ""
    for start in range(0, len(text), size):
        split = reader.push(text[start : start + size])
        thinking, answer = thinking + split.thinking, answer + split.answer
    assert (thinking, answer + reader.finish().answer) == ("I see < 3 bees.", "Bees <think> so.")


@pytest.mark.parametrize("text", ["", "<", "<thinkers> agree", " \n", "<b>x</b>"])
def test_text_without_thinking_stays_as_it_is(text: str) -> None:
    reader = TaggedContent()
    split = [reader.push(character) for character in text]
    assert "".join(part.answer for part in split) + reader.finish().answer == text


def thinking_server(**settings: Any) -> FakeServer:
    return FakeServer(thoughts=[{"reasoning": "Hm. "}] * 30, **settings)


def test_thinking_is_turned_off_in_the_way_of_the_server(ollama: FakeServer) -> None:
    ollama.thoughts = [{"reasoning": "Hm. "}] * 30
    ollama.is_off = lambda body: body.get("reasoning_effort") == "none" and body.get("think") is False
    completion = RemoteLanguageModel(ollama.url).generate(USER, thinking=False, max_new_tokens=20)
    assert (completion.text, completion.reasoning) == (ANSWER, "")


def test_thinking_that_cannot_be_turned_off_does_not_use_up_the_limit_and_is_said_once() -> None:
    with run_server(thinking_server()) as server:
        model = RemoteLanguageModel(server.url)
        with pytest.warns(UserWarning, match="^tiny thinks although it was asked not to"):
            completion = model.generate(USER, thinking=False, max_new_tokens=20)
        assert (completion.text, completion.reasoning, completion.finish_reason) == (ANSWER, "Hm. " * 30, "stop")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            short = model.generate(USER, thinking=False, max_new_tokens=2)
        assert (short.text, short.finish_reason) == ("Bees live ", "length"), "the answer keeps its limit"
        wanted = model.generate(USER, thinking=True, max_new_tokens=20)
        assert (wanted.text, wanted.ended_in_thinking) == ("", True), "wanted thinking counts, as that of local models"


def test_fields_that_a_server_rejects_are_left_out_from_then_on() -> None:
    with run_server(FakeServer(rejects=("chat_template_kwargs",))) as server:
        model = RemoteLanguageModel(server.url, retries=0)
        for _ in range(2):
            assert model.generate(USER, thinking=False).text == ANSWER
        assert server.paths.count("/v1/chat/completions") == 3


def test_a_schema_is_sent_in_the_format_that_the_server_takes() -> None:
    with run_server(FakeServer(rejects=("json_schema",))) as server:
        model = RemoteLanguageModel(server.url, retries=0)
        for _ in range(2):
            assert model.generate(USER, json_schema={"type": "object"}).text == ANSWER
    assert server.requests[0]["response_format"] == {"type": "json_object", "schema": {"type": "object"}}
    assert server.paths.count("/v1/chat/completions") == 3


def test_content_that_begins_within_the_thinking_is_recognised_at_its_end() -> None:
    pieces = ("Let me see. ", "Bees?", "</think>", "\n\nIn hives.")
    with run_server(FakeServer(pieces=pieces)) as server:
        model = RemoteLanguageModel(server.url)
        for is_new in (True, False):
            with pytest.warns(UserWarning, match="thinks although") if is_new else nullcontext():
                completion = model.generate(USER, thinking=False)
            assert (completion.text, completion.reasoning) == ("In hives.", "Let me see. Bees?")
        assert "".join(model.stream(USER, thinking=False)) == "In hives."

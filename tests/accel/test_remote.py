"""A language model on a server: requests, streams, and errors."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon.accel import Conversation, RemoteLanguageModel
from antiphon.accel.remote.client import STREAM_ERRORS
from antiphon.accel.remote.errors import BrokenStreamError, RemoteError
from tests.accel.fake_server import ANSWER, FakeServer, run_server
from tests.tiny import byte_tokenizer

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "How do bees live?"}]


@contextmanager
def fails(status: int | None, message: str | None = None) -> Iterator[None]:
    """Expect an error with this HTTP status and message, which is no break of a stream that has started."""
    with pytest.raises(RemoteError, match=message) as caught:
        yield
    assert (type(caught.value), caught.value.status) == (RemoteError, status)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_server(FakeServer()) as running:
        yield running


def model_on(server: FakeServer, model: str | None = None, **settings: Any) -> RemoteLanguageModel:
    return RemoteLanguageModel(server.url, model, **({"retries": 0, "timeout": 20.0} | settings))


def test_messages_go_to_chat_completions_and_a_text_to_completions(server: FakeServer) -> None:
    model = model_on(server)
    completion = model.generate(USER, max_new_tokens=20, stop="\n\n", seed=3, temperature=0.5)
    assert (completion.text, completion.finish_reason) == (ANSWER, "stop")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (7, 15)
    assert completion.temperature == 0.5
    assert model.generate("Bees", max_new_tokens=4).finish_reason == "length"
    chat, text = server.requests
    assert chat["messages"] == USER
    assert (chat["model"], chat["stop"], chat["seed"], chat["temperature"]) == ("tiny", ["\n\n"], 3, 0.5)
    assert (text["prompt"], text["max_tokens"], text["temperature"]) == ("Bees", 4, 0.0)
    assert "seed" not in text
    assert not {"top_k", "min_p", "return_token_ids", "references"} & (chat.keys() | text.keys()), (
        "an unknown server gets no extensions"
    )


def test_pieces_arrive_while_the_server_generates(server: FakeServer) -> None:
    server.pause = 0.05
    with model_on(server).stream(USER) as stream:
        first = next(stream)
        assert server.running == 1
        assert first + "".join(stream) == ANSWER
    assert stream.completion.steps.steps == 0, "the server reported no steps"
    assert stream.completion.steps.seconds >= stream.completion.steps.prefill_seconds > 0


def test_the_server_is_asked_for_its_models_once(server: FakeServer) -> None:
    model = model_on(server)
    for _ in range(3):
        model.generate(USER)
    assert server.paths.count("/v1/models") == 1
    assert (model.name, model.context_window) == ("tiny", None)


def test_antiphons_own_server_gets_references_and_an_unknown_one_none(server: FakeServer) -> None:
    model_on(server).generate(USER, references=["secret"])
    assert "secret" not in json.dumps(server.requests)
    with run_server(FakeServer(owner="antiphon", window=4096)) as own:
        model = model_on(own)
        model.generate(USER, references=["one", "two"])
        assert own.requests[0]["references"] == ["one", "two"]
        assert "vllm_xargs" not in own.requests[0]
        assert model.context_window == 4096


def test_a_vllm_with_the_plug_in_gets_references_as_vllm_xargs() -> None:
    with run_server(FakeServer(owner="vllm", takes_references=True)) as server:
        completion = model_on(server).generate(USER, references=["one", "two"], top_k=5)
        assert server.requests[0]["vllm_xargs"] == {"references": ["one", "two"]}
        assert (server.requests[0]["top_k"], server.requests[0]["repetition_penalty"]) == (5, 1.0)
        assert completion.tokens == tuple(range(15))


def test_a_vllm_without_the_plug_in_gets_no_references() -> None:
    with run_server(FakeServer(owner="vllm")) as server:
        with pytest.warns(UserWarning, match="does not draft from references"):
            model_on(server).generate(USER, references=["one"])
        assert "vllm_xargs" not in server.requests[0]


def test_steps_are_computed_from_reported_metrics() -> None:
    metrics = {"speculative_decoding": {"num_accepted_draft_tokens": 10, "num_draft_tokens": 40}}
    with run_server(FakeServer(owner="vllm", metrics=metrics)) as server:
        steps = model_on(server).generate(USER).steps
    assert (steps.steps, steps.accepted, steps.drafted, steps.tokens_per_step) == (5, 10, 40, 3.0)


def test_tool_calls_are_formatted_as_local_models_write_them(server: FakeServer) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    server.pieces = ()
    server.calls = (
        {"index": 0, "id": "a", "function": {"name": "weather", "arguments": '{"city": '}},
        {"index": 0, "function": {"name": "weather", "arguments": '"Köln"}'}},
        {"index": 1, "id": "b", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
    )
    completion = model_on(server).generate(Conversation(USER, [tool], tool_choice="required"))
    assert completion.text == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
    )
    assert (server.requests[0]["tools"], server.requests[0]["tool_choice"]) == ([tool], "required")


def test_an_assistant_prefix_is_sent_to_servers_that_support_it(server: FakeServer) -> None:
    prompt = Conversation(USER, assistant_prefix="Bees ")
    with pytest.raises(ValueError, match="only vLLM and Antiphon's own server support"):
        model_on(server).generate(prompt)
    with run_server(FakeServer(owner="vllm")) as vllm:
        model_on(vllm).generate(prompt)
        assert vllm.requests[0]["messages"][-1] == {"role": "assistant", "content": "Bees "}
        assert (vllm.requests[0]["continue_final_message"], vllm.requests[0]["add_generation_prompt"]) == (True, False)


def test_a_batch_is_returned_in_order_and_limits_concurrent_requests(server: FakeServer) -> None:
    server.pause = 0.01
    completions = model_on(server).generate_batch([USER] * 7, batch_size=3, seeds=range(7))
    assert [each.text for each in completions] == [ANSWER] * 7
    assert server.max_running == 3
    assert sorted(body["seed"] for body in server.requests) == list(range(7))


def test_a_failed_batch_starts_no_further_requests(server: FakeServer) -> None:
    server.error_codes, server.pause = [400], 0.02
    with fails(400):
        model_on(server).generate_batch([USER] * 30, batch_size=2)
    assert len(server.requests) < 6


def test_another_thread_can_close_the_connection_while_the_server_is_silent(server: FakeServer) -> None:
    server.pause, server.pieces = 0.02, ("word ",) * 500
    stream = model_on(server, timeout=60.0).stream(USER)
    first, server.pause = next(stream), 40.0
    started = time.monotonic()
    threading.Timer(0.1, stream.close).start()
    rest = "".join(stream)
    assert time.monotonic() - started < 30, "the reader does not wait for the next piece"
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text == first + rest


def test_a_stream_that_is_closed_before_the_response_reads_nothing_of_it(server: FakeServer) -> None:
    model = model_on(server)
    stream: Any = model.stream(USER)
    send = stream._send
    stream._send = lambda: stream.close() or send()
    assert (list(stream), stream.completion.finish_reason) == ([], "cancelled")
    with pytest.raises(STREAM_ERRORS):
        list(stream._response)


@pytest.mark.parametrize("fails_inside", [False, True])
def test_a_broken_stream_keeps_what_was_received(server: FakeServer, fails_inside: bool) -> None:
    server.breaks_after, server.fails_inside = 4, fails_inside
    stream = model_on(server).stream(USER)
    with pytest.raises(BrokenStreamError, match="broke off after 22 characters") as caught:
        list(stream)
    assert caught.value.completion.text == "Bees live in colonies "
    assert caught.value.completion.finish_reason == "cancelled"
    assert stream.completion == caught.value.completion


def test_a_connection_that_breaks_before_the_first_piece_raises(server: FakeServer) -> None:
    server.breaks_after = 0
    with fails(None, r"The connection to .* broke"):
        model_on(server).generate(USER)


def test_an_address_without_a_server_and_one_without_the_api_are_reported(server: FakeServer) -> None:
    with fails(None, "cannot be reached"):
        RemoteLanguageModel("http://127.0.0.1:9/v1", retries=0).generate(USER)
    assert RemoteLanguageModel(server.url.removesuffix("/v1")).generate(USER).text == ANSWER
    with fails(None, r"mostly ends in /v1"):
        RemoteLanguageModel(server.url.replace("/v1", "/v2"), retries=0).generate(USER)
    with pytest.raises(ValueError, match="it must be an address"):
        RemoteLanguageModel("localhost:8000/v1")


def test_the_key_is_given_or_read_from_antiphons_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server(FakeServer(key="right")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "right")
        with fails(401, "rejects the API key"):
            model_on(server).generate(USER)
        assert model_on(server, api_key="right").generate(USER).text == ANSWER
        monkeypatch.setenv("ANTIPHON_API_KEY", "right")
        assert model_on(server).generate(USER).text == ANSWER


def test_too_many_requests_are_retried_and_then_reported(server: FakeServer) -> None:
    server.error_codes = [429, 503]
    assert model_on(server, retries=2).generate(USER).text == ANSWER
    server.error_codes = [429, 429]
    with fails(429, "takes no more requests now"):
        model_on(server, retries=1).generate(USER)


@pytest.mark.parametrize(
    ("status", "verb"), [(400, "rejects the request"), (422, "rejects the request"), (500, "failed")]
)
def test_the_message_of_the_server_is_reported(server: FakeServer, status: int, verb: str) -> None:
    server.error_codes = [status]
    with fails(status, rf"{verb} \({status}\): not now"):
        model_on(server).generate(USER)


def test_a_timeout_is_reported(server: FakeServer) -> None:
    model = model_on(server, timeout=1.5)
    model.generate(USER)
    server.pause = 5.0
    with fails(None, "did not answer in time"):
        model.generate(USER)


def test_parameters_of_local_models_are_rejected(server: FakeServer) -> None:
    with pytest.raises(ValueError, match="num_draft_tokens is 4, but only local models take it"):
        model_on(server).generate(USER, num_draft_tokens=4)
    with pytest.raises(TypeError, match=r"references is one text"):
        model_on(server).generate(USER, references="text")
    with pytest.raises(ValueError, match="2, one for each prompt"):
        model_on(server).generate_batch([USER] * 2, references=[[]])


def test_tokens_are_counted_by_tokenizer_server_or_estimate(server: FakeServer) -> None:
    assert model_on(server).tokenize("x" * 30).count == 10, "an estimate"
    assert model_on(server, tokenizer=byte_tokenizer(bos=False)).tokenize("x" * 30).count == 30
    with run_server(FakeServer(owner="vllm")) as vllm:
        counted = model_on(vllm).tokenize(USER).count
        assert counted == len(json.dumps({"model": "tiny", "messages": USER}))

"""A language model on a server: what it is sent, what comes back, and what whoever asks is told when it fails."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.accel import Conversation, RemoteLanguageModel
from antiphon.accel.remote.errors import (
    AddressError,
    AuthenticationError,
    BrokenStreamError,
    ModelNotFoundError,
    RequestRejectedError,
    ServerFailedError,
    TooManyRequestsError,
    UnreachableError,
)
from antiphon.accel.testing.tiny import byte_tokenizer
from tests.accel.speaking import ANSWER, Speaking, serving

USER = [{"role": "user", "content": "How do bees live?"}]


@pytest.fixture
def speaking() -> Iterator[Speaking]:
    with serving(Speaking()) as server:
        yield server


def asking(speaking: Speaking, model: str | None = None, **settings: Any) -> RemoteLanguageModel:
    return RemoteLanguageModel(speaking.url, model, **({"retries": 0, "timeout": 20.0} | settings))


def test_messages_are_answered_and_a_text_is_continued(speaking: Speaking) -> None:
    model = asking(speaking)
    said = model.generate(USER, max_new_tokens=20, stop="\n\n", seed=3, temperature=0.5)
    assert (said.text, said.finish_reason) == (ANSWER, "stop")
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (7, 15)
    assert said.temperature == 0.5
    assert model.generate("Bees", max_new_tokens=4).finish_reason == "length"
    chat, text = speaking.asked
    assert chat["messages"] == USER
    assert (chat["model"], chat["stop"], chat["seed"], chat["temperature"]) == ("tiny", ["\n\n"], 3, 0.5)
    assert (text["prompt"], text["max_tokens"], text["temperature"]) == ("Bees", 4, 0.0)
    assert "seed" not in text
    assert not {"top_k", "min_p", "return_token_ids", "references"} & (chat.keys() | text.keys()), "a stranger's server"


def test_pieces_come_while_the_server_writes(speaking: Speaking) -> None:
    speaking.pause = 0.05
    with asking(speaking).stream(USER) as stream:
        first = next(stream)
        assert speaking.running == 1
        assert first + "".join(stream) == ANSWER
    assert stream.completion.steps.steps == 0, "nothing was told of steps"
    assert stream.completion.steps.seconds >= stream.completion.steps.prefill_seconds > 0


def test_the_server_is_asked_once_what_it_is(speaking: Speaking) -> None:
    model = asking(speaking)
    for _ in range(3):
        model.generate(USER)
    assert speaking.seen.count("/v1/models") == 1
    assert (model.name, model.context_window) == ("tiny", None)


def test_a_stranger_never_sees_references_and_a_warning_says_so_once(speaking: Speaking) -> None:
    model = asking(speaking)
    with pytest.warns(UserWarning, match="does not draft from references"):
        model.generate(USER, references=["secret"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(USER, references=["secret"])
    assert "secret" not in json.dumps(speaking.asked)


def test_antiphons_own_server_is_given_references() -> None:
    with serving(Speaking(owner="antiphon", window=4096)) as speaking:
        model = asking(speaking)
        model.generate(USER, references=["one", "two"])
        assert speaking.asked[0]["references"] == ["one", "two"]
        assert "vllm_xargs" not in speaking.asked[0]
        assert model.context_window == 4096


def test_a_vllm_with_the_plug_in_is_given_references_in_its_own_words() -> None:
    with serving(Speaking(owner="vllm", takes_references=True)) as speaking:
        said = asking(speaking).generate(USER, references=["one", "two"], top_k=5)
        assert speaking.asked[0]["vllm_xargs"] == {"references": ["one", "two"]}
        assert (speaking.asked[0]["top_k"], speaking.asked[0]["repetition_penalty"]) == (5, 1.0)
        assert said.tokens == tuple(range(15))


def test_a_vllm_without_the_plug_in_is_not() -> None:
    with serving(Speaking(owner="vllm")) as speaking:
        with pytest.warns(UserWarning, match="does not draft from references"):
            asking(speaking).generate(USER, references=["one"])
        assert "vllm_xargs" not in speaking.asked[0]


def test_steps_are_what_the_server_tells_of_them() -> None:
    told = {"speculative_decoding": {"num_accepted_draft_tokens": 10, "num_draft_tokens": 40}}
    with serving(Speaking(owner="vllm", metrics=told)) as speaking:
        steps = asking(speaking).generate(USER).steps
    assert (steps.steps, steps.accepted, steps.drafted, steps.tokens_per_step) == (5, 10, 40, 3.0)


def test_what_a_last_step_had_beyond_the_answers_end_is_not_accepted() -> None:
    told = {"num_accepted_draft_tokens": 18, "num_draft_tokens": 40, "num_spec_steps": 4}
    with serving(Speaking(owner="vllm", metrics={"speculative_decoding": told})) as speaking:
        steps = asking(speaking).generate(USER).steps
    assert (steps.steps, steps.accepted, steps.tokens) == (5, 10, 15)


def test_tools_are_offered_and_a_call_is_written_as_a_local_model_writes_it(speaking: Speaking) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    speaking.pieces = ()
    speaking.calls = (
        {"index": 0, "id": "a", "function": {"name": "weather", "arguments": '{"city": '}},
        {"index": 0, "function": {"arguments": '"Köln"}'}},
        {"index": 1, "id": "b", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
    )
    said = asking(speaking).generate(Conversation(USER, [tool], tool_choice="required"))
    assert said.text == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
    )
    assert (speaking.asked[0]["tools"], speaking.asked[0]["tool_choice"]) == ([tool], "required")


def test_first_words_of_an_answer_go_to_servers_that_take_them(speaking: Speaking) -> None:
    begun = Conversation(USER, assistant_prefix="Bees ")
    with pytest.raises(ValueError, match="ask without an opening"):
        asking(speaking).generate(begun)
    with serving(Speaking(owner="vllm")) as vllm:
        asking(vllm).generate(begun)
        assert vllm.asked[0]["messages"][-1] == {"role": "assistant", "content": "Bees "}
        assert (vllm.asked[0]["continue_final_message"], vllm.asked[0]["add_generation_prompt"]) == (True, False)


def test_a_batch_comes_in_order_and_no_more_at_once_than_wanted(speaking: Speaking) -> None:
    speaking.pause = 0.01
    said = asking(speaking).generate_batch([USER] * 7, batch_size=3, seeds=range(7))
    assert [each.text for each in said] == [ANSWER] * 7
    assert speaking.most == 3
    assert sorted(body["seed"] for body in speaking.asked) == list(range(7))


def test_a_batch_that_fails_begins_no_further_request(speaking: Speaking) -> None:
    speaking.refuse, speaking.pause = [400], 0.02
    with pytest.raises(RequestRejectedError):
        asking(speaking).generate_batch([USER] * 30, batch_size=2)
    assert len(speaking.asked) < 6


def test_closing_ends_the_connection_from_any_thread(speaking: Speaking) -> None:
    speaking.pause, speaking.pieces = 0.02, ("word ",) * 500
    stream = asking(speaking).stream(USER)
    first = next(stream)
    closing = threading.Timer(0.1, stream.close)
    closing.start()
    rest = "".join(stream)
    closing.join()
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text == first + rest
    assert len(rest) < 2000
    for _ in range(100):
        if speaking.cut:
            break
        time.sleep(0.05)
    assert (speaking.cut, speaking.running) == (1, 0)


@pytest.mark.parametrize("fails_inside", [False, True])
def test_a_stream_that_breaks_keeps_what_was_received(speaking: Speaking, fails_inside: bool) -> None:
    speaking.breaks, speaking.fails_inside = 4, fails_inside
    stream = asking(speaking).stream(USER)
    with pytest.raises(BrokenStreamError, match="broke off after 22 characters") as caught:
        list(stream)
    assert caught.value.completion.text == "Bees live in colonies "
    assert caught.value.completion.finish_reason == "cancelled"
    assert stream.completion == caught.value.completion


def test_a_server_that_ends_without_saying_why_is_no_whole_answer(speaking: Speaking) -> None:
    speaking.breaks = 0
    with pytest.raises(UnreachableError, match=r"The connection to .* broke"):
        asking(speaking).generate(USER)


def test_a_killed_server_is_told_in_a_sentence() -> None:
    with serving(Speaking()) as speaking:
        model = asking(speaking)
        assert model.generate(USER).text == ANSWER
    with pytest.raises(UnreachableError, match=r"cannot be reached .*; is the server running there\?"):
        model.generate(USER)


def test_an_address_where_nobody_listens_and_one_that_is_no_api(speaking: Speaking) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached"):
        RemoteLanguageModel("http://127.0.0.1:9/v1", retries=0).generate(USER)
    with pytest.raises(AddressError, match=r"mostly ends in /v1"):
        RemoteLanguageModel(speaking.url.removesuffix("/v1"), retries=0).generate(USER)
    with pytest.raises(ValueError, match="it must be an address"):
        RemoteLanguageModel("localhost:8000/v1")


def test_a_wrong_key_and_the_right_one() -> None:
    with serving(Speaking(key="right")) as speaking:
        with pytest.raises(AuthenticationError, match="rejects the key"):
            asking(speaking).generate(USER)
        assert asking(speaking, api_key="right").generate(USER).text == ANSWER


def test_the_key_is_read_from_the_environment_and_no_other_servers_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Speaking(key="right")) as speaking:
        monkeypatch.setenv("OPENAI_API_KEY", "right")
        with pytest.raises(AuthenticationError):
            asking(speaking).generate(USER)
        monkeypatch.setenv("ANTIPHON_API_KEY", "right")
        assert asking(speaking).generate(USER).text == ANSWER


def test_a_model_that_is_not_there_is_named_with_those_that_are(speaking: Speaking) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no model 'huge'; it has 'tiny'\."):
        asking(speaking, "huge").generate(USER)


def test_a_model_that_has_gone_since(speaking: Speaking) -> None:
    model = asking(speaking)
    model.generate(USER)
    speaking.models = ("other",)
    with pytest.raises(ModelNotFoundError, match="has no model 'tiny'"):
        model.generate(USER)


def test_too_many_requests_are_tried_again_and_then_told(speaking: Speaking) -> None:
    speaking.refuse = [429, 503]
    assert asking(speaking, retries=2).generate(USER).text == ANSWER
    speaking.refuse = [429, 429]
    with pytest.raises(TooManyRequestsError, match="takes no more requests now"):
        asking(speaking, retries=1).generate(USER)


@pytest.mark.parametrize(("status", "error"), [(400, RequestRejectedError), (422, RequestRejectedError), (500, ServerFailedError)])
def test_what_a_server_refuses_is_told_in_its_words(speaking: Speaking, status: int, error: type[Exception]) -> None:
    speaking.refuse = [status]
    with pytest.raises(error, match="not now"):
        asking(speaking).generate(USER)


def test_a_server_that_does_not_answer_in_time(speaking: Speaking) -> None:
    model = asking(speaking, timeout=0.3)
    model.generate(USER)
    speaking.pause = 1.0
    with pytest.raises(UnreachableError, match="did not answer in time"):
        model.generate(USER)


def test_what_only_a_local_model_takes_is_refused(speaking: Speaking) -> None:
    with pytest.raises(ValueError, match="num_draft_tokens is 4; on a server how to draft is the server's business"):
        asking(speaking).generate(USER, num_draft_tokens=4)
    with pytest.raises(TypeError, match=r"references is one text"):
        asking(speaking).generate(USER, references="text")
    with pytest.raises(ValueError, match="2, one for each prompt"):
        asking(speaking).generate_batch([USER] * 2, references=[[]])


def test_tokens_are_counted_by_who_can(speaking: Speaking) -> None:
    assert asking(speaking).tokenize("x" * 30).count == 10, "a guess"
    assert asking(speaking, tokenizer=byte_tokenizer(bos=False)).tokenize("x" * 30).count == 30
    with serving(Speaking(owner="vllm")) as vllm:
        counted = asking(vllm).tokenize(USER).count
        assert counted == len(json.dumps({"model": "tiny", "messages": USER}))

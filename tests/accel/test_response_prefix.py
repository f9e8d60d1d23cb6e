"""Response prefixes: on both engines equal to the prefix appended to the prompt by hand, and never generated."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from antiphon.accel import Conversation, LanguageModel, PrefixCache, RemoteLanguageModel
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.remote.request_body import build_body
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.text.completion import Completion
from antiphon.accel.text.detokenize import Detokenizer
from antiphon.accel.text.messages import PromptInput, TokenizedPrompt, begin_answer, tokenize_prompt
from antiphon.accel.text.parameters import Settings
from tests.accel.fake_server import ANSWER, FakeServer, run_server
from tests.accel.test_detokenize import TOKENIZERS, whole
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

PROMPT = "Bees dance in the hive. "
CHAT = [{"role": "user", "content": "Where do bees dance?"}]
PREFIX = "Wax melts"
REFERENCES = ["Wax melts at noon."]


@pytest.fixture(scope="module", params=["torch", "openvino"])
def tiny(request: pytest.FixtureRequest) -> LanguageModel:
    return LanguageModel(
        tiny_model(max_position_embeddings=1024),
        byte_tokenizer(),
        engine=request.param,
        memory=2**24 if request.param == "openvino" else None,
    )


def by_hand(tiny: LanguageModel, prompt: PromptInput = PROMPT, prefix: str = PREFIX) -> TokenizedPrompt:
    """Return the prompt with the prefix appended to its text, tokenized without `begin_answer`."""
    read = tiny.tokenize(prompt)
    text = read.text + prefix
    return TokenizedPrompt(text, tuple(tiny.tokenizer.encode(text, add_special_tokens=isinstance(prompt, str))))


@pytest.mark.parametrize("prompt", [PROMPT, CHAT])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"references": ["Wax melts at noon."]},
        {"drafter": "nothing"},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.5, "top_k": 9, "seed": 2, "repetition_penalty": 1.3, "references": ["Wax melts at noon."]},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {101: 3.0}},
        {"logprobs": 3},
    ],
)
def test_the_text_equals_generation_with_the_prefix_appended_to_the_prompt(
    tiny: LanguageModel, prompt: PromptInput, options: dict[str, Any]
) -> None:
    expected = tiny.generate(by_hand(tiny, prompt), max_new_tokens=24, **options)
    found = tiny.generate(prompt, response_prefix=PREFIX, max_new_tokens=24, **options)
    assert found.text == PREFIX + expected.text
    assert (found.tokens, found.finish_reason) == (expected.tokens, expected.finish_reason)
    assert [each.token for each in found.logprobs] == [each.token for each in expected.logprobs]
    assert [each.logprob for each in found.logprobs] == pytest.approx([e.logprob for e in expected.logprobs], abs=1e-4)


def test_no_decoding_step_runs_for_the_prefix_and_none_of_its_tokens_is_counted(tiny: LanguageModel) -> None:
    long = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich."
    plain = tiny.generate(PROMPT, response_prefix=long, max_new_tokens=3, drafter="nothing")
    assert (len(plain.tokens), plain.steps.tokens, plain.steps.steps) == (3, 3, 3)
    assert (plain.steps.drafted, plain.steps.accepted) == (0, 0)
    usage, prompt = plain.usage, tiny.tokenize(PROMPT).count
    assert (usage.completion_tokens, usage.response_prefix_tokens) == (3, len(long.encode()))
    assert usage.prompt_tokens == prompt + usage.response_prefix_tokens
    assert len(plain.origins) == 3
    assert tiny.generate(PROMPT, max_new_tokens=3).usage.response_prefix_tokens == 0


def test_the_prefix_is_the_first_piece_and_needs_no_forward_pass(tiny: LanguageModel) -> None:
    started: list[int] = []

    class Recorder(Nothing):
        def begin(self, prompt: Any, references: Any) -> None:
            started.append(len(prompt))

    stream = tiny.stream(PROMPT, response_prefix=PREFIX, max_new_tokens=4, drafter=Recorder)
    started.clear()
    assert (next(stream), started) == (PREFIX, [])
    rest = "".join(stream)
    assert started == [by_hand(tiny).count]
    assert stream.completion.text == PREFIX + rest
    stream.close()


def test_origins_are_characters_after_the_prefix(tiny: LanguageModel) -> None:
    stream = tiny.stream(PROMPT, response_prefix=PREFIX, references=REFERENCES, max_new_tokens=16)
    next(stream), next(stream)
    assert stream.origins_from(0)[0].start == len(PREFIX)
    completion = stream.to_end().completion
    spans = [(each.start, each.end) for each in completion.origins]
    assert spans[0][0] == len(PREFIX)
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert spans[-1][1] == len(completion.text)
    assert "".join(completion.text[start:end] for start, end in spans) == completion.text.removeprefix(PREFIX)


def test_a_prefix_cache_holds_the_prefix(tiny: LanguageModel) -> None:
    cache = PrefixCache()
    first = tiny.generate(PROMPT * 3, prefix=cache, response_prefix=PREFIX, max_new_tokens=8)
    again = tiny.generate(PROMPT * 3, prefix=cache, response_prefix=PREFIX, max_new_tokens=8)
    assert (again.text, again.tokens) == (first.text, first.tokens)
    assert again.steps.prefill_tokens < first.steps.prefill_tokens


def test_prefix_and_generated_text_together_follow_a_schema(tiny: LanguageModel) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    schema["required"] = ["name", "age"]
    begun = '{"name": "Maya", "a'
    found = tiny.generate(CHAT, json_schema=schema, response_prefix=begun, max_new_tokens=40)
    assert json.loads(found.text)["name"] == "Maya"
    assert found.text.startswith(begun)
    with pytest.raises(ValueError, match=r"No answer that begins with '\{\"queen'"):
        tiny.generate(CHAT, json_schema=schema, response_prefix='{"queen')


@pytest.mark.parametrize("name", ["llama-2", "metaspace"])
@hypothesis_settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_text_after_the_prefix_is_that_of_all_tokens_decoded_at_once(name: str, data: st.DataObject) -> None:
    ids = [0, *(2 + byte for byte in "é🎉A".encode()), *range(258, 267)]
    tokenizer = TOKENIZERS[name]
    generated = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=12))
    context = [259, 260, 261]
    detokenizer = Detokenizer(tokenizer, context)
    text = "".join([detokenizer.push(token) for token in generated]) + detokenizer.pending
    assert whole(tokenizer, context) + text == whole(tokenizer, [*context, *generated])


def test_prompt_and_prefix_are_tokenized_together() -> None:
    tokenizer = TOKENIZERS["metaspace"]
    apart = tokenizer.encode(" the", add_special_tokens=False) + tokenizer.encode("cats", add_special_tokens=False)
    together = begin_answer(tokenize_prompt(" the", tokenizer), "cats", tokenizer)
    assert list(together.tokens) == tokenizer.encode(" thecats") != apart
    read = tokenize_prompt(CHAT, byte_tokenizer())
    assert begin_answer(read, PREFIX, byte_tokenizer()).tokens == (*read.tokens, *PREFIX.encode())
    assert begin_answer(tokenize_prompt("Bees", byte_tokenizer()), "!", byte_tokenizer()).tokens == (256, *b"Bees!")


def remote_completion(owner: str, prompt: PromptInput) -> tuple[dict[str, Any], list[str], Completion]:
    """Return what a server receives for a request with a prefix, the pieces of the stream, and the completion."""
    with run_server(FakeServer(owner=owner)) as server:
        stream = RemoteLanguageModel(server.url).stream(prompt, response_prefix=PREFIX, max_new_tokens=9)
        pieces = list(stream)
        return server.requests[0], pieces, stream.completion


def test_a_server_continues_a_final_message_of_the_assistant() -> None:
    for prompt, prefix in ((CHAT, PREFIX), (Conversation(CHAT, assistant_prefix="Yes. "), f"Yes. {PREFIX}")):
        body, pieces, completion = remote_completion("vllm", prompt)
        assert body["messages"] == [*CHAT, {"role": "assistant", "content": prefix}]
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert (pieces[0], "".join(pieces)) == (PREFIX, PREFIX + ANSWER)
        assert (completion.text, completion.response_prefix) == (PREFIX + ANSWER, PREFIX)
        assert completion.usage.completion_tokens == 15


def test_invalid_prefixes_are_refused() -> None:
    with pytest.raises(ValueError, match="response_prefix is 3"):
        Settings(response_prefix=3)  # type: ignore[arg-type]
    served = ServedModel("m", "other", None, "")
    with pytest.raises(ValueError, match=r"has to continue 'So'.*only vLLM and Antiphon's own server"):
        build_body(Conversation(CHAT), Settings(response_prefix="So"), served)
    with pytest.raises(ValueError, match="a server would apply the json_schema to the text after it"):
        build_body(Conversation(CHAT), Settings(response_prefix="So", json_schema={"type": "object"}), served)

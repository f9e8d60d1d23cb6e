"""End of a text: every end token of settings, tokenizer, chat template and request ends it, and none is in it."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.request_builder import EndTokens
from tests.tiny import END_OF_TURN, EOS, byte_tokenizer, tiny_model

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
SAID = "abcdefgh"


def speaker(end: int, *, insists: bool = False, **options: Any) -> LanguageModel:
    """Return a model whose settings name `EOS` only; it says a text once and then ``end``.

    Args:
        end: The token after the text.
        insists: Prefer ``end`` to every other token at every position.
        options: Options of the language model.
    """
    model: Any = tiny_model(hidden_size=264, head_dim=16)
    model.generation_config.eos_token_id = EOS
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(*model.model.embed_tokens.weight.shape))
        model.lm_head.weight *= 0.01  # not zero, because an engine's self-test compares differences of logits
        for current, following in [(ord(":"), ord("a")), *pairwise([*SAID.encode(), end])]:
            model.lm_head.weight[following, current] = 1
        if insists:
            model.lm_head.weight[end] = 3
    return LanguageModel(model, byte_tokenizer(), num_draft_tokens=8, name="speaker", **options)


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_end_tokens_of_settings_and_template_end_a_text(end: int) -> None:
    model = speaker(end)
    for references in ([], [f"{SAID}<|im_end|>more"]):
        completion = model.generate("Say:", references=references, max_new_tokens=20)
        assert (completion.text, completion.finish_reason) == (SAID, "stop")
    batch = model.generate_batch(["Say:", "Say:"], max_new_tokens=20)
    assert [each.text for each in batch] == [SAID, SAID]


def test_further_end_tokens_of_a_request_end_its_text_and_are_not_in_it() -> None:
    model = speaker(END_OF_TURN)
    completion = model.generate("Say:", stop_token_ids=[ord("d")], max_new_tokens=20)
    assert (completion.text, completion.finish_reason) == ("abc", "stop")
    assert completion.tokens[-1] == ord("d")
    assert "".join(model.stream("Say:", stop_token_ids=[ord("d")], max_new_tokens=20)) == "abc"


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_every_end_token_ends_a_text_that_follows_a_schema(end: int) -> None:
    schema = {"type": "object", "properties": {"ok": {"enum": ["abc"]}}, "required": ["ok"]}
    completion = speaker(end, insists=True).generate("Say:", json_schema=schema, max_new_tokens=40)
    assert json.loads(completion.text) == {"ok": "abc"}
    assert (completion.finish_reason, completion.tokens[-1]) == ("stop", end)


def test_a_further_end_token_cannot_cut_a_text_that_follows_a_schema() -> None:
    schema = {"type": "string", "minLength": 3, "maxLength": 12}
    completion = speaker(END_OF_TURN).generate("Say:", json_schema=schema, stop_token_ids=[ord("d")], max_new_tokens=40)
    assert len(json.loads(completion.text)) >= 3


def test_no_end_token_ends_a_text_before_its_minimum_length() -> None:
    model = speaker(END_OF_TURN)
    assert model.generate("Say:", max_new_tokens=20, min_new_tokens=12).usage.completion_tokens >= 12
    ignoring = model.generate("Say:", max_new_tokens=20, ignore_eos=True)
    assert (ignoring.usage.completion_tokens, ignoring.finish_reason) == (20, "length")
    with pytest.raises(ValueError, match="min_new_tokens is 3; it must be left out with a json_schema"):
        model.generate("Say:", min_new_tokens=3, json_schema={"type": "string"})


def test_openvino_ends_a_text_at_the_same_tokens() -> None:
    pytest.importorskip("openvino")
    model = speaker(END_OF_TURN, engine="openvino")
    assert model.generate("Say:", max_new_tokens=20).text == SAID


MARKS = {
    "ByteDance-Seed-OSS": "<seed:eos>",
    "CohereForAI-c4ai-command-r-plus": "<|END_OF_TURN_TOKEN|>",
    "GLM-4.6": None,
    "LFM2-8B-A1B": "<|im_end|>",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "<|im_end|>",
    "Qwen-Qwen3-0.6B": "<|im_end|>",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",
    "google-gemma-2-2b-it": "<end_of_turn>",
    "ibm-granite-granite-3.3-2B-Instruct": "<|end_of_text|>",
    "meta-llama-Llama-2-13b-chat-hf": "</s>",
    "meta-llama-Llama-3.1-8B-Instruct": "<|eot_id|>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "microsoft-phi-4": "<|im_end|>",
    "mistralai-Mistral-Nemo-Instruct-2407": "</s>",
    "openai-gpt-oss-120b": "<|return|>",  # <|end|> also ends the thinking, after which the answer follows
    "openchat-openchat-3.5-0106": "<|end_of_turn|>",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MARKS)
def test_the_end_of_turn_mark_of_recorded_templates_is_found(name: str) -> None:
    file = RECORDED / f"{name}.jinja"
    if not file.exists():
        pytest.skip(f"recorded templates are absent: {file}")
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = file.read_text(encoding="utf-8")
    tokenizer.add_tokens([*{mark for mark in MARKS.values() if mark}, "<|endoftext|>", "<s>"], special_tokens=True)
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    mark = MARKS[name]
    expected = {tokenizer.eos_token_id, *([tokenizer.convert_tokens_to_ids(mark)] if mark else [])}
    assert set(EndTokens(tokenizer, len(tokenizer)).ids(None)) == expected


def test_of_two_marks_with_one_beginning_the_longer_one_ends_a_turn() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<turn>", "<turn>end"])
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}<turn>end{% endfor %}"
    ids = EndTokens(tokenizer, len(tokenizer)).ids(None)
    assert tokenizer.convert_tokens_to_ids("<turn>end") in ids
    assert tokenizer.convert_tokens_to_ids("<turn>") not in ids

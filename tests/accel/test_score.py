"""Scores of continuations: on both engines equal to plain forward passes without a cache."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.continuation_scores import MAX_ROWS, draft_tree, log_probabilities
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.selection import EngineName
from antiphon.accel.testing.tiny import byte_tokenizer
from antiphon.accel.text.messages import PromptInput
from tests.families.table import tiny_model

PROMPT = "Bees dance in the hive and wax melts in the sun. "
CHAT = [{"role": "user", "content": "Where do bees dance?"}]
TEXTS = ("Wax melts.", "Wax is soft.", "", "Honey", "W", "Wax is soft.", "Wax is soft. Very soft.", "é")
OPENVINO = pytest.mark.skipif(not is_installed(), reason="OpenVINO is not installed: pip install 'antiphon[openvino]'")
ENGINES = ["torch", pytest.param("openvino", marks=OPENVINO)]
TOLERANCE = 1e-4


def model_of(engine: EngineName, family: str = "llama", **options: Any) -> LanguageModel:
    memory = 2**24 if engine == "openvino" else None
    model = tiny_model(family, **({"max_position_embeddings": 1024} if family == "llama" else {}))
    return LanguageModel(model, byte_tokenizer(), engine=engine, memory=memory, **options)


@pytest.fixture(scope="module", params=ENGINES)
def tiny(request: pytest.FixtureRequest) -> LanguageModel:
    return model_of(request.param)


def plain(model: LanguageModel, prompt: PromptInput, text: str, first: int | None = None) -> float:
    """Return the log-probability of a text from one forward pass of torch without a cache."""
    read = list(model.tokenize(prompt).tokens)
    tokens = model.tokenizer.encode(text, add_special_tokens=False)[:first]
    with torch.no_grad():
        scores = model.model(torch.tensor([read + tokens]), use_cache=False).logits[0].float().log_softmax(-1)
    return sum(float(scores[len(read) - 1 + place, token]) for place, token in enumerate(tokens))


def expect_plain(
    found: list[float], model: LanguageModel, prompt: PromptInput, texts: Any = TEXTS, first: int | None = None
) -> None:
    assert found == pytest.approx([plain(model, prompt, text, first) for text in texts], abs=TOLERANCE)


def forwards_of(model: LanguageModel, action: Any) -> list[int]:
    """Return the number of rows of each of torch's forward passes during an action."""
    fed: list[int] = []
    hook = model.model.register_forward_pre_hook(
        lambda _, args, options: fed.append((args[0] if args else options["input_ids"]).shape[1]), with_kwargs=True
    )
    action()
    hook.remove()
    return fed


@pytest.mark.parametrize("first", [1, 2, 4, 8])
def test_only_the_first_tokens_count(tiny: LanguageModel, first: int) -> None:
    expect_plain(tiny.score(PROMPT, TEXTS, first=first), tiny, PROMPT, first=first)


def test_messages_are_scored(tiny: LanguageModel) -> None:
    expect_plain(tiny.score(CHAT, TEXTS), tiny, CHAT)
    assert tiny.score(tiny.tokenize(CHAT), TEXTS) == pytest.approx(tiny.score(CHAT, TEXTS), abs=TOLERANCE)


def test_a_batch_has_the_scores_of_each_prompt(tiny: LanguageModel) -> None:
    prompts: list[PromptInput] = [PROMPT, "Eggs. ", "B", CHAT, PROMPT * 4]
    texts = [TEXTS, ["Wax"], [], ["", "Honey"], TEXTS[:3]]
    prefixes = [PrefixCache() for _ in prompts]
    for kept in ((), prefixes, prefixes):
        for found, prompt, own in zip(tiny.score_batch(prompts, texts, prefixes=kept), prompts, texts, strict=True):
            expect_plain(found, tiny, prompt, own)
    assert tiny.score_batch([], []) == []


@pytest.mark.parametrize("options", [{"deterministic": True}, {"deterministic": 8}, {"reproducible": True}])
def test_options_change_no_score(options: dict[str, Any]) -> None:
    model, prefix = model_of("torch", **options), PrefixCache()
    for found in (model.score(PROMPT, TEXTS), *(model.score(PROMPT, TEXTS, prefix=prefix) for _ in range(2))):
        expect_plain(found, model, PROMPT)


def test_compiled_steps_change_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of more rows than a compiled step has are split, and a chain of more rows is a plain forward pass."""
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    model, prefix, texts = model_of("torch", compiled=True), PrefixCache(), [*TEXTS, "a" * 90, "b" * 40, "c" * 40]
    for prompt, kept in (("B", None), (PROMPT, None), (PROMPT, prefix), (PROMPT, prefix)):
        expect_plain(model.score(prompt, texts, prefix=kept), model, prompt, texts)
    for found, prompt in zip(model.score_batch([PROMPT, "Eggs. "], [texts] * 2), (PROMPT, "Eggs. "), strict=True):
        expect_plain(found, model, prompt, texts)


@pytest.mark.parametrize("lengths", [(MAX_ROWS - 1,) * 3, (300, 1, 300), (20,) * 40])
def test_trees_with_many_rows_are_computed_in_parts(tiny: LanguageModel, lengths: tuple[int, ...]) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    texts = [letter * length for letter, length in zip(letters, lengths, strict=False)]
    prefix = PrefixCache()
    expect_plain(tiny.score(PROMPT, texts, prefix=prefix), tiny, PROMPT, texts)
    after = tiny.generate(PROMPT, prefix=prefix, max_new_tokens=8)
    assert after.tokens == tiny.generate(PROMPT, max_new_tokens=8).tokens


def test_all_continuations_are_one_forward_pass_after_the_prefill() -> None:
    model, prefix, prompt = model_of("torch"), PrefixCache(), model_of("torch").tokenize(PROMPT).count
    model.score(PROMPT, TEXTS)  # the self-tests of the engine run forward passes, too
    tree = len(draft_tree([text.encode() for text in TEXTS]))
    assert tree < sum(len(text.encode()) - 1 for text in TEXTS if text)
    assert forwards_of(model, lambda: model.score(PROMPT, TEXTS, prefix=prefix)) == [prompt - 1, 1 + tree]
    assert forwards_of(model, lambda: model.score(PROMPT, TEXTS, prefix=prefix)) == [1 + tree]
    assert prefix.size == prompt


def test_a_request_continues_from_the_scored_prompt(tiny: LanguageModel) -> None:
    prefix = PrefixCache()
    tiny.score(PROMPT * 2, TEXTS, prefix=prefix)
    found = tiny.generate(PROMPT * 2, prefix=prefix, max_new_tokens=12)
    assert found.tokens == tiny.generate(PROMPT * 2, max_new_tokens=12).tokens
    assert found.steps.prefill_tokens <= 32  # OpenVINO reuses whole blocks
    expect_plain(tiny.score(PROMPT * 2, TEXTS, prefix=prefix), tiny, PROMPT * 2)


def test_scores_and_running_requests_do_not_change_each_other(tiny: LanguageModel) -> None:
    expected = [tiny.generate(prompt, max_new_tokens=40).tokens for prompt in (PROMPT, "Eggs. ")]
    found: dict[str, Any] = {}

    def generate(prompt: str) -> None:
        found[prompt] = tiny.generate(prompt, max_new_tokens=40).tokens

    def score(name: str) -> None:
        found[name] = [tiny.score(PROMPT, TEXTS) for _ in range(5)]

    threads = [threading.Thread(target=generate, args=(prompt,)) for prompt in (PROMPT, "Eggs. ")]
    threads += [threading.Thread(target=score, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[PROMPT], found["Eggs. "]] == expected
    for scores in (*found["a"], *found["b"]):
        expect_plain(scores, tiny, PROMPT)


@OPENVINO
def test_prompts_that_do_not_fit_into_memory_together_are_scored_one_by_one() -> None:
    model = LanguageModel(tiny_model(max_position_embeddings=1024), byte_tokenizer(), engine="openvino", memory=2**19)
    capacity = model.engine.capacity  # type: ignore[attr-defined]
    prompts = [letter * (capacity // 2 - 40) for letter in "abc"]
    for found, prompt in zip(model.score_batch(prompts, [TEXTS] * 3), prompts, strict=True):
        expect_plain(found, model, prompt)


@hypothesis_settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=8), seed=st.integers(0, 99))
def test_log_probabilities_sum_over_the_path_of_each_continuation(texts: list[list[int]], seed: int) -> None:
    draft = draft_tree(texts)
    logits = torch.randn((1 + len(draft), 6), generator=torch.Generator().manual_seed(seed), dtype=torch.bfloat16)
    rows: dict[tuple[int, ...], int] = {(): 0}
    for text in texts:
        for end in range(1, len(text)):
            rows.setdefault(tuple(text[:end]), len(rows))
    scores = logits.float().log_softmax(-1)
    expected = [
        sum(float(scores[rows[tuple(text[:place])], token]) for place, token in enumerate(text)) for text in texts
    ]
    assert log_probabilities(logits, draft, texts) == pytest.approx(expected, abs=1e-5)


def test_invalid_arguments_are_refused(tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"prompt has 50 tokens and a continuation 1000.*window of .* holds 1024"):
        tiny.score(PROMPT, ["a" * 1000])
    assert len(tiny.score(PROMPT, ["a" * 1000], first=8)) == 1
    with pytest.raises(TypeError, match="continuations is one text"):
        tiny.score(PROMPT, "Wax")
    with pytest.raises(ValueError, match="first is 0"):
        tiny.score(PROMPT, TEXTS, first=0)
    with pytest.raises(ValueError, match="number of continuations is 1"):
        tiny.score_batch([PROMPT] * 2, [TEXTS])
    with pytest.raises(ValueError, match="number of prefixes is 1"):
        tiny.score_batch([PROMPT] * 2, [TEXTS] * 2, prefixes=[PrefixCache()])
    with pytest.raises(ValueError, match="prompts is 'Bees'"):
        tiny.score_batch("Bees", [TEXTS])

"""Requests on OpenVINO through `LanguageModel`: together, with a prefix, of several tenants, and for torch only."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.engines.selection import select_engine
from antiphon.accel.generate import generate
from tests.tiny import byte_tokenizer

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")

from antiphon.accel.engines.openvino.engine import OpenVINOEngine
from tests.accel.openvino.builders import model_of, text_of

pytestmark = pytest.mark.slow

PROMPT = "A queen lays as many as two thousand eggs on a summer's day."
REFERENCES = ["Bees live in colonies of up to sixty thousand.", "Honey keeps for years."]
NEW = 30


@pytest.fixture(scope="module")
def paged() -> LanguageModel:
    return LanguageModel(model_of("llama"), byte_tokenizer(), name="tiny", engine="openvino", memory=2**23)


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    """The reference for these tests: the same model, run by torch without drafts."""
    return LanguageModel(model_of("llama"), byte_tokenizer(), name="tiny", drafter="nothing")


def test_a_request_is_decoded_by_the_requested_engine_without_torch(paged: LanguageModel) -> None:
    paged.generate(PROMPT, max_new_tokens=2)  # computes the bigrams, which uses torch
    seen: list[int] = []
    hook = paged.model.register_forward_pre_hook(lambda *_: seen.append(1))
    paged.generate(PROMPT, references=REFERENCES, max_new_tokens=4)
    hook.remove()
    assert seen == []
    assert isinstance(paged.engine, OpenVINOEngine)
    assert "agrees with torch" in paged.selected.reason


def test_concurrent_requests_get_the_text_that_they_get_alone(paged: LanguageModel, plain: LanguageModel) -> None:
    prompts = [f"{PROMPT} {number}" * number for number in range(1, 6)]
    alone = [plain.generate(prompt, max_new_tokens=NEW).text for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        texts = list(pool.map(lambda prompt: paged.generate(prompt, max_new_tokens=NEW).text, prompts))
    assert texts == alone


def prefilled(language_model: LanguageModel, prompt: Any, **settings: Any) -> int:
    """Return the number of prompt tokens that were prefilled, not read from the prefix cache."""
    return language_model.generate(prompt, max_new_tokens=2, **settings).steps.prefill_tokens


def test_a_conversation_reuses_its_prefix(paged: LanguageModel, plain: LanguageModel) -> None:
    prefix, messages = PrefixCache(), [{"role": "user", "content": PROMPT}]
    for question in ("And in winter?", "And the drones?"):
        answer = paged.generate(messages, prefix=prefix, max_new_tokens=NEW)
        assert answer.text == plain.generate(messages, max_new_tokens=NEW).text
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]
    size = len(paged.tokenize(messages).tokens)
    assert prefilled(paged, messages, prefix=prefix) < size / 2
    prefix.clear()
    assert prefilled(paged, messages, prefix=prefix) == size


def test_prefixes_are_shared_within_a_tenant_only(paged: LanguageModel) -> None:
    one, other = RecyclingTable(), RecyclingTable()
    prompt = "What was read before is not read again. " * 4
    size = len(paged.tokenize(prompt).tokens)
    assert [prefilled(paged, prompt, recycling=table) for table in (one, other)] == [size, size]
    assert prefilled(paged, prompt, recycling=one) == 1
    assert [prefilled(paged, prompt, recycling=False) for _ in range(2)] == [size, size]


@pytest.mark.parametrize("what", ["padding", "a cache", "reproducible", "training"])
def test_requests_that_need_torch_are_decoded_by_torch(what: str) -> None:
    model: Any = model_of("llama", seed=1)
    ids = torch.tensor([text_of(20)])
    mask = torch.ones_like(ids)
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    options: dict[str, Any] = {"engine": "openvino"}
    generate(model, ids, **options, **settings)  # the first request compares OpenVINO with torch
    if what == "padding":
        mask[0, :3] = 0
    elif what == "a cache":
        settings["past_key_values"] = DynamicCache(config=model.config)
    elif what == "reproducible":
        options["reproducible"] = True
    else:
        model.train()
    truth = model.generate(ids, **(settings | {"past_key_values": None}))
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda *_: seen.append(1))
    output: Any = generate(model, ids, **options, **settings)
    hook.remove()
    model.eval()
    assert seen
    assert output.tolist() == truth.tolist()
    if what == "a cache":
        assert settings["past_key_values"].get_seq_length() > 20


def test_a_padded_batch_is_decoded_by_both_engines() -> None:
    """The padded sequences are decoded by torch; the output equals that of transformers."""
    model: Any = model_of("llama")
    ids = torch.tensor([text_of(20), text_of(20, seed=1)])
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "attention_mask": mask}
    output: Any = generate(model, ids, engine="openvino", **settings)
    assert output.tolist() == model.generate(ids, **settings).tolist()


def test_changed_weights_are_converted_again() -> None:
    model: Any = model_of("llama", seed=2)
    prompt = text_of(20)
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    before: Any = generate(model, prompt, engine="openvino", **settings)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))
    after: Any = generate(model, prompt, engine="openvino", **settings)
    assert after.tolist() == model.generate(torch.tensor([prompt]), **settings).tolist()
    assert after.tolist() != before.tolist()


@pytest.mark.parametrize("family", ["phi3-longrope", "llama-dynamic"])
def test_requests_that_change_the_rotary_frequencies_run_on_torch(family: str) -> None:
    """The frequencies change at token 52: the graph has those of shorter texts."""
    model, seen = model_of(family), list[int]()
    ids = torch.tensor([text_of(40)])
    for new_tokens, on_torch in ((12, False), (20, True)):
        settings: dict[str, Any] = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None}
        expected = model.generate(ids, **settings)
        select_engine(model, "openvino", memory=2**23)
        generate(model, ids, engine="openvino", **settings)  # computes the bigrams, which uses torch
        with_hook = model.register_forward_pre_hook(lambda *_: seen.append(1))
        output: Any = generate(model, ids, engine="openvino", references=[text_of(9)], **settings)
        with_hook.remove()
        assert output.tolist() == expected.tolist()
        assert bool(seen) == on_torch

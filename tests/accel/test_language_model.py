"""Text in, text out: exact stop strings, whole characters, one BOS token, threads, and clear errors."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.utils.logging import warning_once

from antiphon.accel.language_model import LanguageModel
from tests.tiny import BOS, byte_tokenizer, tiny_model

PROMPT = "the passages that retrieval found are the drafts that decoding verifies"


@cache
def tiny(family: str = "llama", **overrides: Any) -> LanguageModel:
    return LanguageModel(tiny_model(family, **overrides), byte_tokenizer(), name=f"tiny {family}")


def parrot(text: str) -> LanguageModel:
    """Return a model that generates this text of distinct bytes repeatedly."""
    model: Any = tiny_model(hidden_size=264, head_dim=16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(*model.model.embed_tokens.weight.shape))
        for current, following in pairwise(f":{text}{text[0]}".encode()):
            model.lm_head.weight[following, current] = 1
    return LanguageModel(model, byte_tokenizer(), num_draft_tokens=32, name="parrot")


@contextmanager
def forwards(language_model: LanguageModel) -> Iterator[list[dict[str, Any]]]:
    """Collect the arguments of every forward pass in this context, with a weak reference to the cache."""
    seen: list[dict[str, Any]] = []

    def note(module: Any, positional: Any, arguments: dict[str, Any]) -> None:
        kept = {name: value for name, value in arguments.items() if name != "past_key_values"}
        seen.append({**kept, "cache": weakref.ref(arguments["past_key_values"])})

    hook = language_model.model.register_forward_pre_hook(note, with_kwargs=True)
    yield seen
    hook.remove()


def plainly(language_model: LanguageModel, prompt: str = PROMPT, **options: Any) -> str:
    """Return what transformers generates for the prompt."""
    inputs = language_model.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    output: Tensor = language_model.model.generate(**inputs, **options)  # type: ignore[operator]
    tokens = output[0, inputs.input_ids.shape[1] :]
    return str(language_model.tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_greedy_text_is_what_transformers_generates(family: str) -> None:
    assert tiny(family).generate(PROMPT, max_new_tokens=40).text == plainly(tiny(family), max_new_tokens=40)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.7, "top_p": 0.9, "seed": 1}]
)
def test_joined_pieces_of_a_stream_are_the_text(options: dict[str, Any]) -> None:
    whole = tiny().generate(PROMPT, references=[PROMPT], max_new_tokens=60, **options)
    stream = tiny().stream(PROMPT, references=[PROMPT], max_new_tokens=60, **options)
    pieces = list(stream)
    assert len(pieces) > 3
    assert all(pieces)
    assert "".join(pieces) == stream.completion.text == whole.text
    assert (stream.completion.tokens, stream.completion.usage) == (whole.tokens, whole.usage)


def test_drafts_from_references_save_forwards_and_change_nothing() -> None:
    said = parrot("abcdefghijklmnopqrstuvwxyz")
    plain = said.generate("Say:", drafter="nothing", max_new_tokens=40)
    drafted = said.generate("Say:", references=["abcdefghijklmnopqrstuvwxyz"], max_new_tokens=40)
    assert drafted.text == plain.text == "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
    assert plain.steps.steps == 40
    assert drafted.steps.steps < 20
    assert drafted.steps.tokens == drafted.usage.completion_tokens == 40


@pytest.mark.parametrize("drafter", ["nothing", "blend"])
@pytest.mark.parametrize("stop", ["gh", ["gh"], ["xyz", "ghi", "hi"], "g"])
def test_a_text_ends_exactly_before_its_stop_string(stop: str | list[str], drafter: str) -> None:
    said = parrot("abcdefghijklm")
    options: dict[str, Any] = {"stop": stop, "drafter": drafter, "references": ["abcdefghijklm"], "max_new_tokens": 50}
    stream = said.stream("Say:", **options)
    pieces = list(stream)
    whole = said.generate("Say:", **options)
    assert "".join(pieces) == whole.text == stream.completion.text == "abcdefg"[: 6 if "g" in str(stop) else 7]
    assert whole.finish_reason == "stop"
    assert whole.tokens == tuple(b"abcdefghi"[: len(whole.tokens)])
    assert whole.usage.completion_tokens == whole.steps.tokens == len(whole.tokens)
    assert len(whole.tokens) == {"gh": 8, "g": 7}.get(stop if isinstance(stop, str) else stop[0], 9)


def test_the_models_own_sampling_settings_are_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    habitual = LanguageModel(tiny_model(), byte_tokenizer())
    habits = {"do_sample": True, "temperature": 0.6, "top_p": 0.5, "top_k": 3, "min_p": 0.2, "typical_p": 0.5}
    for name, value in {**habits, "repetition_penalty": 1.5, "num_beams": 3, "epsilon_cutoff": 0.1}.items():
        setattr(habitual.model.generation_config, name, value)
    warning_once.cache_clear()
    assert habitual.generate(PROMPT, max_new_tokens=30).text == tiny().generate(PROMPT, max_new_tokens=30).text
    sampled: dict[str, Any] = {"max_new_tokens": 30, "temperature": 1.2, "seed": 3}
    assert habitual.generate(PROMPT, **sampled).text == tiny().generate(PROMPT, **sampled).text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 0},
        {"top_k": 4},
        {"top_k": 0, "top_p": 0.6},
        {"top_k": 0, "min_p": 0.2},
        {"top_k": 0, "temperature": 0.5},
        {"top_k": 0, "repetition_penalty": 1.5},
    ],
)
def test_a_sampled_text_is_what_transformers_samples_from_that_seed(options: dict[str, Any]) -> None:
    sampled: dict[str, Any] = {"temperature": 1.2, "max_new_tokens": 40, **options}
    with torch.random.fork_rng():
        torch.manual_seed(11)
        expected = plainly(tiny(), do_sample=True, **sampled)
    assert tiny().generate(PROMPT, seed=11, references=[PROMPT], **sampled).text == expected


def test_sampling_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    unseeded = [tiny().generate(PROMPT, temperature=2.0, max_new_tokens=30).text for _ in range(2)]
    tiny().generate(PROMPT, temperature=1.0, seed=5, max_new_tokens=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert unseeded[0] != unseeded[1]


def test_a_closed_stream_stops_generating_and_frees_its_cache() -> None:
    tiny().generate(PROMPT, max_new_tokens=2)
    with forwards(tiny()) as seen:
        stream = tiny().stream(PROMPT, drafter="nothing", max_new_tokens=100)
        said = [next(stream), next(stream)]
        spent = len(seen)
        memory = seen[-1]["cache"]
        assert memory() is not None
        stream.close()
        assert list(stream) == []
        stream.close()
        gc.collect()
        assert memory() is None
        assert len(seen) == spent
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text == "".join(said)
    assert stream.completion.usage.completion_tokens == spent


@pytest.mark.timeout(60)
def test_another_thread_may_close_a_stream() -> None:
    stream = tiny().stream(PROMPT, drafter="nothing", max_new_tokens=400)
    pieces: list[str] = []
    reader = Thread(target=lambda: pieces.extend(stream))
    reader.start()
    stream.close()
    reader.join()
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text == "".join(pieces)
    assert stream.completion.usage.completion_tokens < 20


def test_nothing_runs_before_the_first_piece_is_read() -> None:
    tiny().generate(PROMPT, max_new_tokens=2)
    with forwards(tiny()) as seen:
        stream = tiny().stream(PROMPT)
        assert seen == []
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.completion
        assert torch.is_grad_enabled()
        next(stream)
        assert torch.is_grad_enabled()


def test_an_error_is_raised_to_the_reader_and_blocks_no_other_request() -> None:
    broken = LanguageModel(tiny_model(), byte_tokenizer())
    broken.generate(PROMPT, max_new_tokens=2)
    stream = broken.stream(PROMPT, drafter="nothing", max_new_tokens=50)
    next(stream)

    def fail(*arguments: Any) -> None:
        raise MemoryError("no memory left")

    hook = broken.model.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError, match="no memory left"):
        list(stream)
    hook.remove()
    with pytest.raises(RuntimeError):
        _ = stream.completion
    assert broken.generate(PROMPT, max_new_tokens=5).finish_reason == "length"


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <3"}]


@pytest.mark.parametrize("prompt", [PROMPT, MESSAGES])
def test_a_prompt_starts_with_exactly_one_bos_token(prompt: Any) -> None:
    tiny().generate(PROMPT, max_new_tokens=2)
    with forwards(tiny()) as seen:
        completion = tiny().generate(prompt, max_new_tokens=1)
    tokens = seen[0]["input_ids"][0].tolist()
    assert tokens.count(BOS) == 1
    assert tokens[0] == BOS
    assert completion.usage.prompt_tokens == len(tokens)
    assert completion.usage.total_tokens == len(tokens) + 1
    if prompt is MESSAGES:
        assert str(tiny().tokenizer.decode(tokens)).endswith("Hello <3<|im_end|>\n<|im_start|>assistant\n")


def test_the_context_window_bounds_prompt_and_answer() -> None:
    small = tiny(max_position_embeddings=32)
    assert small.context_window == 32
    with pytest.raises(ValueError, match=r"has 32 .* holds 32: this model's maximum context length is 32 tokens"):
        small.generate("x" * 31)
    assert small.generate("x" * 30).usage.total_tokens == 32
    small = LanguageModel(tiny_model("gpt2", max_position_embeddings=48), byte_tokenizer())
    completion = small.generate("x" * 20, references=["x" * 40], max_new_tokens=10_000)
    assert completion.usage.total_tokens == 48
    assert completion.finish_reason == "length"

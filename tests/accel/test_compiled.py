"""Compiled steps have the output and logits of plain decoding. A few tests let `torch.compile` trace these steps."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from antiphon.accel.decoding.stats import Step
from antiphon.accel.drafting.draft import EMPTY, Drafter
from antiphon.accel.drafting.drafters import Lookahead
from antiphon.accel.engines.torch.compiled_sequence import CompiledSequence, CompiledSteps
from antiphon.accel.engines.torch.engine import engine_of, traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.engines.torch.slot_cache import BUCKETS, SlotCache
from antiphon.accel.generate import generate, stream
from tests.accel.adversarial_drafters import (
    OracleDrafter,
    ProbingDrafter,
    RandomTreeDrafter,
    RecordingDrafter,
)
from tests.accel.oracles import expect_plain_logits, longest_path
from tests.families.table import tiny_model
from tests.table_part import part
from tests.tiny import PAD, VOCAB_SIZE

pytestmark = pytest.mark.slow

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
LENGTH = PROMPT.shape[1]
OPTIONS: dict[str, Any] = {"max_new_tokens": 48, "do_sample": False, "eos_token_id": None}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 30},
    "penalised": {"do_sample": False, "repetition_penalty": 1.5},
}


@contextmanager
def as_they_are() -> Iterator[None]:
    """Run steps without tracing them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda step, **options: step)
        yield


def compiling(model: Any, **settings: Any) -> Any:
    """Return the model with these settings of compiled steps."""
    engine_of(model).compiled_steps = CompiledSteps(**settings)
    return model


def failure_of(model: Any) -> str:
    return engine_of(model).compiled_steps.failure


@cache
def model_of(family: str, implementation: str = "sdpa") -> Any:
    return tiny_model(family, seed=11, attn_implementation=implementation)


def truth(model: Any, **options: Any) -> list[int]:
    torch.manual_seed(3)
    text: list[int] = model.generate(PROMPT, **(OPTIONS | options))[0].tolist()
    return text


def ours(model: Any, drafter: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    return generate(
        model, PROMPT, drafter=lambda: drafter, **({"compiled": True, "num_draft_tokens": 32} | OPTIONS | options)
    )


@pytest.mark.parametrize("mode", part(MODES, ("greedy",)))
@pytest.mark.parametrize(
    ("family", "implementation"),
    part(
        [
            ("llama", "sdpa"),
            ("llama", "eager"),
            ("gpt2", "sdpa"),
            ("qwen3", "sdpa"),
            ("phi", "sdpa"),
            ("gptj", "eager"),
        ],
        [("llama", "sdpa"), ("gptj", "eager")],
    ),
)
def test_tokens_and_logits_equal_plain_decoding(family: str, implementation: str, mode: str) -> None:
    model = model_of(family, implementation)
    text = truth(model, **MODES[mode])
    recorder = RecordingDrafter(RandomTreeDrafter(text, 1, VOCAB_SIZE))
    with as_they_are():
        output = ours(model, recorder, **MODES[mode])
    assert output[0].tolist() == text
    expect_plain_logits(model, text, recorder.records)
    assert len(recorder.records) < 30
    assert not failure_of(model)


@as_they_are()
@pytest.mark.parametrize("name", ["probing", "lookahead"])
def test_probes_change_no_output(name: str) -> None:
    model = model_of("llama")
    text = truth(model)
    asking: dict[str, Drafter] = {
        "probing": ProbingDrafter(RandomTreeDrafter(text, 3, VOCAB_SIZE), text, 5, VOCAB_SIZE),
        "lookahead": Lookahead(5, 4, 3),
    }
    recorder = RecordingDrafter(asking[name])
    assert ours(model, recorder, num_draft_tokens=63)[0].tolist() == text
    assert recorder.records[0].draft.num_probes > 0
    expect_plain_logits(model, text, recorder.records)
    assert not failure_of(model)


@as_they_are()
def test_left_padding_is_masked() -> None:
    model = model_of("gpt2")
    padded = torch.cat([torch.full((1, 7), PAD), PROMPT], dim=1)
    options = OPTIONS | {"attention_mask": (padded != PAD).long(), "pad_token_id": PAD}
    text = model.generate(padded, **options)[0].tolist()
    recorder = RecordingDrafter(RandomTreeDrafter(text, 2, VOCAB_SIZE))
    output: Any = generate(model, padded, drafter=lambda: recorder, compiled=True, **options)
    assert output[0].tolist() == text
    expect_plain_logits(model, text, recorder.records, padding=7)


def in_slots(model: Any, prompt: list[int]) -> CompiledSequence:
    engine = engine_of(model)
    cached = CompiledSequence(TorchSequence(model, engine.traits), engine.compiled_steps, compiles=False)
    with torch.no_grad():
        cached.prefill(prompt)
    cached.keep(())
    return cached


def test_after_every_step_slots_are_consistent_and_the_cache_equals_a_prefill() -> None:
    model = compiling(tiny_model(seed=11), min_slots=128)
    text = truth(model)
    tree_drafter = RandomTreeDrafter(text, 7, VOCAB_SIZE)
    cached = in_slots(model, text[:LENGTH])
    with torch.no_grad():
        while cached.length < LENGTH + 30:
            known = text[: cached.length + 1]
            draft = tree_drafter.propose(known, 16)
            cached.forward(known[-1:], draft)
            cached.keep(longest_path(draft, text[len(known) :]))
            assert sorted(cached._order + cached._free) == list(range(128))
            assert cached._used.nonzero()[0].tolist() == sorted(cached._order)
        # Accepted rows stay in their slots, so tokens are not in the order of the slots.
        assert cached._order != sorted(cached._order)
        fresh = TorchSequence(model, traits_of(model))
        fresh.prefill(text[: cached.length])
    layers: list[tuple[Any, Any]] = list(zip(cached.cache.layers, fresh.cache.layers, strict=True))
    for mine, other in layers:
        torch.testing.assert_close(mine.keys, other.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mine.values, other.values, atol=1e-4, rtol=1e-4)


def sizes_of(model: Any) -> list[int]:
    return sorted(cache.size for cache in engine_of(model).compiled_steps.caches._caches.values())


@as_they_are()
def test_a_sequence_that_fills_its_slot_cache_moves_to_one_of_twice_the_size() -> None:
    model = compiling(tiny_model(seed=11), min_slots=64, max_headroom=0)
    text = truth(model, max_new_tokens=160)
    recorder = RecordingDrafter(RandomTreeDrafter(text, 2, VOCAB_SIZE))
    assert ours(model, recorder, max_new_tokens=160)[0].tolist() == text
    assert sizes_of(model) == [128, 256]
    expect_plain_logits(model, text, recorder.records)


@as_they_are()
def test_sequences_that_take_turns_share_a_slot_cache_and_no_tokens() -> None:
    model: Any = tiny_model(seed=11)
    prompts = [PROMPT, PROMPT.flip(1)]
    texts = [model.generate(prompt, **OPTIONS)[0].tolist() for prompt in prompts]
    turns: list[Iterator[Step]] = [
        stream(model, prompt, drafter=partial(RandomTreeDrafter, text, 5, VOCAB_SIZE), compiled=True, **OPTIONS)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    said: list[list[int]] = [prompt[0].tolist() for prompt in prompts]
    ended = 0
    while ended < 2:
        ended = 0
        for steps, text in zip(turns, said, strict=True):
            step = next(steps, None)
            text += step.tokens if step else ()
            ended += step is None
    assert said == texts
    assert len(sizes_of(model)) == 1


@as_they_are()
def test_the_returned_cache_continues_with_or_without_compiled_steps() -> None:
    model: Any = tiny_model(seed=11)
    text = truth(model)
    first = ours(model, RandomTreeDrafter(text, 3, VOCAB_SIZE), max_new_tokens=20, return_dict_in_generate=True)
    memory = first.past_key_values
    assert type(memory) is DynamicCache
    assert memory.get_seq_length() == LENGTH + 19
    second: Any = generate(
        model, first.sequences, past_key_values=memory, drafter=lambda: OracleDrafter(text, 5), compiled=True,
        **OPTIONS | {"max_new_tokens": 14},
    )  # fmt: skip
    assert memory.get_seq_length() == LENGTH + 33
    third = model.generate(second, past_key_values=memory, **OPTIONS | {"max_new_tokens": 14})
    assert third[0].tolist() == text


def test_each_number_of_rows_is_compiled_once() -> None:
    graphs: list[Any] = []

    def as_it_is(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = compiling(tiny_model(seed=11, num_hidden_layers=1), backend=as_it_is)
    text = truth(model)
    for seed in (1, 2, 3):
        recorder = RecordingDrafter(RandomTreeDrafter(text, seed, VOCAB_SIZE))
        assert ours(model, recorder, num_draft_tokens=7)[0].tolist() == text
        expect_plain_logits(model, text, recorder.records)
    used = {min(size for size in BUCKETS if size > len(record.draft)) for record in recorder.records[1:]}
    assert used == {1, 4, 8}
    assert len(graphs) == len(used)
    assert not failure_of(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # raised within inductor
@pytest.mark.timeout(600)
@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("gcc") is None, reason="inductor needs a compiler")
def test_inductor_compiles_a_step() -> None:
    model = tiny_model(seed=11, num_hidden_layers=1)
    text = truth(model)
    recorder = RecordingDrafter(OracleDrafter(text, 3))
    assert ours(model, recorder, max_new_tokens=9)[0].tolist() == text[: LENGTH + 9]  # two steps of four rows
    expect_plain_logits(model, text[: LENGTH + 9], recorder.records)
    assert not failure_of(model)


def test_a_compiler_error_is_warned_of_once_and_decoding_continues() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no room for code\nand more lines")

    model = compiling(tiny_model(seed=11), backend=broken)
    text = truth(model)
    with pytest.warns(UserWarning, match="decoded without compiled steps: compiling failed: .*no room for code"):
        assert ours(model, RandomTreeDrafter(text, 1, VOCAB_SIZE))[0].tolist() == text
    assert ours(model, RandomTreeDrafter(text, 2, VOCAB_SIZE))[0].tolist() == text
    assert "no room" in engine_of(model).why_not_compiled()


def test_compiled_steps_with_other_logits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(seed=11)

    def careless(step: Any, **options: Any) -> Any:
        return lambda model: (step(model)[0].roll(1, dims=0), *step(model)[1:])

    monkeypatch.setattr(torch, "compile", careless)
    text = truth(model)
    with pytest.warns(UserWarning, match="gave other logits"):
        assert ours(model, RandomTreeDrafter(text, 1, VOCAB_SIZE))[0].tolist() == text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")
@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize("mode", MODES)
def test_graphs_on_a_gpu_give_the_same_output(mode: str, asked: bool | None) -> None:
    model: Any = tiny_model(seed=11).to("cuda")  # type: ignore[arg-type]
    options: dict[str, Any] = OPTIONS | MODES[mode] | {"output_logits": True, "return_dict_in_generate": True}
    torch.manual_seed(3)
    expected = model.generate(PROMPT.to("cuda"), **options)
    text = expected.sequences[0].tolist()
    torch.manual_seed(3)
    output: Any = generate(
        model, PROMPT.to("cuda"), drafter=lambda: RandomTreeDrafter(text, 1, VOCAB_SIZE), compiled=asked, **options
    )
    assert output.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(output.logits, expected.logits, atol=2e-3, rtol=1e-3)
    assert set(sizes_of(model)) == {1024}
    assert not failure_of(model)


OBSTACLES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "not all of its layers look back to the start": ("gemma3", lambda model: None),
    "its rotary frequencies change": ("llama-dynamic", lambda model: None),
    "it verifies no trees": ("bloom", lambda model: None),
    "its cache is a StaticCache of other layers": ("llama", lambda model: StaticCache(model.config, max_cache_len=90)),
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_what_cannot_be_compiled_is_decoded_plainly_with_a_warning_if_requested(reason: str) -> None:
    family, make = OBSTACLES[reason]
    model: Any = tiny_model(family)
    text = truth(model)
    with pytest.warns(UserWarning, match=reason):
        assert ours(model, OracleDrafter(text, 5), past_key_values=make(model))[0].tolist() == text
    assert ours(model, OracleDrafter(text, 5), past_key_values=make(model), compiled=None)[0].tolist() == text


def test_a_slot_cache_does_not_keep_its_model_alive() -> None:
    import gc
    from weakref import ref

    model = tiny_model(seed=11)
    cached = in_slots(model, truth(model)[:LENGTH])
    with torch.no_grad():
        cached.forward([5], EMPTY)
    gone = ref(model)
    del model, cached
    gc.collect()
    assert gone() is None


def test_what_a_captured_step_reads_lives_as_long_as_its_slot_cache() -> None:
    """A CUDA graph reads tensors by their addresses: one that is freed is overwritten, and the graph goes wrong."""
    model = tiny_model()
    slot_cache = SlotCache(model, traits_of(model), 64, compiles=False)
    kept = {each.untyped_storage().data_ptr() for each in vars(slot_cache).values() if isinstance(each, torch.Tensor)}
    for rows in BUCKETS:
        step: Any = slot_cache._step(rows)
        read = [cell.cell_contents for cell in step.__closure__ if isinstance(cell.cell_contents, torch.Tensor)]
        assert len(read) == 3
        assert {each.untyped_storage().data_ptr() for each in read} <= kept

"""Packed attention: the results of "sdpa" without copies, in the engine's own draft steps only."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from antiphon.accel.drafting.drafters import Nothing
from antiphon.accel.drafting.tree import reorder_depth_first
from antiphon.accel.engines.torch.attention import implementation_of, override_attention
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.packed_attention import MAX_ROWS, PACKED, packed_attention
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import RandomTreeDrafter, RecordingDrafter
from tests.accel.oracles import expect_plain_logits
from tests.families.table import tiny_model
from tests.tiny import VOCAB_SIZE

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
OPTIONS: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}


MODEL = tiny_model()


def states(heads: int, groups: int, rows: int, slots: int = 50, batch: int = 1) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Return an attention module and random queries, keys and values of size 16."""
    random = torch.Generator().manual_seed(rows)
    shared = (batch, heads // groups, slots, 16)
    query, key, value = (torch.randn(s, generator=random) for s in ((batch, heads, rows, 16), shared, shared))
    return SimpleNamespace(num_key_value_groups=groups, is_causal=True, training=False), query, key, value


def masked(rows: int, slots: int = 50, *, heads: int = 1, batch: int = 1) -> Tensor:
    """Return a random mask, different for every row and every sequence of a batch."""
    seen = torch.rand((batch, heads, rows, slots), generator=torch.Generator().manual_seed(7)) < 0.6
    seen[..., 0] = True
    return seen


def attend_packed(*given: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Call packed attention while it overrides the model's attention."""
    with override_attention(MODEL, PACKED):
        return packed_attention(*given, **options)


def sdpa(*given: Any, **options: Any) -> Tensor:
    output, _ = AttentionInterface()["sdpa"](*given, **options)
    return output  # type: ignore[no-any-return]


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (9, 3), (14, 7), (8, 8)])
@pytest.mark.parametrize("rows", [1, 2, 9, 33])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_row_of_every_head_is_what_sdpa_gives(heads: int, groups: int, rows: int, batch: int) -> None:
    given = states(heads, groups, rows, batch=batch)
    mask = masked(rows, batch=batch)
    output, _ = attend_packed(*given, mask, scaling=0.3)
    torch.testing.assert_close(output, sdpa(*given, mask, scaling=0.3), atol=2e-6, rtol=1e-5)


# Calls that packed attention leaves to sdpa.
LEFT: dict[str, Callable[[], tuple[Any, ...]]] = {
    "no mask": lambda: (*states(4, 2, 9), None),
    "a plain step": lambda: (*states(4, 2, 1), None),
    "a prompt": lambda: (*states(4, 2, MAX_ROWS + 1, 200), masked(MAX_ROWS + 1, 200)),
    "a mask by head": lambda: (*states(4, 2, 9), masked(9, heads=4)),
    "one query head to each key head": lambda: (*states(4, 1, 9), masked(9)),
}


@pytest.mark.parametrize("left", LEFT)
def test_unsupported_calls_equal_sdpa_to_the_bit(left: str) -> None:
    given = LEFT[left]()
    assert torch.equal(attend_packed(*given)[0], sdpa(*given))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_steps_have_the_logits_of_transformers_to_the_bit(family: str, dtype: torch.dtype) -> None:
    """The families include one with sliding windows of 12 tokens."""
    model: Any = tiny_model(family, seed=5)
    model.to(dtype)
    assert traits_of(model).uses_packed_attention
    options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    expected = model.generate(PROMPT, **options)
    found: Any = generate(model, PROMPT, drafter=Nothing, num_draft_tokens=0, **options)
    assert torch.equal(torch.cat(found.logits), torch.cat(expected.logits))


def test_only_draft_steps_use_packed_attention() -> None:
    model: Any = tiny_model(seed=11)
    assert traits_of(model).uses_packed_attention
    text = model.generate(PROMPT, **OPTIONS)[0].tolist()
    seen: dict[str, set[bool]] = {}

    def note(module: Any, given: Any, named: dict[str, Any]) -> None:
        seen.setdefault(implementation_of(model), set()).add(named["attention_mask"] is None)

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    between: list[str] = []
    recorder = RecordingDrafter(RandomTreeDrafter(text, 1, VOCAB_SIZE))
    output: Any = generate(
        model,
        PROMPT,
        drafter=lambda: recorder,
        on_step=lambda step: between.append(implementation_of(model)),
        **OPTIONS,
    )
    handle.remove()
    assert output[0].tolist() == text
    assert seen == {"sdpa": {True}, PACKED: {False}}
    assert set(between) == {"sdpa"}
    expect_plain_logits(model, text, recorder.records)
    assert all(record.draft == reorder_depth_first(record.draft) for record in recorder.records)


def test_packed_attention_that_changes_logits_is_not_used() -> None:
    def careless(*given: Any, **options: Any) -> Any:
        output, weights = packed_attention(*given, **options)
        return output.roll(1, dims=2), weights  # wrong on purpose: the heads are swapped

    AttentionInterface.register(PACKED, careless)
    try:
        traits = traits_of(tiny_model(seed=12))
    finally:
        AttentionInterface.register(PACKED, packed_attention)
    assert (traits.level, traits.uses_packed_attention) == ("tree", False)
    assert "changed the logits" in traits.packing_reason

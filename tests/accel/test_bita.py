"""BiTA: the draft tree of the paper, isolation of mask tokens, and weights of one model."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from antiphon.accel.drafting.draft import ROOT, Accepted, Draft
from antiphon.accel.drafting.drafters import Bita, make_drafter
from antiphon.accel.engines.torch.bita_weights import BitaWeights
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import generate, stream
from antiphon.accel.testing.tiny import VOCAB_SIZE
from recipes.bita.initial import initial_bita_weights
from tests.accel.adversarial_drafters import RandomTreeDrafter, RecordingDrafter
from tests.families.table import tiny_model

PROMPT = torch.randint(1, 250, (1, 20), generator=torch.Generator().manual_seed(5))
GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 24}


def bita_weights(model: Any, masks: int = 3, prefix: int = 5, scale: float = 50.0) -> BitaWeights:
    learned = initial_bita_weights(model, prefix=prefix, masks=masks)
    return replace(learned, keys=scale * learned.keys, values=scale * learned.values)


def mask_logits(draft: Draft, masks: int, first: int = 30) -> Tensor:
    """Return logits with which a mask guesses ``first``, ``first + 1``, ...; the next mask 10 tokens further."""
    logits = torch.zeros(1 + len(draft), VOCAB_SIZE)
    for row in range(draft.num_candidates, len(draft)):
        start = first + 10 * (-1 - draft.tokens[row])
        logits[1 + row, start : start + 6] = torch.arange(12.0, 6.0, -1.0)
    return logits


def after_first_step(drafter: Bita) -> Bita:
    """Return the drafter after its first step."""
    draft = drafter.begin((1, 2), ())
    drafter.observe(draft, Accepted((), (3,)), TorchLogits(mask_logits(draft, drafter.masks)))
    return drafter


def worked_example() -> Draft:
    return after_first_step(Bita(bita_weights(tiny_model(), masks=2), 3)).propose((1, 2, 3), 63)


def test_the_worked_example_has_eighteen_rows() -> None:
    draft = worked_example()
    assert draft.num_candidates == 5
    assert draft.tokens == (30, 31, 32, 40, 41, *(-1, -2) * 6)
    n = [0, 1, 2, 3, 4]
    groups = [(parent, 5 + 2 * group) for group, parent in enumerate([ROOT, *n])]
    assert draft.parents == (-1, -1, -1, 0, 0, *(row for parent, first in groups for row in (parent, first)))
    p = 100
    positions = [p + depth for depth in draft.depths]
    assert positions == [p + 1] * 3 + [p + 2] * 2 + [p + 1, p + 2] + [p + 2, p + 3] * 3 + [p + 3, p + 4] * 2


def test_attention_masks_of_the_worked_example_are_those_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    cached = TorchSequence(model, traits_of(model), bita=bita_weights(model, masks=2))
    cached.prefill(PROMPT[0].tolist())
    cached.keep(())
    masks: list[Tensor] = []
    monkeypatch.setattr(model, "forward", _watching(model.forward, masks))
    cached.forward([7], worked_example())
    sees = masks[0][0, 0]
    length, rows = PROMPT.shape[1], 1 + 15 + 2 - 0
    assert sees.shape == (rows, length + rows + 5)
    assert sees[:, : length + 1].all()  # all rows attend to the context and the root
    assert sees[:6, -5:].any().item() is False
    assert sees[6:, -5:].all()  # only masks attend to the prefix
    root, n0, n1, n2, n3, n4 = range(6)
    own: dict[int, set[int]] = {root: set(), n0: {n0}, n1: {n1}, n2: {n2}, n3: {n0, n3}, n4: {n0, n4}}
    for group, node in enumerate([root, n0, n1, n2, n3, n4]):
        first = 6 + 2 * group
        own[first] = own[node] | {first}
        own[first + 1] = own[first] | {first + 1}
    for row, seen in own.items():
        assert {int(other) for other in sees[row, length + 1 : length + rows].nonzero()} == {x - 1 for x in seen}


def _watching(forward: Any, masks: list[Tensor]) -> Any:
    def watched(**given: Any) -> Any:
        masks.append(given["attention_mask"])
        return forward(**given)

    return watched


@pytest.mark.parametrize(
    ("shape", "masks", "guesses"),
    [("triangle", 3, 12), ("triangle", 4, 14), ("rectangle", 3, 15), ("rectangle", 4, 20), ("chain", 3, 3)],
)
def test_a_full_draft_has_the_number_of_rows_of_the_paper(shape: Any, masks: int, guesses: int) -> None:
    draft = after_first_step(Bita(bita_weights(tiny_model(), masks), shape=shape)).propose((1, 2, 3), 999)
    assert draft.num_candidates == guesses
    assert 1 + len(draft) == 1 + guesses + masks * (guesses + 1)
    assert 1 + len(draft) == {
        ("triangle", 3): 52,
        ("triangle", 4): 75,
        ("rectangle", 3): 64,
        ("rectangle", 4): 105,
    }.get((shape, masks), 16)


def test_a_smaller_budget_keeps_the_most_valuable_rows_and_whole_paths() -> None:
    drafter = after_first_step(Bita(bita_weights(tiny_model())))
    whole = drafter.propose((1, 2, 3), 999)
    for budget in range(52):
        draft = drafter.propose((1, 2, 3), budget)
        assert len(draft) == budget
        paths = [_path(draft, row) for row in range(budget)]
        assert set(paths) <= {_path(whole, row) for row in range(len(whole))}
        assert sorted(draft.chances) == sorted(sorted(whole.chances)[len(whole) - budget :])
    small = drafter.propose((1, 2, 3), 24)
    behind = {small.parents[row] for row in range(small.num_candidates, 24) if small.tokens[row] == -1}
    assert ROOT in behind
    assert 1 < len(behind) < small.num_candidates  # only rows at which the accepted path is likely to end have masks


def _path(draft: Draft, row: int) -> tuple[int, ...]:
    path: tuple[int, ...] = ()
    while row != ROOT:
        path, row = (draft.tokens[row], *path), draft.parents[row]
    return path


def test_the_masks_behind_the_last_accepted_row_make_the_next_draft() -> None:
    drafter = Bita(bita_weights(tiny_model(), masks=2), 2)
    draft = after_first_step(drafter).propose((1, 2, 3), 63)
    row = draft.tokens.index(31)
    logits = torch.zeros(1 + len(draft), VOCAB_SIZE)
    for probe in range(draft.num_candidates, len(draft)):
        logits[1 + probe, 100 + probe] = 9.0
    drafter.observe(draft, Accepted((row,), (31, 5)), TorchLogits(logits))
    first, second = (probe for probe in range(draft.num_candidates, len(draft)) if row in _rows(draft, probe))
    following = drafter.propose((1, 2, 3, 31, 5), 63)
    assert following.tokens[0] == 100 + first
    assert following.children[0].keys() & {100 + second} == {100 + second}
    drafter.begin((1,), ())
    assert drafter.propose((1,), 63).num_candidates == 0


def _rows(draft: Draft, row: int) -> list[int]:
    return list(accumulate(range(len(draft)), lambda at, _: draft.parents[at] if at != ROOT else ROOT, initial=row))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "qwen3"])
def test_masks_are_isolated_from_other_rows_and_other_rows_from_masks(family: str) -> None:
    """Row isolation in float64 with a prefix of norm 100 and more, in a full cache and beyond a sliding window."""
    model = tiny_model(family).double()
    text = torch.randint(1, 250, (31,), generator=torch.Generator().manual_seed(1)).tolist()
    learned = bita_weights(model, masks=2, scale=5000.0)
    tree_drafter = RandomTreeDrafter([*text, *range(60, 90)], 3, VOCAB_SIZE).propose(text, 9)
    draft = Bita(learned).with_masks(replace(tree_drafter, chances=(1.0,) * len(tree_drafter)), 99)
    plain = TorchSequence(model, traits_of(model))
    masked = TorchSequence(model, traits_of(model), bita=learned)
    logits = []
    for cached, fed in ((plain, tree_drafter), (masked, draft)):
        cached.prefill(text[:-1])
        cached.keep(())
        logits.append(cached.forward(text[-1:], fed))
        cached.keep(())
    torch.testing.assert_close(logits[1][: 1 + len(tree_drafter)], logits[0], atol=1e-9, rtol=1e-9)
    for row in range(ROOT, len(tree_drafter)):
        context = [*text, *(_path(tree_drafter, row) if row != ROOT else ())]
        own = [probe for probe in range(draft.num_candidates, len(draft)) if row in _base_row(draft, probe)]
        alone = TorchSequence(model, traits_of(model), bita=learned)
        alone.prefill(context[:-1])
        alone.keep(())
        truth = alone.forward(context[-1:], Draft((-1, -2), (-1, 0), (1.0, 1.0), 2))[1:]
        torch.testing.assert_close(logits[1][[1 + probe for probe in own]], truth, atol=1e-9, rtol=1e-9)
    layers: list[tuple[Any, Any]] = list(zip(masked.cache.layers, plain.cache.layers, strict=True))
    for mine, other in layers:
        torch.testing.assert_close(mine.keys, other.keys, atol=1e-9, rtol=1e-9)
        assert mine.get_seq_length() == other.get_seq_length() == len(text)


def _base_row(draft: Draft, probe: int) -> list[int]:
    """Return the row behind which a mask stands, in a list; the root gives an empty list."""
    while draft.tokens[probe] < 0:
        probe = draft.parents[probe]
        if probe == ROOT:
            break
    return [probe]


def test_the_prefix_changes_the_logits_of_masks_only() -> None:
    model = tiny_model()
    logits = []
    for scale in (50.0, 60.0):
        cached = TorchSequence(model, traits_of(model), bita=bita_weights(model, scale=scale))
        cached.prefill(PROMPT[0].tolist())
        cached.keep(())
        logits.append(cached.forward([7], Draft((-1,), (-1,), (1.0,), 1)))
    torch.testing.assert_close(logits[0][0], logits[1][0], atol=1e-5, rtol=1e-5)
    assert (logits[0][1] - logits[1][1]).abs().max() > 0.1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_callers_cache_is_left_as_plain_decoding_leaves_it(kind: str, padded: bool) -> None:
    model = tiny_model()
    learned = bita_weights(model)
    ids = torch.cat([torch.full((1, 4), 258), PROMPT], dim=1) if padded else PROMPT
    options = GREEDY | {"return_dict_in_generate": True, "attention_mask": (ids != 258).long()}

    def fresh() -> Any:
        return DynamicCache() if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=120)

    expected = model.generate(ids, past_key_values=fresh(), **options)  # type: ignore[operator]
    output: Any = generate(
        model, ids, past_key_values=fresh(), drafter=lambda: Bita(learned), num_draft_tokens=40, **options
    )
    assert output.sequences.tolist() == expected.sequences.tolist()
    length = output.sequences.shape[1] - 1
    assert output.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length() == length
    for mine, other in zip(output.past_key_values.layers, expected.past_key_values.layers, strict=True):
        torch.testing.assert_close(mine.keys[:, :, 4:length], other.keys[:, :, 4:length], atol=1e-4, rtol=1e-4)
    again = torch.cat([output.sequences, PROMPT[:, :3]], dim=1)
    further: dict[str, Any] = {"attention_mask": (torch.cat([ids, again[:, ids.shape[1] :]], dim=1) != 258).long()}
    text = model.generate(again, **GREEDY, **further)  # type: ignore[operator]
    further |= GREEDY | {"past_key_values": output.past_key_values, "num_draft_tokens": 40}
    conversed: Any = generate(model, again, drafter=lambda: Bita(learned), **further)
    assert conversed.tolist() == text.tolist()


def test_a_batch_is_decoded_one_sequence_at_a_time_and_compiled_steps_are_refused() -> None:
    model = tiny_model()
    learned = bita_weights(model)
    ids = torch.cat([PROMPT, PROMPT.flip(1)])
    options = GREEDY | {"attention_mask": torch.ones_like(ids)}
    expected = model.generate(ids, **options)  # type: ignore[operator]
    output: Any = generate(model, ids, drafter=lambda: Bita(learned), num_draft_tokens=20, **options)
    assert output.tolist() == expected.tolist()
    with pytest.warns(UserWarning, match="its drafter has mask tokens"):
        steps = list(stream(model, PROMPT, drafter=lambda: Bita(learned), num_draft_tokens=20, compiled=True, **GREEDY))
    assert [token for step in steps for token in step.tokens] == expected[0, PROMPT.shape[1] :].tolist()


def test_loaded_weights_give_the_same_drafts(tmp_path: Path) -> None:
    model = tiny_model()
    learned = bita_weights(model)
    learned.save(tmp_path / "a.safetensors")
    loaded = BitaWeights.load(tmp_path / "a.safetensors")
    assert (loaded.model, loaded.notes) == (learned.model, learned.notes)
    drafts = []
    for make in (lambda: Bita(learned), make_drafter("bita", bita=loaded)):
        recorder = RecordingDrafter(make())
        generate(model, PROMPT, drafter=lambda: recorder, num_draft_tokens=50, **GREEDY)  # noqa: B023  # called at once
        drafts.append([record.draft for record in recorder.records])
    assert drafts[0] == drafts[1]
    assert any(draft.num_candidates for draft in drafts[0])


def test_weights_of_another_model_are_refused_by_name() -> None:
    learned = replace(initial_bita_weights(tiny_model()), model="tiny-0")
    for other, message in (
        (tiny_model(seed=1), "belong to 'tiny-0', and the weights of 'llama' are others; train them"),
        (tiny_model(num_hidden_layers=3), "weights for 'tiny-0' have the shapes"),
        (tiny_model(hidden_size=128), "weights for 'tiny-0' have the shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(other, PROMPT, drafter=lambda: Bita(learned), num_draft_tokens=8, **GREEDY)
    for precision in (torch.bfloat16, torch.float16, torch.float64):
        same: Any = tiny_model()
        learned.check(same.to(precision))


def test_models_and_modes_without_prefix_support_are_refused() -> None:
    bloom, llama = tiny_model("bloom"), tiny_model()
    with pytest.raises(ValueError, match="BiTA verifies trees, which BloomForCausalLM cannot"):
        generate(bloom, PROMPT, drafter=lambda: Bita(initial_bita_weights(bloom)), num_draft_tokens=8, **GREEDY)
    with pytest.raises(ValueError, match="BiTA is not decoded reproducibly"):
        generate(llama, PROMPT, drafter=lambda: Bita(initial_bita_weights(llama)), reproducible=True, **GREEDY)
    with pytest.raises(ValueError, match="do not all cache keys and values"):
        initial_bita_weights(tiny_model("mamba2"))


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "learned.safetensors"
    with pytest.raises(FileNotFoundError, match="no BiTA weights at"):
        BitaWeights.load(file)
    file.write_bytes(content)
    with pytest.raises(ValueError, match="no BiTA weights, or is damaged"):
        BitaWeights.load(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"k": 0}, "k is 0"), ({"shape": "circle"}, "shape is 'circle'; choose one of triangle, rectangle, chain")],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bita(initial_bita_weights(tiny_model()), **options)


def test_the_isolation_test_fails_if_all_rows_attend_to_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all rows attend to the prefix, the test of row isolation must fail."""
    monkeypatch.setattr(Tensor, "expand", _all_true(Tensor.expand))
    with pytest.raises(AssertionError):
        test_masks_are_isolated_from_other_rows_and_other_rows_from_masks("llama")


def _all_true(expand: Any) -> Any:
    def widened(self: Tensor, *sizes: int) -> Tensor:
        wide: Tensor = expand(self, *sizes)
        return torch.ones_like(wide) if wide.dtype == torch.bool and sizes[0] == -1 else wide

    return widened

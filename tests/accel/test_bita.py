"""BiTA: the draft tree of the paper, isolation of mask tokens, weights of one model, and when masks are selected."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache

from antiphon.accel import DrafterChoice, LanguageModel, choose_drafter
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.draft import ROOT, Accepted, Draft, path_to
from antiphon.accel.drafting.drafters import BITA_FILE, Bita, Blend, SuffixMatch
from antiphon.accel.engines.torch.bita_weights import BitaWeights
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.loading import load_pretrained
from antiphon.accel.engines.torch.logits import TorchLogits
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import generate, stream
from recipes.bita.initial import initial_bita_weights, save_bita_weights
from tests.accel.adversarial_drafters import RandomTreeDrafter
from tests.accel.oracles import spelled
from tests.families.table import tiny_model
from tests.tiny import VOCAB_SIZE, save_model

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


def test_the_masks_behind_the_last_accepted_row_make_the_next_draft() -> None:
    drafter = Bita(bita_weights(tiny_model(), masks=2), 2)
    draft = after_first_step(drafter).propose((1, 2, 3), 63)
    row = draft.tokens.index(31)
    logits = torch.zeros(1 + len(draft), VOCAB_SIZE)
    for probe in range(draft.num_candidates, len(draft)):
        logits[1 + probe, 100 + probe] = 9.0
    drafter.observe(draft, Accepted((row,), (31, 5)), TorchLogits(logits))
    first, second = (probe for probe in range(draft.num_candidates, len(draft)) if row in path_to(draft, probe))
    following = drafter.propose((1, 2, 3, 31, 5), 63)
    assert following.tokens[0] == 100 + first
    assert following.children[0].keys() & {100 + second} == {100 + second}
    drafter.begin((1,), ())
    assert drafter.propose((1,), 63).num_candidates == 0


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
        context = [*text, *spelled(tree_drafter, row)]
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


def test_weights_of_another_model_and_unsupported_models_are_refused() -> None:
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


FREE = StepCost({64: {1: 1.0, 64: 1.1}})
DEAR = StepCost({64: {1: 1.0, 64: 3.0}})


def loaded(folder: Path) -> PreTrainedModel:
    model, _ = load_pretrained(folder, device="cpu")
    return model


def noted(begin: Callable[..., Any], begun: list[type]) -> Callable[..., Any]:
    """Wrap a drafter's `begin` so that it records the drafter's class."""

    def written(self: object, *texts: Any) -> Any:
        if texts[0]:  # constructors call it without a prompt
            begun.append(type(self))
        return begin(self, *texts)

    return written


def with_masks(choice: DrafterChoice) -> bool:
    """Return whether the selected drafter is the default one with BiTA's masks."""
    drafter: Any = choice.drafter()
    return drafter.bita is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Save a tiny model with untrained BiTA masks for it."""
    model = tiny_model()
    save_model(model, tmp_path)
    save_bita_weights(initial_bita_weights(model), tmp_path / BITA_FILE)
    return tmp_path


def test_masks_are_selected_if_they_emit_more_than_their_rows_cost(folder: Path) -> None:
    model = loaded(folder)
    chosen = choose_drafter(model, FREE)
    assert with_masks(chosen)
    assert chosen.name == "blend with bita"
    assert str(chosen).startswith(
        "blend with bita: BiTA's full draft, 52 rows, makes about 1.6 tokens and costs 1.1 plain"
    )
    assert "lookahead's window, 9 rows for some 0.05 tokens, would cost 0.01 plain steps" in chosen.reason
    dear = choose_drafter(model, DEAR)
    assert not with_masks(dear)
    assert "52 rows, makes about 1.6 tokens and costs 2.6 plain steps" in dear.reason


def test_without_masks_for_this_model_the_default_is_selected_with_the_reason(folder: Path) -> None:
    model = tiny_model()
    none = choose_drafter(model, FREE)
    assert (none.name, none.drafter) == ("blend", Blend)
    assert none.reason.startswith(f"no {BITA_FILE} lies in the model's folder; lookahead's window, ")
    save_bita_weights(initial_bita_weights(tiny_model(seed=1)), folder / BITA_FILE)
    assert "the weights of" in choose_drafter(loaded(folder), FREE).reason
    (folder / BITA_FILE).write_bytes(b"torn")
    assert "or is damaged; train them again" in choose_drafter(loaded(folder), FREE).reason


def test_reproducible_decoding_uses_no_masks(folder: Path) -> None:
    model = LanguageModel.from_pretrained(folder, device="cpu", drafter="auto", reproducible=True, cost=FREE)
    assert "BiTA is not decoded reproducibly" in choose_drafter(model.model, FREE, reproducible=True).reason
    plain = model.generate("bees and bees", drafter="nothing", max_new_tokens=12)
    assert model.generate("bees and bees", max_new_tokens=12).tokens == plain.tokens


@pytest.mark.parametrize(("cost", "kind"), [(FREE, Bita), (DEAR, SuffixMatch)], ids=["free", "dear"])
def test_the_selected_drafter_is_used_and_the_text_equals_plain_decoding(
    folder: Path, cost: StepCost, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[type] = []
    for each in (Bita, SuffixMatch):
        monkeypatch.setattr(each, "begin", noted(each.begin, begun))
    model = LanguageModel.from_pretrained(folder, device="cpu", drafter="auto", num_draft_tokens=16, cost=cost)
    plain = model.generate("bees and bees", drafter="nothing", max_new_tokens=40)
    begun.clear()
    assert model.generate("bees and bees", max_new_tokens=40).tokens == plain.tokens
    assert (Bita in begun) == (kind is Bita)
    assert SuffixMatch in begun
    begun.clear()
    named = LanguageModel(model.model, model.tokenizer, num_draft_tokens=16, cost=cost)
    assert named.generate("bees and bees", drafter="auto", max_new_tokens=40).tokens == plain.tokens
    assert (Bita in begun) == (kind is Bita)

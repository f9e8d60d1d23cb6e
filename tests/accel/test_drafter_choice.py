"""The drafter "auto": BiTA's masks are selected by cost, and the text does not depend on the selection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from antiphon.accel import DrafterChoice, LanguageModel, choose_drafter
from antiphon.accel.drafting.cost_model import StepCost
from antiphon.accel.drafting.drafters import BITA_FILE, Bita, Blend, SuffixMatch
from antiphon.accel.engines.torch.loading import load_pretrained
from recipes.bita.initial import initial_bita_weights, save_bita_weights
from tests.families.table import tiny_model
from tests.tiny import save_model

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

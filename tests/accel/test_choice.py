"""The drafter "auto": what was learned for a model against what its forwards cost, and the same text whatever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.accel import LanguageModel, choice, choose_drafter
from antiphon.accel.drafters import LEARNED_FILE, Bita, Blend, Together
from antiphon.accel.learned import untrained
from antiphon.accel.loading import load_pretrained
from antiphon.accel.step_cost import StepCost
from antiphon.accel.tiny import byte_tokenizer, tiny_model

FREE = StepCost({64: {1: 1.0, 64: 1.1}})
DEAR = StepCost({64: {1: 1.0, 64: 3.0}})


def priced(patch: pytest.MonkeyPatch, cost: StepCost) -> None:
    patch.setattr(choice, "step_cost", lambda model: cost)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with what BiTA would learn of it beside."""
    model = tiny_model()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    untrained(model).save(tmp_path / LEARNED_FILE)
    return tmp_path


def test_masks_are_chosen_where_their_rows_cost_less_than_they_bring(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_pretrained(folder)
    priced(monkeypatch, FREE)
    chosen = choose_drafter(model)
    assert isinstance(chosen.drafter(), Together)
    assert str(chosen).startswith("blend+bita: BiTA's full draft, 52 rows, makes about 1.6 tokens and costs 1.1 plain")
    priced(monkeypatch, DEAR)
    assert choose_drafter(model) is chosen, "it is kept as long as the model lives"
    dear = choose_drafter(load_pretrained(folder)[0])
    assert isinstance(dear.drafter(), Blend)
    assert "52 rows, makes about 1.6 tokens and costs 2.6 plain steps" in dear.reason


def test_without_a_file_for_this_very_model_the_default_drafts_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced(monkeypatch, FREE)
    none = choose_drafter(tiny_model())
    assert (none.name, none.drafter) == ("blend", Blend)
    assert none.reason.startswith(f"no {LEARNED_FILE} lies in the model's folder; a window of lookahead, ")
    untrained(tiny_model(seed=1)).save(folder / LEARNED_FILE)
    assert "the weights of" in choose_drafter(load_pretrained(folder)[0]).reason
    (folder / LEARNED_FILE).write_bytes(b"torn")
    assert "or damaged; train anew" in choose_drafter(load_pretrained(folder)[0]).reason


def test_a_model_that_verifies_no_drafts_gets_the_default_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "step_cost", None)  # nothing is measured
    chosen = choose_drafter(tiny_model("recurrent_gemma"))
    assert chosen.name == "blend"
    assert chosen.reason.startswith("drafts do not help this model: ")


@pytest.mark.parametrize("cost", [FREE, DEAR], ids=["free", "dear"])
def test_the_text_is_that_of_plain_decoding_whatever_is_chosen(
    folder: Path, cost: StepCost, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced(monkeypatch, cost)
    model = LanguageModel.from_pretrained(folder, device="cpu", drafter="auto", rows=16)
    plain = model.generate("bees and bees", drafter="nothing", max_new_tokens=40)
    drafted = model.generate("bees and bees", max_new_tokens=40)
    assert drafted.tokens == plain.tokens
    asked = LanguageModel.from_pretrained(folder, device="cpu").generate(
        "bees and bees", drafter="auto", rows=16, max_new_tokens=40
    )
    assert asked.tokens == plain.tokens
    assert asked.steps.steps == drafted.steps.steps


def test_a_full_draft_has_so_many_rows() -> None:
    learned = untrained(tiny_model())
    assert Bita(learned).rows == 51
    assert Bita(learned, shape="chain").rows == 15

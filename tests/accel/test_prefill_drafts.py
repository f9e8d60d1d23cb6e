"""Drafts in the first forward pass: below the prompt's last token, if model and options allow it."""

from typing import Any

from torch import Tensor

from antiphon.accel.drafting.draft import Accepted, Draft, Logits
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import generate
from tests.accel.oracles import forward_rows
from tests.accel.test_engine import LENGTH, PROMPT, ROPES, plain
from tests.families.table import tiny_model
from tests.tiny import VOCAB_SIZE


def shapes_of(model: Any, drafter: Any, **options: Any) -> tuple[list[int], list[int]]:
    """Return the text, and the number of rows of each forward pass."""
    traits_of(model)
    settings = {"max_new_tokens": 4, "eos_token_id": None, "do_sample": False, "num_draft_tokens": 32} | options
    with forward_rows(model) as fed:
        output = generate(model, PROMPT, drafter=drafter, **settings)
    assert isinstance(output, Tensor)
    return output[0].tolist(), fed


class PrefillProber(Nothing):
    """Proposes three probes below the prompt's last token, and no later drafts."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, ...]] = []

    def begin(self, prompt: Any, references: Any) -> Draft:  # type: ignore[override]
        return Draft((1, 2, 3), (-1, 0, -1), (0.5,) * 3, num_probes=3)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        assert logits is not None
        self.answers.append((len(draft), *logits.tensor().shape))


def test_a_prompt_is_prefilled_up_to_its_last_token_if_the_drafter_drafts_below_that() -> None:
    model = tiny_model(seed=11)
    expected = plain(model, max_new_tokens=4)
    prober = PrefillProber()
    assert shapes_of(model, Nothing) == (expected, [LENGTH, 1, 1, 1])
    assert shapes_of(model, lambda: prober) == (expected, [LENGTH - 1, 1 + 3, 1, 1, 1])
    assert prober.answers == [(3, 4, VOCAB_SIZE), *[(0, 1, VOCAB_SIZE)] * 3]
    assert shapes_of(model, PrefillProber, prefill_chunk_size=16) == (expected, [16, 16, 7, 1 + 3, 1, 1, 1])
    assert shapes_of(model, PrefillProber, num_draft_tokens=2) == (expected, [LENGTH - 1, 1, 1, 1, 1]), (
        "the probes exceed the budget"
    )


def test_no_draft_shares_the_prefill_if_that_could_change_its_logits() -> None:
    model = tiny_model(seed=11)
    assert TorchSequence(model, traits_of(model)).can_draft_at_prefill([5, 6])
    assert not TorchSequence(model, traits_of(model), reproducible=True).can_draft_at_prefill([5, 6]), (
        "its logits must be bitwise equal"
    )
    assert not TorchSequence(model, traits_of(model)).can_draft_at_prefill([5])
    longrope = tiny_model(rope_parameters=ROPES["dynamic"], max_position_embeddings=52)
    assert shapes_of(longrope, PrefillProber)[1][0] == LENGTH
    assert shapes_of(tiny_model("mamba2"), PrefillProber)[1][0] == LENGTH

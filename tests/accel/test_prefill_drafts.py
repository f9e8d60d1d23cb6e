"""What a drafter may ask beside the prompt's last token, and where the prompt is read alone."""

from typing import Any

from torch import Tensor

from antiphon.accel.drafting.draft import Accepted, Draft, Logits
from antiphon.accel.drafting.drafters.nothing import Nothing
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.sequence import TorchSequence
from antiphon.accel.generate import generate
from antiphon.accel.testing.tiny import VOCABULARY, tiny_model
from tests.accel.test_engine import LENGTH, PROMPT, ROPES, plain


def shapes_of(model: Any, drafter: Any, **options: Any) -> tuple[list[int], list[int]]:
    """The text, and how many tokens each forward was given."""
    traits_of(model)
    fed: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    settings = {"max_new_tokens": 4, "eos_token_id": None, "do_sample": False, "num_draft_tokens": 32} | options
    output = generate(model, PROMPT, drafter=drafter, **settings)
    handle.remove()
    assert isinstance(output, Tensor)
    return output[0].tolist(), fed


class Opening(Nothing):
    """Asks three things beside the prompt's last token, and nothing later."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, ...]] = []

    def begin(self, prompt: Any, references: Any) -> Draft:  # type: ignore[override]
        return Draft((1, 2, 3), (-1, 0, -1), (0.5,) * 3, num_probes=3)

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        assert logits is not None
        self.answers.append((len(draft), *logits.tensor().shape))


def test_a_prompt_is_read_but_for_its_last_token_where_the_drafter_asks_something_beside_that() -> None:
    model = tiny_model(seed=11)
    expected = plain(model, max_new_tokens=4)
    opening = Opening()
    assert shapes_of(model, Nothing) == (expected, [LENGTH, 1, 1, 1])
    assert shapes_of(model, lambda: opening) == (expected, [LENGTH - 1, 1 + 3, 1, 1, 1])
    assert opening.answers == [(3, 4, VOCABULARY), *[(0, 1, VOCABULARY)] * 3]
    assert shapes_of(model, Opening, prefill_chunk_size=16) == (expected, [16, 16, 7, 1 + 3, 1, 1, 1])
    assert shapes_of(model, Opening, num_draft_tokens=2) == (expected, [LENGTH - 1, 1, 1, 1, 1]), (
        "the budget drops them"
    )


def test_where_the_prompts_own_forward_is_promised_nothing_is_asked_beside_it() -> None:
    model = tiny_model(seed=11)
    assert TorchSequence(model, traits_of(model)).can_draft_at_prefill([5, 6])
    assert not TorchSequence(model, traits_of(model), fixed_rows=32).can_draft_at_prefill([5, 6]), "no bit of it may change"
    assert not TorchSequence(model, traits_of(model)).can_draft_at_prefill([5])
    longrope = tiny_model(rope_parameters=ROPES["dynamic"], max_position_embeddings=52)
    assert shapes_of(longrope, Opening)[1][0] == LENGTH
    assert shapes_of(tiny_model("mamba2"), Opening)[1][0] == LENGTH

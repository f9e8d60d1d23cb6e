"""BiTA by name: the bundled weights draft for SmolLM2, and nothing else accepts them."""

from __future__ import annotations

import pytest

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters import Bita, Blend
from antiphon.accel.engines.torch.bita_weights import BitaWeights, bita_weights_of
from antiphon.pipelines.models.drafters import SHIPPED, resolve_drafter

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def test_bita_is_a_drafter_by_name_for_smollm2_and_for_nothing_else(tiny: LanguageModel) -> None:
    learned = BitaWeights.load(SHIPPED)
    assert SHIPPED.stat().st_size < 1_000_000
    assert learned.model.startswith("smollm2")
    for factory, kind in (
        (resolve_drafter("bita"), Bita),
        (resolve_drafter("blend", bita="smollm2", window=(5, 3, 5)), Blend),
    ):
        assert factory != "auto"
        drafter = factory()
        assert isinstance(drafter, kind)
        assert bita_weights_of(drafter) is not None
    with pytest.raises(ValueError, match="The BiTA weights for 'smollm2"):
        tiny.generate("Who?", drafter=resolve_drafter("bita"))
    with pytest.raises(ValueError, match="There is no drafter named 'byta'"):
        resolve_drafter("byta")


@pytest.mark.exhaustive
def test_the_shipped_file_is_smollm2s_and_its_drafts_hold(smollm2: LanguageModel) -> None:
    question = [{"role": "user", "content": "Explain how rainbows form in simple terms."}]
    plain = smollm2.generate(question, max_new_tokens=28, drafter="nothing")
    drafted = smollm2.generate(question, max_new_tokens=28, drafter=resolve_drafter("bita"), num_draft_tokens=51)
    assert drafted.tokens == plain.tokens
    assert len(drafted.tokens) / drafted.steps.steps > 1.25

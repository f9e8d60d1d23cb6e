"""Scores of continuations equal plain forward passes for every model family, on both engines."""

from __future__ import annotations

import pytest

from antiphon.accel import PrefixCache
from antiphon.accel.engines.selection import EngineName
from tests.accel.test_score import OPENVINO, PROMPT, TEXTS, expect_plain, model_of
from tests.families.table import ALL_FAMILIES

pytestmark = pytest.mark.slow


USUAL = {"llama", "qwen3", "gemma3", "mixtral"}


@pytest.mark.parametrize(
    ("family", "engine"),
    [
        *(pytest.param(family, "torch") for family in ALL_FAMILIES),
        *(
            pytest.param(family, "openvino", marks=[OPENVINO, *([] if family in USUAL else [pytest.mark.exhaustive])])
            for family in ALL_FAMILIES
        ),
    ],
)
def test_scores_equal_plain_forward_passes(family: str, engine: EngineName) -> None:
    """The second prompt is longer than every sliding window; the third pass finds it in the prefix cache."""
    try:
        model = model_of(engine, family)
    except ValueError as refused:
        pytest.skip(str(refused))
    longest = (model.context_window or 1024) - 1 - max(map(len, TEXTS))
    for prompt in ("B", (PROMPT * 2)[:longest]):
        prefix = PrefixCache()
        for found in (model.score(prompt, TEXTS), *(model.score(prompt, TEXTS, prefix=prefix) for _ in range(2))):
            expect_plain(found, model, prompt)

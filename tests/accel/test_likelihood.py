"""Likelihood: the sum of what a plain forward gives each token, and nothing of the prompt."""

from __future__ import annotations

import pytest
import torch

from antiphon.accel.likelihood import log_probability
from antiphon.accel.testing.tiny import tiny_model


def test_it_is_the_sum_of_each_tokens_log_probability_after_those_before_it() -> None:
    model = tiny_model()
    output = [5, 9, 2, 7, 3]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([output])).logits[0].double()
    each = torch.log_softmax(logits, -1)
    expected = sum(float(each[at - 1, output[at]]) for at in range(2, 5))
    assert log_probability(model, output, 2) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("prompt", [0, 3, 4])
def test_without_a_prompt_or_an_output_there_is_nothing_to_weigh(prompt: int) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        log_probability(tiny_model(), [1, 2, 3], prompt)

"""Certificates: they hold for the output of any decoder, measure regret as defined, and find wrong tokens."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.certificate import certify
from tests.accel.adversarial_drafters import generate_with_trees
from tests.tiny import FAMILIES, PAD, VOCAB_SIZE, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
LENGTH = PROMPT.shape[1]
BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}


def decoded(model: Any, prompt: Tensor = PROMPT, **options: Any) -> Tensor:
    settings = {"max_new_tokens": 80, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD} | options
    output: Tensor = model.generate(prompt, **settings)
    return output


def regrets_by_hand(model: Any, tokens: Sequence[int], first: int) -> list[float]:
    """Compute regrets by their definition, one forward pass per token, in Python floats."""
    found = []
    for place in range(first, len(tokens)):
        logits = model(torch.tensor([tokens[:place]])).logits[0, -1].tolist()
        size = max(1.0, abs(max(logits)))
        ulp = 2.0 ** (math.floor(math.log2(size)) - BITS[model.dtype])
        found.append((max(logits) - logits[tokens[place]]) / ulp)
    return found


CASES = [*((family, torch.bfloat16) for family in FAMILIES), ("llama", torch.float16), ("llama", torch.float32)]


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_certificates_hold_for_plain_and_drafted_outputs(family: str, dtype: torch.dtype) -> None:
    model: Any = tiny_model(family)
    model.to(dtype)
    plain = decoded(model)
    text = plain[0].tolist()
    options: dict[str, Any] = {"max_new_tokens": 80, "do_sample": False, "eos_token_id": None}
    drafted = generate_with_trees(model, PROMPT, text, 1, **options)
    for output in (plain, drafted):
        certificate = certify(model, output, LENGTH)
        assert certificate.holds, certificate
        assert certificate.tokens == tuple(output[0, LENGTH:].tolist())
        assert len(certificate.regrets) == 80
        assert certificate.allowed == (64 if dtype is torch.float32 else 2)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BITS)
def test_a_regret_is_the_distance_from_the_best_logit_in_the_dtypes_own_spacing(dtype: torch.dtype) -> None:
    model: Any = tiny_model()
    model.to(dtype)
    tokens = torch.randint(0, VOCAB_SIZE, (LENGTH + 70,), generator=torch.Generator().manual_seed(1)).tolist()
    certificate = certify(model, torch.tensor([tokens]), LENGTH)
    expected = regrets_by_hand(model, tokens, LENGTH)
    noise = 40 if dtype is torch.float32 else 3
    assert max(expected) > 100
    torch.testing.assert_close(certificate.regrets, tuple(expected), atol=noise, rtol=0)


@pytest.mark.parametrize("place", [0, 17, 64, 79])
def test_a_token_that_the_model_did_not_choose_is_found(place: int) -> None:
    model = tiny_model()
    output = decoded(model)
    output[0, LENGTH + place] = (int(output[0, LENGTH + place]) + 1) % VOCAB_SIZE
    certificate = certify(model, output[:, : LENGTH + place + 1], LENGTH)
    assert not certificate.holds
    assert [at for at, regret in enumerate(certificate.regrets) if regret] == [place]

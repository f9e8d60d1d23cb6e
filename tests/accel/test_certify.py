"""Certificates: they hold for the output of any decoder, measure regret as defined, and find wrong tokens."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from antiphon.accel.certify import Certificate, certify
from antiphon.accel.generate import generate
from antiphon.accel.language_model import LanguageModel
from antiphon.accel.testing.drafters import RandomTreeDrafter
from antiphon.accel.testing.tiny import FAMILIES, PAD, VOCAB_SIZE, byte_tokenizer, tiny_model
from antiphon.accel.text.completion import Completion

pytestmark = pytest.mark.slow

PROMPT = torch.randint(1, 250, (1, 40), generator=torch.Generator().manual_seed(3))
LENGTH = PROMPT.shape[1]
BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}


def decoded(model: Any, prompt: Tensor = PROMPT, **options: Any) -> Tensor:
    settings = {"max_new_tokens": 80, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD} | options
    output = model.generate(prompt, **settings)
    assert isinstance(output, Tensor)
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
    drafted = generate(
        model, PROMPT, num_draft_tokens=32, drafter=lambda: RandomTreeDrafter(text, 1, VOCAB_SIZE), **options
    )
    assert isinstance(drafted, Tensor)
    for output in (plain, drafted):
        certificate = certify(model, output, LENGTH)
        assert certificate.holds, certificate
        assert certificate.tokens == tuple(output[0, LENGTH:].tolist())
        assert (certificate.prompt_tokens, len(certificate.regrets)) == (LENGTH, 80)
        assert certificate.allowed == (64 if dtype is torch.float32 else 2)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BITS)
def test_a_regret_is_the_distance_from_the_best_logit_in_the_dtypes_own_spacing(dtype: torch.dtype) -> None:
    model: Any = tiny_model()
    model.to(dtype)
    tokens = torch.randint(0, VOCAB_SIZE, (LENGTH + 70,), generator=torch.Generator().manual_seed(1)).tolist()
    certificate = certify(model, tokens, LENGTH)
    expected = regrets_by_hand(model, tokens, LENGTH)
    noise = 40 if dtype is torch.float32 else 3
    assert max(expected) > 100
    torch.testing.assert_close(certificate.regrets, tuple(expected), atol=noise, rtol=0)


@pytest.mark.parametrize("place", [0, 17, 64, 79])
def test_a_token_that_the_model_did_not_choose_is_found_and_named(place: int) -> None:
    model = tiny_model()
    output = decoded(model)
    wrong = (int(output[0, LENGTH + place]) + 1) % VOCAB_SIZE
    output[0, LENGTH + place] = wrong
    certificate = certify(model, output[:, : LENGTH + place + 1], LENGTH)
    assert not certificate.holds
    assert (certificate.index, certificate.position, certificate.token) == (place, LENGTH + place, wrong)
    assert certificate.share == 1 / (place + 1)
    assert f"does not hold: {place + 1} tokens in float32" in str(certificate)
    assert f"at token {place + 1} (id {wrong})" in str(certificate)


def test_a_certificate_depends_on_the_prompt() -> None:
    model = tiny_model()
    output = decoded(model)
    output[0, LENGTH // 2] += 1
    assert not certify(model, output, LENGTH).holds


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_is_masked(family: str) -> None:
    model = tiny_model(family)
    padded = torch.cat([torch.full((1, 7), PAD), PROMPT], dim=1)
    mask = (torch.arange(LENGTH + 7) >= 7).long()[None]
    output = decoded(model, padded, attention_mask=mask)
    assert certify(model, output, LENGTH + 7, attention_mask=mask).worst == 0
    if family != "mistral":  # Mistral's sliding window hides the padding even without a mask
        assert not certify(model, output, LENGTH + 7).holds


class Counting(LogitsProcessor):
    """A stateful processor: the tokens that it forbids depend on the number of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert scores.dtype == torch.float32
        self.calls.append(tuple(input_ids[0].tolist()))
        scores[:, len(self.calls) % VOCAB_SIZE] = -torch.inf
        return scores


def test_processors_are_called_as_in_decoding_and_a_forbidden_token_has_infinite_regret() -> None:
    model = tiny_model()
    theirs, mine = Counting(), Counting()
    output = decoded(model, logits_processor=LogitsProcessorList([theirs]))
    assert certify(model, output, LENGTH, logits_processor=LogitsProcessorList([mine])).worst == 0
    assert mine.calls == theirs.calls
    output[0, LENGTH + 4] = 5
    fresh = LogitsProcessorList([Counting()])
    certificate = certify(model, output[:, : LENGTH + 5], LENGTH, logits_processor=fresh)
    assert (certificate.worst, certificate.token) == (math.inf, 5)
    assert certificate.as_dict()["worst"] is certificate.as_dict()["regrets"][4] is None


def test_a_penalty_is_respected_and_its_absence_noticed() -> None:
    model = tiny_model()
    output = decoded(model, repetition_penalty=1.4)
    penalty = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.4)])
    assert certify(model, output, LENGTH, logits_processor=penalty).worst == 0
    assert not certify(model, output, LENGTH).holds


def test_if_rotary_frequencies_switch_once_each_part_is_certified_separately() -> None:
    rope = {"rope_type": "longrope", "long_factor": [4.0] * 8, "short_factor": [1.0] * 8, "rope_theta": 10000.0}
    model: Any = tiny_model(
        "phi3", rope_parameters=rope | {"original_max_position_embeddings": 64}, original_max_position_embeddings=64,
        max_position_embeddings=512,
    )  # fmt: skip
    output = decoded(model)
    assert certify(model, output, LENGTH).worst == 0
    with torch.no_grad():
        whole = model(output[:, :-1]).logits[0, LENGTH - 1 :].argmax(dim=-1)
    differing = (whole != output[0, LENGTH:]).nonzero().flatten().tolist()
    assert differing
    # A single forward pass has other logits for the tokens before rotary frequencies switch.
    assert max(differing) <= 64 - LENGTH


def test_if_rotary_frequencies_change_at_every_step_a_longer_output_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = tiny_model("llama", rope_parameters=rope, max_position_embeddings=64)
    output = decoded(model)
    assert certify(model, output[:, :64], LENGTH).worst == 0
    with pytest.raises(ValueError, match="after 64 tokens while its cache keeps the old ones"):
        certify(model, output, LENGTH)


@pytest.mark.parametrize(
    ("output", "length", "options", "complaint"),
    [
        (PROMPT, LENGTH, {}, "prompt_length is 40 and output has 40 tokens"),
        (PROMPT, 0, {}, "prompt_length is 0"),
        (PROMPT.expand(2, -1), 4, {}, r"the shape \(2, 40\); give one row"),
        ([1, 2, 999], 2, {}, "outside the model's vocabulary of 261"),
        (PROMPT, 4, {"attention_mask": torch.tensor([[1, 0, 1, 1]])}, "more than left padding"),
    ],
)
def test_what_cannot_be_certified_is_refused(output: Any, length: int, options: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        certify(tiny_model(), output, length, **options)


def test_a_model_in_training_mode_is_refused() -> None:
    model = tiny_model()
    model.train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        certify(model, PROMPT, 4)


def test_the_allowed_regret_has_a_default_and_can_be_set() -> None:
    certificate = Certificate((1, 2, 3, 4), (0.0, 2.0, 0.0, 1.0), 9, "bfloat16", 2.0)
    assert certificate.holds
    assert (certificate.worst, certificate.position, certificate.token, certificate.share) == (2.0, 10, 2, 0.5)
    assert str(certificate).startswith("The certificate holds: 4 tokens in bfloat16, worst regret 2 ulp of 2 allowed")
    output = decoded(tiny_model())
    output[0, -1] += 1
    assert certify(tiny_model(), output, LENGTH, ulps=1e9).holds


TEXT = "the passages that retrieval found"


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    return LanguageModel(tiny_model(), byte_tokenizer(), name="tiny")


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"stop": "e", "references": [TEXT]}])
def test_a_completion_is_certified_with_its_own_settings(
    language_model: LanguageModel, options: dict[str, Any]
) -> None:
    completion = language_model.generate(TEXT, max_new_tokens=30, **options)
    certificate = language_model.certify(TEXT, completion)
    assert certificate.worst == 0
    assert certificate.tokens == completion.tokens
    assert certificate.prompt_tokens == completion.usage.prompt_tokens


def test_token_ids_and_texts_can_be_certified(language_model: LanguageModel) -> None:
    completion = language_model.generate(TEXT, repetition_penalty=1.3, max_new_tokens=30)
    assert language_model.certify(TEXT, completion.tokens, repetition_penalty=1.3).holds
    assert not language_model.certify(TEXT, completion.tokens).holds
    # Bytes above 127 may be invalid UTF-8, which cannot be tokenized again.
    said = next(n for n in range(30) if completion.tokens[n] > 127)
    text = bytes(completion.tokens[:said]).decode() or "x"
    certificate = language_model.certify(TEXT, text, repetition_penalty=1.3)
    assert certificate.tokens == tuple(text.encode())
    assert certificate.holds == (said > 0)


def test_the_end_of_sequence_token_is_certified() -> None:
    ending = LanguageModel(tiny_model(), byte_tokenizer())
    end = ending.generate(TEXT, max_new_tokens=9).tokens[-1]
    ending.model.generation_config.eos_token_id = end
    completion = ending.generate(TEXT, max_new_tokens=60)
    assert completion.tokens[-1] == end
    assert ending.certify(TEXT, completion).worst == 0
    assert not ending.certify(TEXT, [*completion.tokens[:-1], end - 1]).holds


def test_a_sampled_completion_is_refused(language_model: LanguageModel) -> None:
    completion: Completion = language_model.generate(TEXT, temperature=0.8, seed=1, max_new_tokens=5)
    with pytest.raises(ValueError, match=r"was sampled, at temperature 0\.8"):
        language_model.certify(TEXT, completion)

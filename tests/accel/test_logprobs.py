"""Log-probabilities, penalties and logit bias, as OpenAI's API defines them."""

from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel, Origin
from tests.tiny import byte_tokenizer, tiny_model

PROMPT = "Bees live in colonies."
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 3, "top_k": 20}


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    return LanguageModel(tiny_model(), byte_tokenizer(), name="tiny")


def rows(language_model: LanguageModel, prompt: tuple[int, ...], emitted: tuple[int, ...]) -> Any:
    """Return the logits before each emitted token, from one plain forward pass."""
    with torch.no_grad():
        logits = language_model.model(torch.tensor([[*prompt, *emitted]])).logits
    return logits[0, len(prompt) - 1 : -1].float()


@pytest.mark.parametrize("how", [{}, SAMPLED, {"logit_bias": {120: 5.0}, "presence_penalty": 1.0}])
@pytest.mark.parametrize("drafter", ["blend", "nothing"])
def test_logprobs_equal_those_of_a_plain_forward_pass(
    language_model: LanguageModel, how: dict[str, Any], drafter: str
) -> None:
    stream = language_model.stream(PROMPT, references=[PROMPT], max_new_tokens=24, logprobs=2, drafter=drafter, **how)
    told = stream.to_end().completion
    plain = rows(language_model, language_model.tokenize(PROMPT).tokens, told.tokens).log_softmax(dim=-1)
    assert [each.token for each in told.logprobs] == list(told.tokens)
    own = [float(row[token]) for row, token in zip(plain, told.tokens, strict=True)]
    assert [each.logprob for each in told.logprobs] == pytest.approx(own, abs=1e-4)
    best = [[value for _, value in each.top] for each in told.logprobs]
    assert torch.tensor(best).allclose(plain.topk(2).values, atol=1e-4)
    assert [*stream.logprobs_from(20)] == [*told.logprobs[20:]]
    assert told.text == language_model.generate(PROMPT, max_new_tokens=24, **how).text, "asking changes nothing"


@pytest.mark.parametrize("drafter", ["blend", "nothing"])
def test_penalties_follow_their_definition(language_model: LanguageModel, drafter: str) -> None:
    how: Any = {"presence_penalty": 0.7, "frequency_penalty": 1.3, "logit_bias": {101: 2.0, 32: -3.0}}
    told = language_model.generate(PROMPT, references=[PROMPT], max_new_tokens=32, drafter=drafter, **how)
    plain = rows(language_model, language_model.tokenize(PROMPT).tokens, told.tokens)
    for place, row in enumerate(plain):
        counts = torch.bincount(torch.tensor(told.tokens[:place], dtype=torch.long), minlength=len(row))
        changed = row - 1.3 * counts - 0.7 * (counts > 0)
        changed[101] += 2.0
        changed[32] -= 3.0
        assert int(changed.argmax()) == told.tokens[place]


def test_logprobs_are_available_while_streaming(language_model: LanguageModel) -> None:
    stream = language_model.stream(PROMPT, max_new_tokens=32, ignore_eos=True)
    tokens, origins = list[int](), list[Origin]()
    for _ in stream:
        tokens += stream.tokens_from(len(tokens))
        origins += stream.origins_from(len(origins))
    whole = stream.completion
    assert tuple(tokens) == whole.tokens
    assert [(each.step, each.is_drafted) for each in origins] == [(e.step, e.is_drafted) for e in whole.origins]
    assert [each.start for each in origins] == [each.start for each in whole.origins]

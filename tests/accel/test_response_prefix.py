"""Response prefixes, and scores of continuations in one draft: on both engines equal to plain forward passes."""

from __future__ import annotations

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.continuation_scorer import ContinuationScorer
from antiphon.accel.drafting.draft import EMPTY, Accepted
from antiphon.accel.engines.numpy_logits import NumpyLogits
from antiphon.accel.remote.request_body import build_body
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.accel.text.parameters import Settings

PROMPT = "Bees dance in the hive. "
BEGINS = "Wax melts"
TEXTS = ("Wax melts.", "Wax is soft.", "Honey", "W")


@pytest.fixture(scope="module", params=["torch", "openvino"])
def tiny(request: pytest.FixtureRequest) -> LanguageModel:
    return LanguageModel(
        tiny_model(max_position_embeddings=512),
        byte_tokenizer(),
        engine=request.param,
        memory=2**23 if request.param == "openvino" else None,
    )


def _plain(tiny: LanguageModel, text: str, count: int) -> list[int]:
    """Return the greedy tokens after `PROMPT` + ``text``, from one plain forward pass of torch for each token."""
    read = list(tiny.tokenize(PROMPT + text).tokens)
    said: list[int] = []
    for _ in range(count):
        with torch.no_grad():
            said.append(int(tiny.model(torch.tensor([read + said])).logits[0, -1].argmax()))
    return said


@pytest.mark.parametrize("references", [(), ("Wax melts at noon.",), ("Wax is soft.",)])
def test_a_text_starts_with_the_response_prefix_and_continues_freely(
    tiny: LanguageModel, references: tuple[str, ...]
) -> None:
    begun = tiny.tokenizer.encode(BEGINS, add_special_tokens=False)
    said = tiny.generate(PROMPT, references=references, response_prefix=BEGINS, max_new_tokens=len(begun) + 8)
    assert list(said.tokens) == [*begun, *_plain(tiny, BEGINS, 8)]
    plain = tiny.generate(PROMPT, response_prefix=BEGINS, drafter="nothing", max_new_tokens=len(begun) + 8)
    assert plain.tokens == said.tokens


def test_a_sampled_text_starts_with_the_prefix_and_is_the_same_with_drafts(tiny: LanguageModel) -> None:
    options = {"response_prefix": BEGINS, "max_new_tokens": 24, "temperature": 1.0, "seed": 5}
    said = tiny.generate(PROMPT, references=["Wax melts."], **options)  # type: ignore[arg-type]
    assert said.text.startswith(BEGINS)
    assert said.text == tiny.generate(PROMPT, drafter="nothing", **options).text  # type: ignore[arg-type]


def test_a_prefix_longer_than_max_new_tokens_is_cut(tiny: LanguageModel) -> None:
    assert tiny.generate(PROMPT, response_prefix=BEGINS, max_new_tokens=3).text == BEGINS[:3]


def test_special_tokens_in_the_prefix_are_text(tiny: LanguageModel) -> None:
    end = str(tiny.tokenizer.eos_token)
    said = tiny.generate(PROMPT, response_prefix=f"A{end}B", max_new_tokens=len(end) + 4)
    assert tiny.tokenizer.eos_token_id not in said.tokens[: len(end) + 2]


def test_a_certificate_covers_the_text_after_the_prefix(tiny: LanguageModel) -> None:
    said = tiny.generate(PROMPT, response_prefix=BEGINS, max_new_tokens=24)
    assert tiny.certify(PROMPT, said).holds
    assert tiny.certify(PROMPT, said.tokens, response_prefix=BEGINS).holds
    assert not tiny.certify(PROMPT, said.tokens).holds


def test_the_prefix_is_drafted(tiny: LanguageModel) -> None:
    said = tiny.generate(PROMPT, response_prefix="Zwölf Boxkämpfer jagen Viktor quer", max_new_tokens=36)
    assert said.steps.steps < said.steps.tokens / 2


def test_all_texts_of_a_batch_start_with_the_prefix(tiny: LanguageModel) -> None:
    alone = [tiny.generate(prompt, response_prefix=BEGINS, max_new_tokens=16).text for prompt in (PROMPT, "Eggs. ")]
    both = tiny.generate_batch([PROMPT, "Eggs. "], response_prefix=BEGINS, max_new_tokens=16)
    assert [each.text for each in both] == alone


def test_continuation_scores_equal_plain_forward_passes(tiny: LanguageModel) -> None:
    encoded = [tiny.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    scorer = ContinuationScorer(encoded)
    assert scorer.num_rows < sum(map(len, encoded))
    prompt = "A prompt that nobody has read before. "
    stream = tiny.stream(
        prompt, drafter=lambda: scorer, num_draft_tokens=scorer.num_rows, max_new_tokens=scorer.num_rows + 2
    )
    next(stream)
    stream.close()
    read = list(tiny.tokenize(prompt).tokens)
    for tokens, found in zip(encoded, scorer.log_probabilities or [], strict=True):
        with torch.no_grad():
            scores = tiny.model(torch.tensor([read + tokens])).logits[0].log_softmax(-1)
        assert found == pytest.approx(
            sum(float(scores[len(read) - 1 + place, token]) for place, token in enumerate(tokens)), abs=1e-3
        )


def test_continuations_that_were_not_fully_verified_are_not_scored() -> None:
    scorer = ContinuationScorer([(1, 2, 3), (1, 4)])
    scores = NumpyLogits(torch.zeros(1, 9).numpy())
    scorer.observe(EMPTY, Accepted((), (1,)), scores)
    draft = scorer.begin((), ())
    assert draft is not None
    scorer.observe(draft, Accepted((), (1,)), NumpyLogits(torch.zeros(1 + len(draft.tokens), 9).numpy()))
    assert scorer.log_probabilities is None
    assert not scorer.propose((1,), 9)


def test_invalid_prefixes_are_refused() -> None:
    with pytest.raises(ValueError, match="response_prefix is 3"):
        Settings(response_prefix=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"response_prefix is 'So'.*json_schema"):
        Settings(response_prefix="So", json_schema={"type": "object"})
    with pytest.raises(ValueError, match=r"response_prefix is 'So', but only local models take one"):
        build_body("Hello", Settings(response_prefix="So"), ServedModel("m", "other", None))

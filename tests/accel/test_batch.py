"""Batches: each sequence equals the one of a single request, for any lengths, drafts and ends of the others."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.draft import ROOT, Drafter
from antiphon.accel.engines.protocol import SequenceInput
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.generate import generate
from tests.accel.adversarial_drafters import ProbingDrafter, RandomTreeDrafter, RecordingDrafter
from tests.families.table import tiny_model
from tests.table_part import part
from tests.tiny import FAMILIES, VOCAB_SIZE, byte_tokenizer

pytestmark = pytest.mark.slow

LENGTHS = (40, 7, 23)
SETTINGS: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 30, "pad_token_id": 0}


def texts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    random = torch.Generator().manual_seed(5)
    return [torch.randint(1, 250, (length,), generator=random).tolist() for length in lengths]


def padded(prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a batch as tokenizers make it, padded on the left."""
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
    }


@cache
def model_of(family: str) -> Any:
    return tiny_model(family, seed=11)


def alone(model: Any, prompt: Sequence[int], **options: Any) -> list[int]:
    """Return the tokens that transformers generates for this prompt alone."""
    output = model.generate(torch.tensor([list(prompt)]), **(SETTINGS | options))
    return list(output[0, len(prompt) :].tolist())


class Planted:
    """A drafter factory that returns the given drafters in turn: sequence n of a batch gets drafter n."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)

    def __call__(self) -> Drafter:
        return self.drafters.pop(0)


@pytest.mark.parametrize("family", part(FAMILIES, ("llama", "gemma3")))
def test_tokens_and_logits_of_a_batch_equal_plain_decoding_of_each_sequence(family: str) -> None:
    model, prompts = model_of(family), texts()
    batch = padded(prompts)
    width = batch["input_ids"].shape[1]
    expected = [alone(model, prompt) for prompt in prompts]
    whole = [[0] * (width - len(p)) + p + tail for p, tail in zip(prompts, expected, strict=True)]
    tree_drafters = [RandomTreeDrafter(text, seed, VOCAB_SIZE) for seed, text in enumerate(whole)]
    recorders = [
        RecordingDrafter(tree_drafters[0]),
        RecordingDrafter(ProbingDrafter(tree_drafters[1], whole[1], 1, VOCAB_SIZE)),
        RecordingDrafter(tree_drafters[2]),
    ]
    assert engine_of(model).batch_mode
    output: Any = generate(model, **batch, **SETTINGS, num_draft_tokens=32, drafter=Planted(recorders))
    assert output[:, width:].tolist() == expected
    for recorder, prompt, tail in zip(recorders, prompts, expected, strict=True):
        with torch.no_grad():
            truth = model(torch.tensor([prompt + tail])).logits[0].float()
        assert any(record.accepted.path for record in recorder.records)
        for record in recorder.records:
            rows = [ROOT, *record.accepted.path]
            start = record.length - (width - len(prompt)) - 1
            torch.testing.assert_close(
                record.logits[[row + 1 for row in rows]].float(), truth[start:][: len(rows)], atol=2e-4, rtol=1e-4
            )


@pytest.mark.parametrize("padding", part((0, 1, 33), (33,)))
@pytest.mark.parametrize("family", part(("llama", "gemma3", "gptj"), ("llama", "gptj")))
def test_a_padded_prompt_in_a_batch_is_read_as_if_alone(family: str, padding: int) -> None:
    model, (other, prompt, _) = model_of(family), texts()
    engine = engine_of(model)
    feeds = [
        SequenceInput(engine.sequence(), other),
        SequenceInput(engine.sequence(padding=padding), [0] * padding + prompt),
    ]
    assert engine.batch_mode
    with torch.no_grad():
        found = [logits.tensor()[-1] for logits in engine.forward(feeds)]
        truth = [model(torch.tensor([text])).logits[0, -1] for text in (other, prompt)]
    torch.testing.assert_close(found, truth, atol=2e-4, rtol=1e-4)


def test_each_sequence_drafts_from_its_own_references() -> None:
    model, prompts = model_of("llama"), texts()
    tails = [alone(model, prompt) for prompt in prompts]
    steps: list[Any] = []
    helped: Any = generate(
        model, **padded(prompts), **SETTINGS, references=[[tail] for tail in tails], on_step=steps.append
    )
    others: list[Any] = []
    swapped: Any = generate(
        model, **padded(prompts), **SETTINGS, references=[[tails[1]], [tails[2]], []], on_step=others.append
    )
    assert helped.tolist() == swapped.tolist()
    assert len(steps) < len(others)


class EveryThird(LogitsProcessor):
    """Forbids tokens depending on the number of calls, which differs if a batch calls it for all sequences at once."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls % 3 :: 3] = -torch.inf
        return scores


class LongEnough(StoppingCriteria):
    """Ends each sequence of a batch at a different length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Any:
        return input_ids.shape[1] >= self.lengths


def by_row(row: int, ids: Tensor) -> list[int]:
    return list(range(10 + 60 * row, 70 + 60 * row))


FEATURES: dict[str, Any] = {
    "a stateful processor": lambda: {"logits_processor": LogitsProcessorList([EveryThird()])},
    "tokens allowed by row": lambda: {"prefix_allowed_tokens_fn": by_row},
    "a penalty on the prompt's tokens": lambda: {"encoder_repetition_penalty": 1.5},
    "no n-gram of the prompt": lambda: {"encoder_no_repeat_ngram_size": 1},
    "a minimum length": lambda: {"min_new_tokens": 12, "eos_token_id": [7, 9, 31, 55, 120, 200]},
    "scores": lambda: {"output_scores": True, "output_logits": True, "return_dict_in_generate": True},
    "prefill in chunks": lambda: {"prefill_chunk_size": 6},
}


@pytest.mark.parametrize("name", FEATURES)
def test_batch_options_of_generate_give_the_same_output(name: str) -> None:
    model, batch = model_of("llama"), padded(texts())
    expected = model.generate(**batch, **(SETTINGS | FEATURES[name]()))
    output = generate(model, **batch, **(SETTINGS | FEATURES[name]()))
    if isinstance(output, GenerateDecoderOnlyOutput):
        torch.testing.assert_close(output.scores, expected.scores, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(output.logits, expected.logits, atol=2e-4, rtol=1e-4)
        output, expected = output.sequences, expected.sequences
    assert isinstance(output, Tensor)
    assert output.tolist() == expected.tolist()


def test_a_stopping_criterion_ends_each_sequence_separately() -> None:
    model, batch = model_of("llama"), padded(texts())
    criteria = StoppingCriteriaList([LongEnough([45, 52, 70])])
    output: Any = generate(model, **batch, **(SETTINGS | {"stopping_criteria": criteria, "pad_token_id": 251}))
    assert output.shape[1] == 70
    assert [row.index(251) if 251 in row else 70 for row in output.tolist()] == [45, 52, 70]


def test_sequences_of_one_prompt_are_sampled_independently_from_the_allowed_tokens() -> None:
    model, prompt = model_of("llama"), texts((20,))
    settings = SETTINGS | {"do_sample": True, "num_return_sequences": 4, "references": [[5, 6, 7]]}
    torch.manual_seed(2)
    output: Any = generate(model, torch.tensor(prompt), **settings, top_k=20)
    assert output.shape == (4, 50)
    assert len({tuple(row) for row in output.tolist()}) == 4
    for row in output.tolist():
        with torch.no_grad():
            best = model(torch.tensor([row])).logits[0].topk(20).indices
        assert all(row[place + 1] in best[place] for place in range(19, 49))
    torch.manual_seed(2)
    greedy: Any = generate(model, torch.tensor(prompt), **settings, top_k=1)
    assert greedy[:, 20:].tolist() == [alone(model, prompt[0])] * 4


@pytest.mark.parametrize("family", ["bloom", "mamba2"])
def test_a_model_that_cannot_share_forward_passes_decodes_sequences_one_by_one(family: str) -> None:
    model = model_of(family)
    prompts = texts((12, 12))
    assert not engine_of(model).batch_mode
    output: Any = generate(model, torch.tensor(prompts), **SETTINGS)
    assert output[:, 12:].tolist() == [alone(model, prompt) for prompt in prompts]


PROMPTS = ["The hive stands by the river.", "Bees", "What does a queen do in winter, when it is cold?", "Wax is yellow"]
REFERENCES = [["The hive stands still."], [], ["A queen does nothing in winter.", "It is cold."], ["Wax"]]


def language_model(family: str = "llama", **options: Any) -> LanguageModel:
    return LanguageModel(tiny_model(family, seed=11), byte_tokenizer(), **options)


@pytest.mark.parametrize("batch_size", part((1, 2, 8), (2,)))
@pytest.mark.parametrize(
    "parameters",
    [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}, {"stop": ["e", "a "]}, {"drafter": "nothing"}],
    ids=["greedy", "sampled", "stops", "plain"],
)
def test_every_completion_equals_the_one_of_a_single_request(parameters: Any, batch_size: int) -> None:
    model = language_model(
        num_draft_tokens=32, recycling=False
    )  # so that the drafts of a prompt do not depend on the prompts before it
    alone = [
        model.generate(prompt, references=own, max_new_tokens=24, **parameters)
        for prompt, own in zip(PROMPTS, REFERENCES, strict=True)
    ]
    together = model.generate_batch(
        PROMPTS, references=REFERENCES, batch_size=batch_size, max_new_tokens=24, **parameters
    )
    for mine, other in zip(together, alone, strict=True):
        assert (mine.text, mine.tokens, mine.finish_reason) == (other.text, other.tokens, other.finish_reason)
        assert mine.usage == other.usage
        assert mine.steps.steps == other.steps.steps


def test_seeds_may_differ_from_prompt_to_prompt() -> None:
    model = language_model()
    said = model.generate_batch(["Bees"] * 3, seeds=[1, 2, 1], temperature=1.0, max_new_tokens=16)
    assert said[0].text == said[2].text != said[1].text
    assert said[1].text == model.generate("Bees", seed=2, temperature=1.0, max_new_tokens=16).text


def test_a_batch_takes_messages_and_an_empty_batch_gives_no_completions() -> None:
    model = language_model()
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}>"
    question = [{"role": "user", "content": "Where are the bees?"}]
    (answer,) = model.generate_batch([question], max_new_tokens=9)
    assert answer.text == model.generate(question, max_new_tokens=9).text
    assert model.generate_batch([]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": [["one"]]}, "The number of references is 1; it must be 4, one for each prompt"),
        ({"seeds": [1, 2]}, "The number of seeds is 2; it must be 4, one for each prompt"),
        ({"batch_size": 0}, "batch_size is 0; it must be 1 or more"),
        ({"top_p": 2.0}, "top_p is 2.0"),
    ],
)
def test_wrong_numbers_of_references_or_seeds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        language_model().generate_batch(PROMPTS, **options)

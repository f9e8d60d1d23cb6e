"""LLMA's published setting, reproduced to two decimals.

The recorded texts lack the white space before and the numbers inside the authors' answers, and the recorded tokenizer
merges runs of spaces first, where the original merges them last. Both are restored here, so that all tokens are equal.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from antiphon.accel.decoding.stats import Summary, summarize
from antiphon.accel.drafting.draft import Draft, Tokens
from antiphon.accel.drafting.drafters import Blend, Copying
from antiphon.pipelines.benchmark.samples import RecordedSample, load_samples
from benchmarks.replay import Recording, replay_samples, replay_steps, tokenize_sample

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

DATA = Path(__file__).parents[3] / "shared" / "data"
LONGEST_REFERENCE = 768
AFTER_A_LINE_BREAK = ("llma-rag-045", "llma-rag-098")

# n, k: steps, steps with a copy, copied tokens accepted (each per answer), tokens per step
GOLDEN = {
    (1, 4): (44.17, 38.66, 67.06, 2.52),
    (1, 8): (37.62, 32.11, 73.61, 2.96),
    (1, 12): (35.22, 29.71, 76.01, 3.16),
    (1, 15): (34.36, 28.85, 76.87, 3.24),
    (1, 18): (33.76, 28.25, 77.47, 3.29),
    (2, 4): (48.60, 27.59, 62.63, 2.29),
    (2, 8): (42.26, 21.25, 68.97, 2.63),
    (2, 12): (40.08, 19.07, 71.15, 2.78),
    (2, 15): (39.21, 18.20, 72.02, 2.84),
    (2, 18): (38.67, 17.66, 72.56, 2.88),
    (3, 4): (54.91, 22.05, 56.32, 2.03),
    (3, 8): (49.13, 16.27, 62.10, 2.26),
    (3, 12): (47.11, 14.25, 64.12, 2.36),
    (3, 15): (46.27, 13.41, 64.96, 2.40),
    (3, 18): (45.64, 12.78, 65.59, 2.44),
}


class OriginalTokenizer:
    """The original LLaMA tokenizer: it merges runs of spaces last and adds a space before every text."""

    eos_token_id = 2

    def __init__(self, path: Path) -> None:
        pieces: Any = json.loads(path.read_text(encoding="utf-8"))
        merges = pieces["model"]["merges"]
        pieces["model"]["merges"] = sorted(merges, key=lambda merge: not "".join(merge).strip("▁"))
        self._tokenizer = Tokenizer.from_str(json.dumps(pieces))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer.encode("▁" + text, add_special_tokens=add_special_tokens).ids
        return ids


def samples_of(name: str, task: str | None = None) -> list[RecordedSample]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{name} is not present")
    return load_samples(path, task=task)


def recordings_of(samples: list[RecordedSample]) -> list[Recording]:
    tokenizer = OriginalTokenizer(DATA / "llama_tokenizer" / "tokenizer.json")
    recordings = [tokenize_sample(sample, tokenizer) for sample in samples]
    return [
        replace(each, references=tuple(reference[:LONGEST_REFERENCE] for reference in each.references))
        for each in recordings
    ]


@cache
def rag() -> list[Recording]:
    samples = samples_of("llma_rag.jsonl")
    leads = [" \n" if sample.id in AFTER_A_LINE_BREAK else " " for sample in samples]
    return recordings_of(
        [replace(sample, response=lead + sample.response) for lead, sample in zip(leads, samples, strict=True)]
    )


class CountingCopying(Copying):
    """Copying as in the authors' code: a match at the end of a reference counts, and the step is then a plain one.

    It counts the steps with a match.
    """

    def __init__(self, n: int, k: int) -> None:
        super().__init__(n, k, max_n=5)
        self.count = 0

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        super().begin(prompt, ())
        for reference in references:
            self._index.extend(reference)
            self._index._positions[self._index.tokens[-2]].append(len(self._index.tokens) - 1)
            self._index.close()

    def propose(self, context: Tokens, budget: int) -> Draft:
        tail = context[max(self._start, len(context) - self.max_n) :]
        self.count += len(self._index.find_matches(tail, self.max_n)) >= self.n
        return super().propose(context, budget)


def summary_of(recordings: list[Recording], n: int, k: int) -> tuple[Summary, int]:
    """Return the summary of all answers and the number of steps with a match.

    Args:
        recordings: the recorded answers.
        n: minimum length of a match.
        k: number of copied tokens.
    """
    drafters = [CountingCopying(n, k) for _ in recordings]
    runs = [
        replay_steps(each, drafter, num_draft_tokens=64) for each, drafter in zip(recordings, drafters, strict=True)
    ]
    return summarize(chain.from_iterable(runs)), sum(drafter.count for drafter in drafters)


@pytest.mark.parametrize(("n", "k"), GOLDEN)
def test_copying_takes_the_steps_of_llma(n: int, k: int) -> None:
    summary, triggers = summary_of(rag(), n, k)
    counted = (summary.steps / 100, triggers / 100, summary.accepted / 100, round(summary.tokens_per_step, 2))
    assert counted == GOLDEN[n, k]


@pytest.mark.parametrize(("name", "minimum"), [("llma_rag.jsonl", 4.3), ("spec_bench_even.jsonl", 2.4)])
def test_the_default_drafter_reaches_its_tokens_per_step_on_retrieved_passages(name: str, minimum: float) -> None:
    samples = samples_of(name, task="rag")
    tokenizer: Any = AutoTokenizer.from_pretrained(DATA / "llama_tokenizer")
    summary = replay_samples(samples, tokenizer, Blend, num_draft_tokens=32)
    assert summary.tokens_per_step >= minimum
    assert summary.rows_per_step <= 32

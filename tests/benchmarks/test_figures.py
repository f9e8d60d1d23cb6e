"""The arithmetic of the benchmarks' figures, with numbers that can be computed by hand; the page is up to date."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel.drafting.drafters import DRAFTERS
from antiphon.pipelines.benchmark.samples import RecordedSample
from antiphon.retrieval import HashEmbedder, Passage
from benchmarks.answers import AnswerTrace, SpanQuestion, answer_figures
from benchmarks.own_questions import AskedQuestion, question_figures
from benchmarks.page import COMMAND, read_results, render_page
from benchmarks.replay import replay_steps, tokenize_sample
from benchmarks.retrieval import measure_retrieval, reciprocal_rank_fusion
from benchmarks.vllm.measure import figures_with_ratios, measure_vllm
from benchmarks.vllm.worker import Decoded, EngineAnswer
from tests.pipelines.recorded import SAMPLES
from tests.tiny import byte_tokenizer

TOKENIZER: Any = byte_tokenizer()
EGGS = SpanQuestion("bees", "How many eggs?", "a.md", ("two thousand eggs",))
NOBODY = SpanQuestion("bees", "Who made it?", None, ())


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_steps_of_a_replay_spell_the_answer(name: str) -> None:
    recording = tokenize_sample(SAMPLES[0], TOKENIZER)
    steps = list(replay_steps(recording, DRAFTERS[name](), num_draft_tokens=8))
    assert sum((step.tokens for step in steps), ()) == recording.answer
    assert (steps[0].drafted, len(steps[0].tokens)) == (0, 1), "the first step ends the prefill"
    assert all(step.drafted <= 8 and len(step.tokens) <= step.accepted + 1 for step in steps)
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["stop"]


class ScriptedEngine:
    """An engine of vLLM that takes a second for ``pace`` tokens."""

    def __init__(self, name: str, pace: float) -> None:
        self.name, self.pace = name, pace

    def decode(self, jobs: Sequence[Mapping[str, Any]], limit: int) -> Decoded:
        answers = [EngineAnswer(list(range(limit)), limit // 2, 5, 0.1) for _ in jobs]
        return Decoded(answers, 2.0, limit * len(jobs) / self.pace, limit * len(jobs))


def measured_vllm(**paces: float) -> list[Any]:
    jobs = [{"prompt": [number, 3], "sources": {"references": [f"{number}"]}} for number in range(3)]
    engines = [ScriptedEngine(name.replace("_", "-"), pace) for name, pace in paces.items()]
    return measure_vllm(engines, jobs, batches=[1], limit=6, least=2)


def test_ratios_of_vllm_are_of_the_paces_without_prompts_and_of_the_better_ngram() -> None:
    figures = measured_vllm(plain=10, ngram_5=12, ngram_8=16, antiphon=24)
    figures[1].decoded.answers[0].tokens[2] = 99
    plain, ngram, _, ours = figures_with_ratios(figures)
    assert (plain["x_plain"], ours["x_plain"], ours["x_ngram"], ours["x_suffix"]) == (1.0, 2.4, 1.5, None)
    assert (ours["tokens_per_step"], ours["drafted"], ours["accepted"], ours["x_plain_whole"]) == (2.0, 5.0, 3.0, 1.0)
    assert (ngram["identical"], ours["identical"]) == (0.5, 1.0)


def test_an_answer_is_right_with_70_percent_of_the_words_or_with_all_phrases_in_whole_words() -> None:
    asked = SpanQuestion("bees", "?", "a", ("one two three four five six seven eight nine ten",))
    assert asked.is_answered_by("ten nine eight seven six five FOUR")
    assert not asked.is_answered_by("ten nine eight seven six five")
    asked = SpanQuestion("bees", "?", "a", ("ten eggs on 19 January",), ("19 Jan|19 January", "not `thread safe`"))
    assert asked.is_answered_by("On 19\nJanuary it is *not* thread safe.")
    assert not asked.is_answered_by("On 119 January it is *not* thread safe.")
    assert not asked.is_answered_by("On 19 January it is thread safe.")


@pytest.mark.parametrize(
    ("cut", "rank", "quotable", "text", "lost"),
    [
        (False, 1, 1, "Two thousand eggs.", ""),
        (True, None, None, "No.", "chunking"),
        (False, None, None, "No.", "retrieval"),
        (False, 4, 4, "No.", "retrieval"),
        (False, 2, None, "No.", "prompt"),
        (False, 2, 2, "No.", "reader"),
    ],
)
def test_a_lost_answer_has_one_stage(cut: bool, rank: int | None, quotable: int | None, text: str, lost: str) -> None:
    assert AnswerTrace(EGGS, cut, rank, quotable, 3, text).lost_at == lost


def test_answerable_and_other_questions_are_counted_apart() -> None:
    right = AnswerTrace(EGGS, False, 1, 1, 3, "two thousand eggs")
    declined = AnswerTrace(EGGS, False, 4, 4, 3, "The passages do not say.")
    refused = AnswerTrace(NOBODY, False, None, None, 3, "The passages do not say.")
    row, every = answer_figures([right, declined, refused])
    assert row | {"corpus": "all"} == every
    assert (row["answerable"], row["unanswerable"], row["recall@3"], row["recall@5"]) == (2, 1, 0.5, 1.0)
    assert (row["right"], row["wrongly_declined"], row["declined"], row["lost_retrieval"]) == (0.5, 0.5, 1.0, 1)
    asked = AskedQuestion("bees", (), "?", ("x",), "right", True, "x", "?", ("a.md",), ("x",), 1, 0.5, 2.0)
    wrong = replace(asked, verdict="declined", is_found=False)
    other = replace(asked, expected=(), verdict="declined")
    row = question_figures("bees", [asked, wrong, other, replace(other, verdict="answered")])
    assert (row["right"], row["wrong"], row["declined"], row["recall@5"]) == (0.5, 0, 0.5, 0.5)
    assert (row["unanswerable_declined"], row["seconds"]) == (0.5, 2.0)


def test_figures_of_searches_are_those_of_the_definitions() -> None:
    texts = {"alpha": ("alpha beta", "no word of it"), "gamma": ("gamma delta",)}
    samples = [RecordedSample(query, "rag", query, references, "", "") for query, references in texts.items()]
    words = next(finding for finding in measure_retrieval(samples, HashEmbedder()) if finding.method == "words (BM25)")
    assert words.recall == pytest.approx((1 / 2 + 1) / 2)
    assert words.mrr == 1
    assert words.ndcg == pytest.approx((1 / (1 + 1 / log2(3)) + 1) / 2)


def test_reciprocal_ranks_are_summed_independently_of_scores() -> None:
    dense = [Passage(name, name, "source", 0, 1, score) for name, score in (("a", 3.0), ("b", 2.0))]
    lexical = [Passage(name, name, "source", 0, 1, score) for name, score in (("b", 0.1), ("c", 0.05))]
    found = [(passage.id, passage.score) for passage in reciprocal_rank_fusion(dense, lexical)]
    assert found == [("b", 1 / 12 + 1 / 11), ("a", 1 / 11), ("c", 1 / 12)]


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_the_docs_is_up_to_date() -> None:
    results = read_results(sorted((DOCS / "results").glob("*.jsonl")))
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert page == render_page(results), f"out of date; run: {COMMAND}"
    assert {result["kind"] for result in results} >= {"replay"}

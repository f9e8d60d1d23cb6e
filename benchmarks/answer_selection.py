"""What each signal adds to the selection of quoted lines and to refusals, on corpora that chose no threshold.

python -m benchmarks.answer_selection FOLDER...

Each folder is one of `python -m benchmarks.answers`. Lines are ranked by a weighted sum of signals; it is a refusal if
the best sum is below a threshold. For each corpus the threshold is chosen on the other corpora: it maximises the share
of right answers plus half the share of correct refusals, while at most `MAX_DECLINED` of the answerable questions are
declined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from antiphon.pipelines.answer_lines import CandidateLine, answer_lines
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson
from antiphon.pipelines.fitted_prompt import FittedPrompt, PromptBuilder
from antiphon.pipelines.passage_selection import candidate_lines, known_share
from antiphon.pipelines.prompt import REFUSAL, heading_of, reader_prompt
from antiphon.pipelines.relevance import bundled_relevance
from antiphon.pipelines.rendering.tables import result_table
from antiphon.pipelines.request_plan import MAX_NEW_TOKENS, line_relevance
from antiphon.pipelines.selection_rules import RULES
from benchmarks.answers import SpanQuestion, corpora_of, index_corpus, load_span_questions
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel
    from antiphon.accel.text.messages import PromptInput
    from antiphon.retrieval import MiniLMEmbedder, Retriever

MAX_LINES = 12
"""Number of most relevant lines of a question whose signals are measured."""

SCORED_TOKENS = 8
"""First tokens of a line whose log-probability is summed."""

MIN_REFUSAL = -10.0
"""Less likely refusals count as equally unlikely, in nats."""

MAX_DECLINED = 0.06
"""Maximum share of answerable questions that are declined when a threshold is chosen."""

VARIANTS: dict[str, dict[str, float]] = {
    "encoder of lines": {"line": 1.0},
    "cross-encoder": {"cross": 1.0},
    "both encoders": {"encoders": 1.0},
    "+ known words": {"encoders": 1.0, "known": RULES.known_weight},
    "+ similarity": {"encoders": 1.0, "similarity": 4.0},
    "+ language model": {"encoders": 1.0, "model": 0.4},
    "all": {"encoders": 1.0, "known": RULES.known_weight, "similarity": 4.0, "model": 0.4},
}
"""The weights of the signals in each variant. "encoders" includes the penalties of passages."""

ANSWERS = {
    "signals": "signals",
    "corpus": "corpus",
    "right": "right",
    "wrongly_declined": "wrongly\ndeclined",
    "declined": "unanswerable\ndeclined",
    "precision": "quoted lines\nof the answer",
}

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class MeasuredQuestion:
    """A question with its most relevant lines.

    Attributes:
        question: The question.
        prompts: One prompt for each passage.
        lines: The lines.
        signals: The signals of each line.
    """

    question: SpanQuestion
    prompts: tuple[FittedPrompt, ...]
    lines: tuple[CandidateLine, ...]
    signals: tuple[Mapping[str, float], ...]

    def scores(self, weights: Mapping[str, float]) -> list[float]:
        """Return the weighted sum of the signals of each line."""
        return [sum(weight * each[name] for name, weight in weights.items()) for each in self.signals]

    def best_score(self, weights: Mapping[str, float]) -> float:
        """Return the highest score, which decides about a refusal."""
        return max(self.scores(weights), default=-1e9)

    def quoted(self, weights: Mapping[str, float]) -> list[str]:
        """Return the lines of the answer."""
        ranked = sorted(zip(self.scores(weights), self.lines, strict=True), key=lambda pair: -pair[0])
        if not ranked:
            return []
        (best_score, best), *others = ranked
        further = (line for score, line in others if score >= best_score - RULES.max_gap)
        found = answer_lines(best, further, self.prompts, max_further=RULES.max_further)
        return [line.quote.sentence for line in found]


def measure(folders: Sequence[Path], language_model: LanguageModel | None) -> Iterator[MeasuredQuestion]:
    """Yield all questions with the signals of their lines.

    Args:
        folders: Folders with corpora and questions.
        language_model: The model whose log-probabilities are a signal; None leaves that signal out.
    """
    from antiphon.retrieval import MiniLMEmbedder

    embedder = MiniLMEmbedder()
    for folder in folders:
        questions = load_span_questions(folder)
        for corpus in corpora_of(questions):
            with TemporaryDirectory() as temporary:
                retriever, _ = index_corpus(folder / corpus, Path(temporary) / "index", "minilm")
                for question in (one for one in questions if one.corpus == corpus):
                    yield _measure(question, retriever, embedder, language_model)


def _measure(
    question: SpanQuestion, retriever: Retriever, embedder: MiniLMEmbedder, language_model: LanguageModel | None
) -> MeasuredQuestion:
    from antiphon.pipelines.extractive_model import ExtractiveModel

    text, passages = question.question, retriever.search(question.question, 5)
    builder = PromptBuilder(language_model or ExtractiveModel(), reader_prompt, text, text, MAX_NEW_TOKENS)
    prompts = tuple(builder.build((passage,)) for passage in passages)
    lines = tuple(candidate_lines(prompts, line_relevance(text, text, passages))[:MAX_LINES])
    pairs = [(prompts[line.prompt_index].passages[0], line.quote.sentence) for line in lines]
    line_scores, cross_scores = (relevance.to(text)(pairs) for relevance in bundled_relevance())
    texts = [f"{heading_of(passage)}\n{sentence}" for passage, sentence in pairs]
    cosines = embedder.embed_documents(texts) @ embedder.embed_queries([text])[0] if texts else []
    model_scores = [0.0] * len(lines) if language_model is None else _model_scores(language_model, prompts, lines)
    known = known_share(text, passages)
    columns = zip(lines, line_scores, cross_scores, cosines, model_scores, strict=True)
    signals = tuple(
        {
            "line": first,
            "cross": second,
            "encoders": line.relevance,
            "similarity": float(cosine),
            "model": model,
            "known": known,
        }
        for line, first, second, cosine, model in columns
    )
    return MeasuredQuestion(question, prompts, lines, signals)


def _model_scores(
    language_model: LanguageModel, prompts: Sequence[FittedPrompt], lines: Sequence[CandidateLine]
) -> list[float]:
    """Return the log-probability of each line less that of a refusal, in nats."""
    indices = sorted({line.prompt_index for line in lines})
    texts = [[*(line.text for line in lines if line.prompt_index == index), REFUSAL] for index in indices]
    found = [
        log_probabilities(language_model, prompts[at].tokenized, own) for at, own in zip(indices, texts, strict=True)
    ]
    scores = {
        (index, text): value - max(values[-1], MIN_REFUSAL)
        for index, own, values in zip(indices, texts, found, strict=True)
        for text, value in zip(own, values, strict=True)
    }
    return [scores[line.prompt_index, line.text] for line in lines]


@torch.no_grad()
def log_probabilities(language_model: LanguageModel, prompt: PromptInput, texts: Sequence[str]) -> list[float]:
    """Return the log-probability of the first tokens of each text after a prompt, in nats."""
    model, encode = language_model.model, language_model.tokenizer.encode
    *prefix, last = language_model.tokenize(prompt).tokens
    cache = model(torch.tensor([prefix], device=model.device), use_cache=True).past_key_values
    scores = []
    for text in texts:
        tokens = encode(text, add_special_tokens=False)[:SCORED_TOKENS]
        ids = torch.tensor([[last, *tokens]], device=model.device)
        logits = model(ids[:, :-1], past_key_values=deepcopy(cache)).logits[0].float()
        scores.append(float(logits.log_softmax(-1).gather(1, ids[0, 1:, None]).sum()))
    return scores


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a variant for a question, before its threshold is chosen.

    Attributes:
        corpus: Corpus of the question.
        is_answerable: Whether the corpus has an answer.
        score: The score that is compared with the threshold.
        is_right: Whether the quoted lines answer.
        precision: Share of the quoted lines that belong to the answer.
    """

    corpus: str
    is_answerable: bool
    score: float
    is_right: bool
    precision: float

    @classmethod
    def of(cls, measured: MeasuredQuestion, weights: Mapping[str, float]) -> Outcome:
        """Return the outcome of a question."""
        question, quoted = measured.question, measured.quoted(weights)
        belonging = sum(belongs(question, line) for line in quoted)
        return cls(
            question.corpus,
            question.is_answerable,
            measured.best_score(weights),
            question.is_answerable and question.is_answered_by("\n".join(quoted)),
            belonging / len(quoted) if quoted else 0.0,
        )


def belongs(question: SpanQuestion, line: str) -> bool:
    """Return whether a quoted line belongs to the answer: half of its words are in an expected span, or a phrase is."""
    words = set(_WORD.findall(line.lower()))
    in_span = (len(words & set(_WORD.findall(span.lower()))) >= len(words) / 2 for span in question.spans)
    phrases = (one for phrase in question.phrases for one in phrase.split("|"))
    return any(in_span) or any(phrase.lower() in line.lower() for phrase in phrases)


def choose_threshold(outcomes: Sequence[Outcome]) -> float:
    """Return the threshold that maximises right answers and half the correct refusals, see the module."""
    answerable = [each for each in outcomes if each.is_answerable]
    others = [each for each in outcomes if not each.is_answerable]

    def value(threshold: float) -> tuple[bool, float]:
        right = _share([each.is_right and each.score >= threshold for each in answerable])
        declined = _share([each.score < threshold for each in answerable])
        return declined <= MAX_DECLINED, right + _share([each.score < threshold for each in others]) / 2

    return max(sorted({each.score for each in outcomes}), key=value)


def held_out_rows(name: str, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the figures of each corpus with the threshold of the other corpora, and those of all corpora."""
    corpora = list(dict.fromkeys(each.corpus for each in outcomes))
    decided = []
    for corpus in corpora:
        threshold = choose_threshold([each for each in outcomes if each.corpus != corpus])
        decided += [(each, each.score >= threshold) for each in outcomes if each.corpus == corpus]
    groups = {corpus: [pair for pair in decided if pair[0].corpus == corpus] for corpus in corpora} | {"all": decided}
    return [{"signals": name, "corpus": corpus, **_figures(pairs)} for corpus, pairs in groups.items()]


def _figures(decided: Sequence[tuple[Outcome, bool]]) -> dict[str, float]:
    answerable = [(each, is_answered) for each, is_answered in decided if each.is_answerable]
    precisions = [each.precision for each, is_answered in answerable if is_answered]
    return {
        "right": _share([each.is_right and is_answered for each, is_answered in answerable]),
        "wrongly_declined": _share([not is_answered for _, is_answered in answerable]),
        "declined": _share([not is_answered for each, is_answered in decided if not each.is_answerable]),
        "precision": round(sum(precisions) / len(precisions), 4) if precisions else 0.0,
    }


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def answer_selection(
    folders: Annotated[list[Path], typer.Argument(help="Folders of corpora, see `python -m benchmarks.answers`.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Model whose log-probability is a signal, or none.")] = (
        "reader"
    ),
    corpora: Annotated[bool, typer.Option("--corpora", help="Show each corpus, not only all of them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the signals that select quoted lines, on held-out corpora."""
    from antiphon.pipelines.cli.preparation import load_language_model

    console.quiet_libraries()
    language_model = None if model == "none" else load_language_model(model, engine="auto")
    measured = []
    with console.progress_bars() as bar:
        for each in measure(folders, language_model):
            measured.append(each)
            bar("Measuring", len(measured), sum(len(load_span_questions(folder)) for folder in folders))
    used = {name: weights for name, weights in VARIANTS.items() if language_model is not None or "model" not in weights}
    outcomes = {name: [Outcome.of(each, weights) for each in measured] for name, weights in used.items()}
    rows = [row for name, own in outcomes.items() for row in held_out_rows(name, own)]
    threshold = choose_threshold(outcomes["+ known words"])
    if as_json:
        typer.echo(json.dumps({"kind": "selection", "rows": rows, "min_score": threshold}))
        return
    shown = [row for row in rows if corpora or row["corpus"] == "all"]
    console.out.print(result_table(f"{len(measured)} questions, thresholds of other corpora", ANSWERS, shown))
    console.out.print(f"min_score of all corpora: {threshold:.2f} (in use: {RULES.min_score})")


app = program(answer_selection)

if __name__ == "__main__":
    app()

"""Passage selection: the answer starts with the best line, and its passage comes first."""

from __future__ import annotations

import json
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.text.messages import CountedPrompt
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.passage_selection import (
    MAX_LINES,
    MAX_RELEVANCE_GAP,
    SCORED_TOKENS,
    LineScorers,
    candidate_lines,
    line_score,
    select_passages,
    shows_answer,
)
from antiphon.pipelines.prompt import REFUSAL, reader_prompt
from antiphon.pipelines.quotes import quotable_lines, quotes_of
from antiphon.pipelines.relevance import LineScorer, relevance_scorer
from antiphon.pipelines.request_plan import MAX_NEW_TOKENS
from antiphon.retrieval import Retriever
from tests.pipelines.passage_prompts import HONEY, WAX, prompts_of, scorers_of, select
from tests.pipelines.scripted import Scripted

QUESTION = "How many eggs does a queen lay?"


def prompts_read(model: Scripted) -> list[object]:
    """Return the prompts whose lines the model has scored."""
    return [each.content if isinstance(each, CountedPrompt) else each for each in model.read]


def test_of_equally_likely_lines_the_most_relevant_one_starts_the_answer() -> None:
    prompts = prompts_of(WAX, HONEY)
    selected = select(prompts, {WAX: -1.0, HONEY: -1.0}, Wax=0.6, Honey=2.8)
    assert (selected.fitted_prompt, selected.options) == (prompts[1], {"response_prefix": HONEY})


def test_of_equally_relevant_lines_the_likelier_one_starts_the_answer() -> None:
    prompts = prompts_of(f"{WAX}\n{HONEY}", "[1] Bees fly.")
    selected = select(prompts, {WAX: -0.1, HONEY: -6.0, "[1] Bees fly.": -8.0})
    assert (selected.fitted_prompt, selected.options) == (prompts[0], {"response_prefix": WAX})


@pytest.mark.parametrize(("stop", "stops"), [((), ["\n"]), ("!", ["!", "\n"]), (["!"], ["!", "\n"])])
@pytest.mark.parametrize(("fit", "similar", "likely"), [(0.2, 0.1, -1.0), (0.2, 0.5, -8.0), (-6.0, 0.5, -1.0)])
def test_if_no_line_is_good_enough_the_answer_is_a_refusal_and_nothing_else(
    stop: Any, stops: list[str], fit: float, similar: float, likely: float
) -> None:
    prompts = prompts_of(WAX, HONEY)
    model = Scripted({WAX: likely, HONEY: likely, REFUSAL: -0.01 if likely < -1 else -4.0})
    selected = select_passages(model, prompts, scorers_of({"Wax": fit - 0.1, "Honey": fit}, similar), stop=stop)
    assert (selected.fitted_prompt, selected.options) == (prompts[1], {"response_prefix": REFUSAL, "stop": stops})


def test_a_likelier_refusal_lowers_the_score() -> None:
    assert line_score(0.5, -1.0, -8.0) > line_score(0.5, -1.0, -0.1)
    assert line_score(0.5, -1.0, -8.0) > line_score(0.4, -1.0, -8.0) > line_score(0.4, -3.0, -8.0)
    assert line_score(0.5, -1.0, -99.0) == line_score(0.5, -1.0, -10.0)


@pytest.mark.parametrize(
    ("similarity", "likely", "refusal", "is_answer"),
    [
        (0.4, -1.0, -3.0, True),
        (0.3, -1.0, -3.0, False),  # not similar
        (0.4, -3.0, -3.0, False),  # not likely
        (0.4, -3.0, -0.1, False),  # a refusal is likelier
        (0.6, -2.4, -0.1, True),  # a refusal is likelier, but the line is similar, and likely given no refusal
        (0.6, -9.0, 0.0, True),  # if a refusal is certain, likelihood does not count
    ],
)
def test_a_line_must_be_similar_and_likely_to_show_an_answer(
    similarity: float, likely: float, refusal: float, is_answer: bool
) -> None:
    assert shows_answer(similarity, likely, refusal) is is_answer


def test_the_least_relevant_lines_are_not_scored_and_their_passages_not_read() -> None:
    lines = "\n".join(f"[1] Line {place}." for place in range(MAX_LINES))
    model = Scripted({REFUSAL: -9.0, **dict.fromkeys(lines.splitlines(), -1.0)})
    selected = select_passages(model, prompts_of(WAX, lines), scorers_of({"Wax": -0.1}))
    assert prompts_read(model) == ["?1"]
    assert selected.options["response_prefix"] in lines


def test_a_line_of_several_passages_is_scored_once_in_the_first() -> None:
    model = Scripted({WAX: -0.1, REFUSAL: -9.0})
    prompts = prompts_of(WAX, WAX)
    assert select_passages(model, prompts, scorers_of({})).fitted_prompt is prompts[0]
    assert prompts_read(model) == ["?0"]


def test_a_line_of_several_passages_is_scored_where_it_is_most_relevant() -> None:
    prompts = prompts_of(WAX, WAX)
    second = prompts[1].passages[0]
    scorers = LineScorers(
        lambda pairs: [float(passage is second) for passage, _ in pairs], lambda pairs: [0.5 for _ in pairs]
    )
    model = Scripted({WAX: -0.1, REFUSAL: -9.0})
    assert select_passages(model, prompts, scorers).fitted_prompt is prompts[1]
    assert prompts_read(model) == ["?1"]


def test_lines_much_less_relevant_than_the_best_are_not_scored() -> None:
    model = Scripted({WAX: -1.0, HONEY: -0.1, REFUSAL: -9.0})
    prompts = prompts_of(WAX, HONEY)
    near = select_passages(model, prompts, scorers_of({"Wax": MAX_RELEVANCE_GAP - 0.1}))
    assert (near.fitted_prompt, prompts_read(model)) == (prompts[0], ["?0", "?1"])
    model.read.clear()
    far = select_passages(model, prompts, scorers_of({"Wax": MAX_RELEVANCE_GAP + 0.1}))
    assert (far.fitted_prompt, prompts_read(model)) == (prompts[0], ["?0"])


@pytest.mark.parametrize(("fit", "similar"), [(1.0, 0.5), (2.0, 0.1)])
def test_the_best_line_is_quoted_if_its_score_is_high_or_another_line_shows_an_answer(
    fit: float, similar: float
) -> None:
    prompts = prompts_of(f"{WAX}\n{HONEY}")
    scorers = LineScorers(
        scorers_of({"Wax": fit, "Honey": -1.5}).relevance,
        lambda pairs: [0.1 if "Wax" in line else similar for _, line in pairs],
    )
    model = Scripted({WAX: -1.0, HONEY: -1.0, REFUSAL: -2.0})
    assert select_passages(model, prompts, scorers).options == {"response_prefix": WAX}


@pytest.mark.parametrize("asks", ["How long does honey keep?", '**"Who asks?"**', "蜂蜜能保存多久？", "How?!"])
def test_a_question_is_not_a_candidate_line(asks: str) -> None:
    prompts = prompts_of(f"[1] {asks}", HONEY)
    assert [line.text for line in candidate_lines(prompts, scorers_of({}).relevance)] == [HONEY]
    for code in ("[1] grep -E '(a|b)?' `x?`", r"[1] version: (\d+)?"):
        assert [line.text for line in candidate_lines(prompts_of(code), scorers_of({}).relevance)] == [code]


def test_without_candidate_lines_the_model_answers_freely() -> None:
    model = Scripted({})
    prompts = prompts_of("", "")
    selected = select_passages(model, prompts, scorers_of({}), seed=3)
    assert (selected.fitted_prompt, selected.options, model.read) == (prompts[0], {"seed": 3}, [])


@pytest.mark.parametrize("options", [{"response_prefix": "So"}, {"json_schema": {"type": "object"}}])
def test_a_requested_format_is_kept(options: dict[str, Any]) -> None:
    prompts = prompts_of(WAX, HONEY)
    model = Scripted({WAX: -1.0, HONEY: -0.1, REFUSAL: -9.0})
    selected = select_passages(model, prompts, scorers_of({}), **options)
    assert (selected.fitted_prompt, selected.options) == (prompts[1], options)


def test_the_answer_continues_from_the_scored_prompt() -> None:
    model, prefixes = Scripted({WAX: -0.1, REFUSAL: -9.0}), [PrefixCache()]
    selected = select_passages(model, prompts_of(WAX), scorers_of({}), prefixes, seed=3)
    assert selected.options == {"seed": 3, "response_prefix": WAX}
    assert selected.prefix is prefixes[0]


def test_lines_and_the_refusal_fit_into_one_compiled_step() -> None:
    assert (MAX_LINES + 1) * (SCORED_TOKENS - 1) <= 63


def _likelihood(model: LanguageModel, prompt: Any, text: str) -> float:
    """Return the log-probability of the first tokens of a text as the beginning of an answer, by one forward pass."""
    read = list(model.tokenize(prompt).tokens)
    said = model.tokenizer.encode(text, add_special_tokens=False)[:SCORED_TOKENS]
    with torch.no_grad():
        scores = model.model(torch.tensor([read + said])).logits[0].log_softmax(-1)
    return sum(float(scores[len(read) - 1 + place, token]) for place, token in enumerate(said))


def test_the_answer_starts_with_the_best_line_and_continues_freely(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raised_relevance(question: str) -> LineScorer:
        """Return a scorer with raised scores, so that lines that a random model finds unlikely are still answers."""
        return lambda said: [20 + fit for fit in relevance_scorer(question)(said)]

    monkeypatch.setattr("antiphon.pipelines.request_plan.relevance_scorer", raised_relevance)
    found = retriever.search(QUESTION, 3)
    prompts = [reader_prompt(QUESTION, [passage]) for passage in found]
    lines = [(place, line) for place, one in enumerate(prompts) for line in one.answers[-1].splitlines()]
    pairs = [(found[place], quotes_of(line)[0].sentence) for place, line in lines]
    nats = [
        (_likelihood(reader, prompts[place].content, line), _likelihood(reader, prompts[place].content, REFUSAL))
        for place, line in lines
    ]
    assert len(lines) <= MAX_LINES
    weights = [line_score(fit, *one) for fit, one in zip(raised_relevance(QUESTION)(pairs), nats, strict=True)]
    best, line = lines[max(range(len(lines)), key=weights.__getitem__)]
    assert max(weights) > 2
    rag = Rag(retriever, reader, k=3)
    answer = rag.ask(QUESTION, max_new_tokens=120)
    assert answer.text == reader.generate(prompts[best].content, max_new_tokens=120, response_prefix=line).text
    assert answer.text.startswith(line)
    assert answer.passages[0] == found[best]
    assert set(answer.passages) == set(found)
    assert rag.ask(QUESTION, max_new_tokens=120, drafter="nothing").text == answer.text
    assert "".join(rag.stream(QUESTION, max_new_tokens=120)) == answer.text


def test_lines_of_two_passages_with_nearly_equal_scores_start_one_answer(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = retriever.search(QUESTION, 3)
    wanted = {passage.text: quotable_lines([passage])[0][0].sentence for passage in found[1:]}
    monkeypatch.setattr(
        "antiphon.pipelines.request_plan.relevance_scorer",
        lambda question: lambda said: [99.0 if wanted.get(passage.text) == line else 0.0 for passage, line in said],
    )
    monkeypatch.setattr("antiphon.pipelines.passage_selection._MAX_SCORE_GAP", 50.0)
    monkeypatch.setattr("antiphon.pipelines.passage_selection.shows_answer", lambda *_: True)
    answer = Rag(retriever, reader, k=3).ask(QUESTION, max_new_tokens=300)
    said = answer.passages[:2]
    assert {passage.text for passage in said} == set(wanted)
    assert set(answer.passages) == set(found)
    begins = "\n".join(f"[{number}] {wanted[passage.text]}" for number, passage in enumerate(said, start=1))
    assert (
        answer.text
        == reader.generate(reader_prompt(QUESTION, said).content, max_new_tokens=300, response_prefix=begins).text
    )
    assert answer.text.startswith(begins)
    assert {each.passage for each in answer.citations} >= {1, 2}
    chain = ChatAntiphon(language_model=reader, max_tokens=300).with_retriever(
        AntiphonRetriever(retriever=retriever, k=3)
    )
    assert chain.invoke(QUESTION)["answer"].content == answer.text
    kept = Rag(retriever, reader, k=3, passage_cache_tokens=100_000)
    assert [kept.ask(QUESTION, max_new_tokens=300).text for _ in range(2)] == [answer.text] * 2


def test_a_custom_prompt_has_all_passages_at_once(reader: LanguageModel, retriever: Retriever) -> None:
    stream = Rag(retriever, reader, k=3, prompt=reader_prompt).stream(QUESTION, max_new_tokens=4)
    assert stream.plan.prompt == reader_prompt(QUESTION, stream.passages)


def test_the_command_gives_the_same_answer_as_python(tiny_folder: Path, index_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"prompt_format": "reader"}))
    command = ["ask", QUESTION, "--index", index_folder, "--model", folder, "--max-new-tokens", 12, "--json"]
    shown = CliRunner().invoke(app, [str(each) for each in command])
    rag = Rag(Retriever.open(index_folder), LanguageModel.from_pretrained(folder))
    answer = rag.ask(QUESTION, max_new_tokens=12)
    told = json.loads(shown.stdout)
    assert told["text"] == answer.text
    assert [passage["id"] for passage in told["passages"]] == [passage.id for passage in answer.passages]
    assert told["usage"]["prompt_tokens"] == answer.usage.prompt_tokens
    assert signature(ask).parameters["k"].default == rag.k
    assert signature(ask).parameters["max_new_tokens"].default == MAX_NEW_TOKENS

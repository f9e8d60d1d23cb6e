"""Passage selection: the answer starts with the best line, and its passage comes first."""

from __future__ import annotations

import json
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.extractive_model import ExtractiveModel
from antiphon.pipelines.passage_selection import candidate_lines, known_share, select_passages
from antiphon.pipelines.prompt import REFUSAL, reader_prompt
from antiphon.pipelines.quotes import quotable_lines, quotes_of
from antiphon.pipelines.relevance import LineScorer, relevance_scorer
from antiphon.pipelines.request_plan import MAX_NEW_TOKENS, plan_request
from antiphon.pipelines.selection_rules import RULES
from antiphon.retrieval import Passage, Retriever
from tests.pipelines.passage_prompts import HONEY, WAX, prompts_of, relevance_of, select

QUESTION = "How many eggs does a queen lay?"


def test_the_most_relevant_line_starts_the_answer() -> None:
    prompts = prompts_of(WAX, HONEY)
    selected = select(prompts, Wax=0.6, Honey=2.8)
    assert (selected.fitted_prompt, selected.options) == (prompts[1], {"response_prefix": HONEY})


@pytest.mark.parametrize(("stop", "stops"), [((), ["\n"]), ("!", ["!", "\n"]), (["!"], ["!", "\n"])])
def test_if_no_line_is_good_enough_the_answer_is_a_refusal_and_nothing_else(stop: Any, stops: list[str]) -> None:
    prompts = prompts_of(WAX, HONEY)
    best = RULES.min_score - RULES.known_weight - 0.01
    relevance = relevance_of({"Wax": best - 0.1, "Honey": best})
    selected = select_passages("", prompts, relevance, stop=stop)
    assert (selected.fitted_prompt, selected.options) == (prompts[1], {"response_prefix": REFUSAL, "stop": stops})
    slightly_better = relevance_of({"Wax": best - 0.1, "Honey": best + 0.02})
    assert select_passages("", prompts, slightly_better).options["response_prefix"].startswith(HONEY)


def test_a_question_about_words_that_no_passage_has_is_refused_sooner() -> None:
    prompts = prompts_of("[1] Honey keeps for years.")
    relevance = relevance_of({"Honey": RULES.min_score - RULES.known_weight / 2})
    known, unknown = "How long does honey keep?", "How long do zeppelins fly?"
    assert select_passages(known, prompts, relevance).options["response_prefix"] == HONEY
    assert select_passages(unknown, prompts, relevance).options["response_prefix"] == REFUSAL


def test_words_of_headings_and_file_names_are_known_and_words_without_meaning_do_not_count() -> None:
    passage = Passage.at("libtasn1.txt", 0, "It is thread-safe.", {"title": "Manual > Concurrency"})
    assert known_share("Is libtasn1 concurrent?", [passage]) == 1.0
    assert known_share("Is it so?", [passage]) == 1.0
    assert known_share("Is zlib thread-safe?", [passage]) == 0.5


def test_a_line_of_several_passages_is_a_candidate_once_where_it_is_most_relevant() -> None:
    prompts = prompts_of(WAX, WAX)
    assert [line.prompt_index for line in candidate_lines(prompts, relevance_of({}))] == [0]
    second = prompts[1].passages[0]
    found = candidate_lines(prompts, lambda pairs: [float(passage is second) for passage, _ in pairs])
    assert [(line.prompt_index, line.relevance) for line in found] == [(1, 1.0)]


@pytest.mark.parametrize("asks", ["How long does honey keep?", '**"Who asks?"**', "蜂蜜能保存多久？", "How?!"])
def test_a_question_is_not_a_candidate_line(asks: str) -> None:
    prompts = prompts_of(f"[1] {asks}", HONEY)
    assert [line.text for line in candidate_lines(prompts, relevance_of({}))] == [HONEY]
    for code in ("[1] grep -E '(a|b)?' `x?`", r"[1] version: (\d+)?"):
        assert [line.text for line in candidate_lines(prompts_of(code), relevance_of({}))] == [code]


def test_without_candidate_lines_the_model_answers_freely() -> None:
    prompts = prompts_of("", "")
    selected = select_passages("", prompts, relevance_of({}), seed=3)
    assert (selected.fitted_prompt, selected.options) == (prompts[0], {"seed": 3})


@pytest.mark.parametrize("options", [{"response_prefix": "So"}, {"json_schema": {"type": "object"}}])
def test_a_requested_format_is_kept(options: dict[str, Any]) -> None:
    prompts = prompts_of(WAX, HONEY)
    selected = select_passages("", prompts, relevance_of({"Honey": 1.0}), **options)
    assert (selected.fitted_prompt, selected.options) == (prompts[1], options)


def test_the_answer_has_the_prefix_cache_of_its_first_passage(reader: LanguageModel, retriever: Retriever) -> None:
    prefixes: dict[str, PrefixCache] = {}
    found = retriever.search(QUESTION, 3)
    plan = plan_request(
        reader, QUESTION, found, prefix_of=lambda passage: prefixes.setdefault(passage.id, PrefixCache())
    )
    assert plan.prefix is prefixes.pop(plan.passages[0].id)
    assert not prefixes, "only the first passage's cache is used"
    assert plan_request(ExtractiveModel(), QUESTION, found, prefix_of=lambda _: PrefixCache()).prefix is None


def test_the_answer_starts_with_the_best_line_and_continues_freely(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raised_relevance(question: str) -> LineScorer:
        """Return a scorer whose best line stands out."""
        return lambda said: [20 * fit for fit in relevance_scorer(question)(said)]

    monkeypatch.setattr("antiphon.pipelines.request_plan.relevance_scorer", raised_relevance)
    found = retriever.search(QUESTION, 3)
    prompts = [reader_prompt(QUESTION, [passage]) for passage in found]
    lines = [(place, line) for place, one in enumerate(prompts) for line in one.answers[-1].splitlines()]
    scores = relevance_scorer(QUESTION)([(found[place], quotes_of(line)[0].sentence) for place, line in lines])
    best, line = lines[max(range(len(lines)), key=scores.__getitem__)]
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

"""Passage selection: the answer starts with the best lines, whose passages come first, or is a refusal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, PrefixCache
from antiphon.accel.text.messages import Message
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.extractive_model import ExtractiveModel
from antiphon.pipelines.passage_selection import MIN_SCORE, known_share, select_lines
from antiphon.pipelines.prompt import REFUSAL, reader_prompt
from antiphon.pipelines.question import Question
from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.relevance import LineEncoder, LineScores, line_scores
from antiphon.pipelines.request_plan import plan_request
from antiphon.retrieval import Passage, Retriever
from tests.pipelines.quoting import passages_of, scores_of

QUESTION = "How many eggs does a queen lay?"
WAX, HONEY, BEES = "Wax melts.", "Honey keeps for years.", "Bees fly."
ALL_KNOWN = "Is it so?"  # no word of it carries meaning


def selected(passages: Sequence[Passage], question: str = ALL_KNOWN, **score_by_word: float) -> list[str]:
    """Return the selected lines, best passage first, as an answer quotes them."""
    _, quotes = select_lines(Question(question), passages, scores=scores_of(**score_by_word))
    return [quote.line for quote in quotes]


def test_the_most_relevant_line_starts_the_answer() -> None:
    first, second = passages_of(WAX, HONEY)
    found, quotes = select_lines(Question(ALL_KNOWN), [first, second], scores=scores_of(Wax=0.6, Honey=2.8))
    assert found == (second,)
    assert [quote.line for quote in quotes] == [f"[1] {HONEY}"]


def test_if_no_line_is_good_enough_the_nearest_passage_is_shown_without_lines() -> None:
    passages = passages_of(WAX, HONEY)
    best = MIN_SCORE - 1 - 0.01
    scores = scores_of(Wax=best - 0.1, Honey=best)
    assert select_lines(Question(ALL_KNOWN), passages, scores=scores) == ((passages[1],), ())
    assert selected(passages, Wax=best - 0.1, Honey=best + 0.02) == [f"[1] {HONEY}", f"[2] {WAX}"]


def test_a_passage_without_quotable_lines_is_a_refusal() -> None:
    passages = passages_of("# Wax", "----")
    assert select_lines(Question(ALL_KNOWN), passages, scores=scores_of()) == ((passages[0],), ())


@pytest.mark.parametrize(("stop", "stops"), [(None, ("\n",)), ("!", ("!", "\n")), (["!"], ("!", "\n"))])
def test_nothing_follows_a_refusal(stop: Any, stops: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineEncoder, "scores", lambda self, *given: scores_of()(*given))
    plan = plan_request(ExtractiveModel(), Question(QUESTION), passages_of(WAX), stop=stop)
    assert (plan.response_prefix, plan.stop) == (REFUSAL, stops)


def test_a_question_about_words_that_no_passage_has_is_refused_sooner() -> None:
    passages = passages_of(HONEY)
    assert selected(passages, "How long does honey keep?", Honey=MIN_SCORE - 0.5) == [f"[1] {HONEY}"]
    assert selected(passages, "How long do zeppelins fly?", Honey=MIN_SCORE - 0.5) == []


def test_words_of_headings_and_file_names_are_known_and_words_without_meaning_do_not_count() -> None:
    passage = Passage.at("libtasn1.txt", 0, "It is thread-safe.", {"title": "Manual > Concurrency"})
    assert known_share("Is libtasn1 concurrent?", [passage]) == 1.0
    assert known_share("Is it so?", [passage]) == 1.0
    assert known_share("Is zlib thread-safe?", [passage]) == 0.5


def test_up_to_three_lines_that_score_nearly_as_well_are_quoted_in_reading_order() -> None:
    passages = passages_of(f"{WAX} Drones do not. {HONEY} {BEES}")
    assert selected(passages, Wax=1.0, Honey=2.0, Bees=0.9, Drones=0.8) == [
        f"[1] {line}" for line in (WAX, HONEY, BEES)
    ]
    assert selected(passages, Wax=1.0, Honey=2.0, Bees=-0.1, Drones=-0.2) == [f"[1] {WAX}", f"[1] {HONEY}"]


def test_the_passage_of_the_best_line_comes_first_and_a_line_of_two_passages_is_quoted_once() -> None:
    passages = passages_of(WAX, f"{WAX} {HONEY}", BEES)
    found, quotes = select_lines(Question(ALL_KNOWN), passages, scores=scores_of(Wax=1.0, Honey=2.0, Bees=1.5))
    assert found == (passages[1], passages[2], passages[0])
    assert [quote.line for quote in quotes] == [f"[1] {HONEY}", f"[2] {BEES}", f"[3] {WAX}"]


@pytest.mark.parametrize(("lines", "spare"), [(1, -1), (2, 0), (2, 1)])
def test_a_further_line_is_quoted_only_if_it_fits_completely(lines: int, spare: int) -> None:
    limit = spare + sum(len(f"[1] {line}") + 1 for line in (WAX, HONEY))
    scores = scores_of(Wax=2.0, Honey=1.0)
    _, quotes = select_lines(Question(ALL_KNOWN), passages_of(f"{WAX} {HONEY}"), max_tokens=limit, scores=scores)
    assert [quote.sentence for quote in quotes] == [WAX, HONEY][:lines]


def test_a_line_with_a_colon_is_quoted_with_the_lines_below_it_as_far_as_they_fit() -> None:
    passages = passages_of("To build a hive:\n\n- saw\n- nails\n\nMore.")
    assert selected(passages, build=3.0) == ["[1] To build a hive:", "[1] saw", "[1] nails"]
    assert selected(passages, build=2.9, nails=3.0) == ["[1] To build a hive:", "[1] saw", "[1] nails"]
    limit = len("[1] To build a hive:\n[1] saw\n")
    _, quotes = select_lines(Question(ALL_KNOWN), passages, max_tokens=limit, scores=scores_of(build=3.0))
    assert [quote.sentence for quote in quotes] == ["To build a hive:", "saw"]


def test_a_follow_up_is_compared_in_both_forms_and_prefers_the_section_of_the_previous_answer() -> None:
    history: list[Message] = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": f"[1] {HONEY}"}]
    passages = [
        Passage.at("a.md", 0, WAX, {"title": "Wax"}),
        Passage.at("b.md", 0, f"{HONEY} {BEES}", {"title": "Honey"}),
    ]
    asked: list[str] = []

    def scores(question: str, passages: Sequence[Passage]) -> LineScores:
        asked.append(question)
        return scores_of(Wax=1.0, Bees=0.5)(question, passages)

    follow_up = Question.of("And why?", history)
    found, _ = select_lines(follow_up, passages, history=history, scores=scores)
    assert found[0] == passages[1]
    assert asked == ["How? And why?", "And why?"]
    found, _ = select_lines(Question("How do bees fly?"), passages, history=history, scores=scores)
    assert found[0] == passages[0], "a complete question does not depend on the conversation"


@pytest.mark.parametrize("options", [{"response_prefix": "So"}, {"json_schema": {"type": "object"}}])
def test_a_requested_format_is_kept(options: dict[str, Any], reader: LanguageModel, retriever: Retriever) -> None:
    plan = plan_request(reader, Question(QUESTION), retriever.search(QUESTION, 3), **options)
    assert plan.response_prefix == options.get("response_prefix", "")
    assert plan.parameters.get("json_schema") == options.get("json_schema")


def test_the_answer_has_the_prefix_cache_of_its_first_passage(reader: LanguageModel, retriever: Retriever) -> None:
    prefixes: dict[str, PrefixCache] = {}
    asked, found = Question(QUESTION), retriever.search(QUESTION, 3)
    plan = plan_request(reader, asked, found, prefix_of=lambda passage: prefixes.setdefault(passage.id, PrefixCache()))
    assert plan.prefix is prefixes.pop(plan.passages[0].id)
    assert not prefixes, "only the first passage's cache is used"
    assert plan_request(ExtractiveModel(), asked, found, prefix_of=lambda _: PrefixCache()).prefix is None


def test_the_answer_starts_with_the_best_line_and_continues_freely(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = retriever.search(QUESTION, 3)
    quotes = [quote for own in quotable_lines(found) for quote in own]
    flat = [score for own in line_scores(QUESTION, found) for score in own]
    best = quotes[max(range(len(quotes)), key=flat.__getitem__)]
    own_scores = LineEncoder.scores

    def raised_scores(encoder: LineEncoder, question: str, passages: Sequence[Passage]) -> LineScores:
        """Return scores of which the best one stands out."""
        return [[20 * score for score in own] for own in own_scores(encoder, question, passages)]

    monkeypatch.setattr(LineEncoder, "scores", raised_scores)
    rag = Rag(retriever, reader, k=3)
    answer = rag.ask(QUESTION, max_new_tokens=120)
    prompt, line = reader_prompt(QUESTION, [found[best.number - 1]]), f"[1] {best.sentence}"
    assert answer.text == reader.generate(prompt.content, max_new_tokens=120, response_prefix=line).text
    assert answer.text.startswith(line)
    assert answer.passages[0] == found[best.number - 1]
    assert set(answer.passages) == set(found)
    assert rag.ask(QUESTION, max_new_tokens=120, drafter="nothing").text == answer.text
    assert "".join(rag.stream(QUESTION, max_new_tokens=120)) == answer.text


def test_lines_of_two_passages_with_equal_scores_start_one_answer(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = retriever.search(QUESTION, 3)
    wanted = {passage.text: quotable_lines([passage])[0][0].sentence for passage in found[1:]}

    def scores(encoder: LineEncoder, question: str, passages: Sequence[Passage]) -> LineScores:
        return [
            [99.0 if wanted.get(passage.text) == quote.sentence else 0.0 for quote in own]
            for passage, own in zip(passages, quotable_lines(passages), strict=True)
        ]

    monkeypatch.setattr(LineEncoder, "scores", scores)
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
    assert signature(ask).parameters["max_new_tokens"].default is None, "chosen by `plan_request`, as without it"

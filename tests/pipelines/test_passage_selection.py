"""Which passages answer a question: the filters that are given, and the lines that start the answer or refuse it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel import LanguageModel
from antiphon.accel.text.messages import Message
from antiphon.pipelines import Rag
from antiphon.pipelines.chat import Chat
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.options import where_filter
from antiphon.pipelines.extractive_model import ExtractiveModel
from antiphon.pipelines.passage_selection import MIN_SCORE, known_share, select_lines
from antiphon.pipelines.prompt import REFUSAL, reader_prompt
from antiphon.pipelines.question import Question
from antiphon.pipelines.quotes import quotable_lines
from antiphon.pipelines.relevance import LineEncoder, LineScores, line_scores
from antiphon.pipelines.request_plan import plan_request
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from tests.pipelines.quoting import passages_of, scores_of

FACTS = {"bees.txt": {"year": 2019, "lang": "en"}, "owls.txt": {"year": 2021, "lang": "de"}}


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    folder = tmp_path_factory.mktemp("filtered") / "index"
    passages = [Passage.at(source, 0, f"What {source} says of honey.", facts) for source, facts in FACTS.items()]
    index_passages(passages, folder, HashEmbedder())
    return Retriever.open(folder, embedder=HashEmbedder())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], None),
        (["lang=de"], {"lang": "de"}),
        (["year=2021"], {"year": 2021}),
        (['year="2021"'], {"year": "2021"}),
        (["open=true", "closed=null"], {"$and": [{"open": True}, {"closed": None}]}),
        (["a=[1]", "b={}", "c=NaN"], {"$and": [{"a": "[1]"}, {"b": "{}"}, {"c": "NaN"}]}),
        (["source=a=b.txt", "title ="], {"$and": [{"source": "a=b.txt"}, {"title": ""}]}),
        (['{"year": {"$gte": 2020}}'], {"year": {"$gte": 2020}}),
    ],
)
def test_the_option_gives_the_filter_that_it_describes(given: list[str], expected: Any) -> None:
    assert where_filter(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lang", "--where is 'lang'; give FIELD=VALUE"),
        ("=de", "give FIELD=VALUE"),
        ("{", "is not valid JSON"),
        ('{"a": {"$near": 1}}', "no operator '$near'"),
        ('{"a": {"$in": 1}}', "a list of values is needed"),
    ],
)
@pytest.mark.parametrize("command", [["ask", "What?"], ["chat"]])
def test_a_malformed_option_is_refused_before_anything_is_loaded(command: list[str], given: str, message: str) -> None:
    result = CliRunner().invoke(app, [*command, "--index", "none", "--where", given])
    assert result.exit_code == 2
    assert message in result.output


def test_answers_and_conversations_come_from_passages_that_match(dated: Retriever, typist: LanguageModel) -> None:
    rag = Rag(dated, typist)
    for asked in (rag.ask, Chat(rag).ask):
        for year, source in ((2019, "bees.txt"), (2021, "owls.txt")):
            answer = asked("What of honey?", where={"year": year}, max_new_tokens=1)
            assert [passage.source for passage in answer.passages] == [source]
    assert len(rag.ask("What of honey?", max_new_tokens=1).passages) == 2


def serve(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["serve", "--model", "extractive", "--port", "0", *arguments])
    assert result.exit_code == 2
    return " ".join(result.output.split())


def test_a_server_refuses_collections_that_it_cannot_serve(tmp_path: Path) -> None:
    file = tmp_path / "collections.toml"
    file.write_text('[collections.law]\nindex = "missing"')
    assert "The collection 'law' cannot be opened:" in serve("--collections", str(file))
    assert "--index and --collections are given" in serve("--collections", str(file), "--index", str(tmp_path))
    assert "--index and --collections are given" in serve("--collections", str(file), str(tmp_path))
    file.write_text("[collections.law]")
    assert "collections.law.index: Field required" in serve("--collections", str(file))
    assert "No such file" in serve("--collections", str(tmp_path / "none.toml"))


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


@pytest.mark.parametrize(("stop", "stops"), [(None, ("\n",)), ("!", ("!", "\n")), (["!"], ("!", "\n"))])
def test_nothing_follows_a_refusal(stop: Any, stops: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineEncoder, "scores", lambda self, *given: scores_of()(*given))
    plan = plan_request(ExtractiveModel(), Question(QUESTION), passages_of(WAX), stop=stop)
    assert (plan.response_prefix, plan.stop) == (REFUSAL, stops)


def test_a_question_is_refused_sooner_if_no_passage_title_or_file_name_has_its_words() -> None:
    passages = passages_of(HONEY)
    assert selected(passages, "How long does honey keep?", Honey=MIN_SCORE - 0.5) == [f"[1] {HONEY}"]
    assert selected(passages, "How long do zeppelins fly?", Honey=MIN_SCORE - 0.5) == []
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


@pytest.mark.parametrize(
    ("text", "question", "scores", "expected"),
    [
        ("Can I return it?\n\nYes. You have thirty days.", "Can I return it?", {"Can I": 3.0, "thirty": 2.0}, [1, 2]),
        ("**Can I return it?** No. It is food.", "Can I return it?", {"food": 3.0}, [1, 2]),
        ("It is free.\n\nCan I return it?", "Can I return it?", {"Can I": 3.0}, []),
        ("Is it red? It is blue.", "Which colour has it?", {"Is it red": 3.0}, [0]),
        ("The pump is red. Lunch is at noon.", "Where is the red pump?", {"pump": 3.0, "Lunch": 2.0}, [0, 1]),
        ("The pump is red.\n\nOther.\n\nLunch is at noon.", "Where is the pump?", {"pump": 3.0, "Lunch": 2.0}, [0]),
        ("A pump. Thanks to all.", "Thank you!", {"Thanks": 3.0}, []),
    ],
)
def test_the_question_itself_small_talk_and_what_it_is_not_about_are_not_quoted(
    text: str, question: str, scores: dict[str, float], expected: list[int]
) -> None:
    passages = passages_of(text)
    _, lines = select_lines(Question(question), passages, scores=scores_of(**scores))
    [quotable] = quotable_lines(passages)
    assert [quotable.index(line) for line in lines] == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How much do we pay Papyrus?", ["Supplier: Papyrus; Owner: Holm; Annual cost: 3200"]),
        ("Who owns the Kontor contract?", ["Supplier: Kontor; Owner: Berg; Annual cost: 18500"]),
        ("Which colour has Papyrus?", []),
    ],
)
def test_a_row_that_the_question_names_answers_if_its_table_has_the_column(question: str, expected: list[str]) -> None:
    table = "| Supplier | Owner | Annual cost |\n|---|---|---|\n| Papyrus | Holm | 3200 |\n| Kontor | Berg | 18500 |\n"
    _, lines = select_lines(Question(question), passages_of(table), scores=scores_of(Supplier=-3.0))
    assert [line.sentence for line in lines] == expected


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

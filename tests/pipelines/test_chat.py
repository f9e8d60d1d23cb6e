"""Chat: the earlier turns are in the prompt without their passages, and follow-up questions are made complete."""

from collections.abc import Iterator, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.accel import LanguageModel, Stream
from antiphon.accel.decoding.stats import Step
from antiphon.pipelines import Answer, Chat, Rag, SessionStore
from antiphon.retrieval import HashEmbedder, Passage, Retriever
from tests.accel.oracles import expect_plain_logits
from tests.pipelines.recording_drafter import RecordingBlend

QUESTIONS = ("How many eggs does a queen lay?", "And how long does honey keep?", "Who lives in a colony?")


class RecordingSearcher:
    """A searcher that records its queries."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)
        self.queries: list[str] = []

    def search(self, question: str, k: int = 5) -> list[Passage]:
        """Return the first ``k`` passages."""
        self.queries.append(question)
        return self.passages[:k]


def converse(rag: Rag, *, reuse: bool, **options: Any) -> list[Answer]:
    """Ask the three questions in one conversation; without ``reuse`` the prefix cache is cleared before each."""
    chat = Chat(rag)
    answers: list[Answer] = []
    for question in QUESTIONS:
        if not reuse:
            assert chat._prefix is not None
            chat._prefix.clear()
        answers.append(chat.ask(question, max_new_tokens=24, **options))
    return answers


def test_the_prompt_has_the_earlier_turns_without_their_passages(retriever: Retriever, typist: LanguageModel) -> None:
    chat = Chat(Rag(retriever, typist, k=1))
    first = chat.ask(QUESTIONS[0], max_new_tokens=9)
    plan = chat.stream(QUESTIONS[1], max_new_tokens=9).plan
    assert not isinstance(plan.prompt.content, str)
    _, question, answer, turn = plan.prompt.content
    assert (question["content"], answer["content"]) == (QUESTIONS[0], first.text)
    assert QUESTIONS[1] in turn["content"]
    assert plan.passages[0].text in turn["content"]


def test_the_logits_of_a_third_turn_equal_those_of_a_plain_forward_pass(
    retriever: Retriever, typist: LanguageModel
) -> None:
    chat, recorder = Chat(Rag(retriever, typist, k=1)), RecordingBlend()
    for question in QUESTIONS[:2]:
        chat.ask(question, max_new_tokens=24, num_draft_tokens=16)
    stream = chat.stream(QUESTIONS[2], max_new_tokens=24, num_draft_tokens=16, drafter=lambda: recorder)
    list(stream)
    text = [*recorder.prompt, *stream.completion.tokens]
    assert stream.answer.steps.prefill_tokens < len(recorder.prompt)
    expect_plain_logits(typist.model, text, recorder.records)


def test_earlier_passages_and_answers_are_references(retriever: Retriever, typist: LanguageModel) -> None:
    chat, recorder = Chat(Rag(retriever, typist, k=1)), RecordingBlend()
    first = chat.ask(QUESTIONS[0], max_new_tokens=24)
    now = chat.ask(QUESTIONS[2], max_new_tokens=24, drafter=lambda: recorder)
    texts = [typist.tokenizer.decode(reference) for reference in recorder.references]
    assert texts == [now.passages[0].text, first.passages[0].text, first.text]


def test_the_oldest_turns_that_do_not_fit_are_left_out(retriever: Retriever, typist: LanguageModel) -> None:
    chat = Chat(Rag(retriever, typist, k=1))  # a context window of 2,048 bytes
    dropped: list[int] = []
    for number in range(13):
        answer = chat.ask(f"Question {number}: who is {'the queen of ' * 10}the bees?", max_new_tokens=9)
        dropped.append(chat.dropped_turns)
        assert answer.usage.total_tokens <= 2048
    assert dropped == sorted(dropped)
    assert dropped[0] == 0 < dropped[-1] < 12


def test_a_follow_up_question_is_searched_with_the_question_that_it_refers_to(
    passages: list[Passage], typist: LanguageModel
) -> None:
    search = RecordingSearcher(passages)
    chat = Chat(Rag(search, typist, k=1))
    for question in QUESTIONS:
        chat.ask(question, max_new_tokens=9)
    assert search.queries == [QUESTIONS[0], f"{QUESTIONS[0]} {QUESTIONS[1]}", QUESTIONS[2]]
    assert [turn.question for turn in chat.turns] == list(QUESTIONS)


REWRITTEN = "And how long does the honey of a queen keep?"


@pytest.fixture
def rewriting(typist: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A model that rewrites every question as `REWRITTEN`."""
    monkeypatch.setattr(typist, "generate", lambda *prompt, **parameters: SimpleNamespace(text=REWRITTEN))
    return typist


def test_the_model_can_rewrite_a_question_for_the_search_only(
    passages: list[Passage], rewriting: LanguageModel
) -> None:
    search = RecordingSearcher(passages)
    chat = Chat(Rag(search, rewriting, k=1, rewrite=True))
    chat.ask(QUESTIONS[0], max_new_tokens=9)
    stream = chat.stream(QUESTIONS[1], max_new_tokens=9)
    assert search.queries == [QUESTIONS[0], REWRITTEN]
    assert chat.search_query == stream.question.complete == REWRITTEN
    turn = stream.plan.prompt.content[-1]["content"]  # type: ignore[index]
    assert QUESTIONS[1] in turn
    assert REWRITTEN not in turn


def test_the_text_of_a_closed_stream_becomes_a_turn(retriever: Retriever, typist: LanguageModel) -> None:
    chat = Chat(Rag(retriever, typist, k=1))
    with chat.stream(QUESTIONS[0]) as stream:
        first = next(stream)
    assert [turn.text for turn in chat.turns] == [first]
    stream.close()
    assert len(chat.turns) == 1
    follow = chat.ask(QUESTIONS[1], max_new_tokens=9)
    assert follow.steps.prefill_tokens < follow.usage.prompt_tokens


def test_a_refused_question_does_not_change_the_conversation(passages: list[Passage], typist: LanguageModel) -> None:
    chat = Chat(Rag(RecordingSearcher(passages), typist, k=1))
    chat.ask(QUESTIONS[0], max_new_tokens=9)
    with pytest.raises(ValueError, match="exceeds the context window"):
        chat.ask("why " * 600)
    with pytest.raises(TypeError):
        chat.ask("why " * 215, max_new_tokens=9, no_such_option=1)
    assert (len(chat.turns), chat.dropped_turns) == (1, 0)
    follow = chat.ask(QUESTIONS[1], max_new_tokens=9)
    assert follow.steps.prefill_tokens < follow.usage.prompt_tokens


def fail_after_three(steps: Iterator[Step]) -> Iterator[Step]:
    """Yield three steps, then raise an error."""
    yield from islice(steps, 3)
    raise RuntimeError("out of memory")


def test_a_failed_answer_becomes_neither_a_turn_nor_a_session(
    retriever: Retriever, typist: LanguageModel, tmp_path: Any
) -> None:
    store = SessionStore(tmp_path / "sessions.sqlite", embedder=HashEmbedder())
    chat = Chat(Rag(retriever, typist, k=1, sessions=store))
    stream = chat.stream(QUESTIONS[0])
    assert isinstance(stream._stream, Stream)
    stream._stream._remaining = fail_after_three(stream._stream._remaining)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(stream)
    stream.close()
    assert stream.answer.text
    assert (chat.turns, len(store)) == ([], 0)
    chat.ask(QUESTIONS[0], max_new_tokens=9)
    assert (len(chat.turns), len(store)) == (1, 1)


def test_a_conversation_reads_and_writes_the_sessions(
    retriever: Retriever, typist: LanguageModel, tmp_path: Any
) -> None:
    store = SessionStore(tmp_path / "sessions.sqlite", embedder=HashEmbedder())
    rag = Rag(retriever, typist, k=1, sessions=store)
    options: dict[str, Any] = {"num_draft_tokens": 16, "recycling": False}
    cold, warm, off = (
        converse(rag, reuse=True, **options),
        converse(rag, reuse=True, **options),
        converse(rag, reuse=True, sessions=False, **options),
    )
    assert [answer.text for answer in warm] == [answer.text for answer in cold] == [answer.text for answer in off]
    steps = [sum(answer.steps.steps for answer in answers) for answers in (cold, warm, off)]
    assert steps[1] < steps[0]
    assert len(store) == 3

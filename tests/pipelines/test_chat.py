"""Chat: the same text as without a prefix cache, while only new tokens are prefilled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from antiphon.accel import LanguageModel, Stream
from antiphon.accel.decoding.stats import Step
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.pipelines import Answer, Chat, Rag, SessionStore
from antiphon.pipelines.chat import rewrite_question
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
            chat._prefix.clear()
        answers.append(chat.ask(question, max_new_tokens=24, **options))
    return answers


def new_tokens(turn: Answer, before: Answer) -> int:
    """Return the number of tokens that are not in the KV cache: all new ones and the last generated one."""
    return turn.usage.prompt_tokens - (before.usage.total_tokens - 1)


def test_every_turn_prefills_only_new_tokens_and_has_the_same_text(retriever: Retriever, typist: LanguageModel) -> None:
    rag = Rag(retriever, typist, k=2)
    reused = converse(rag, reuse=True, num_draft_tokens=16)
    again = converse(rag, reuse=False, drafter="nothing")
    assert [answer.text for answer in reused] == [answer.text for answer in again]
    assert [answer.usage for answer in reused] == [answer.usage for answer in again]
    assert [answer.steps.prefill_tokens for answer in again] == [answer.usage.prompt_tokens for answer in again]
    assert reused[0].steps.prefill_tokens == reused[0].usage.prompt_tokens
    assert reused[1].steps.prefill_tokens == new_tokens(reused[1], reused[0])
    assert reused[2].steps.prefill_tokens == new_tokens(reused[2], reused[1]) < reused[2].usage.prompt_tokens / 2


def test_the_logits_of_a_third_turn_equal_those_of_a_plain_forward_pass(
    retriever: Retriever, typist: LanguageModel
) -> None:
    chat, recorder = Chat(Rag(retriever, typist, k=1)), RecordingBlend()
    for question in QUESTIONS[:2]:
        chat.ask(question, max_new_tokens=24, num_draft_tokens=16)
    stream = chat.stream(QUESTIONS[2], max_new_tokens=24, num_draft_tokens=16, drafter=lambda: recorder)
    list(stream)
    text = [*recorder.prompt, *stream.completion.tokens]
    assert stream.answer.steps.prefill_tokens < len(recorder.prompt) / 2
    expect_plain_logits(typist.model, text, recorder.records)


def test_earlier_passages_and_answers_are_references(retriever: Retriever, typist: LanguageModel) -> None:
    chat, recorder = Chat(Rag(retriever, typist, k=1)), RecordingBlend()
    first = chat.ask(QUESTIONS[0], max_new_tokens=24)
    now = chat.ask(QUESTIONS[1], max_new_tokens=24, drafter=lambda: recorder)
    texts = [typist.tokenizer.decode(reference) for reference in recorder.references]
    assert texts == [now.passages[0].text, first.passages[0].text, first.text]


def test_turns_that_do_not_fit_are_dropped_and_the_rest_is_prefilled_once(
    retriever: Retriever, typist: LanguageModel
) -> None:
    chat = Chat(Rag(retriever, typist, k=1))  # a context window of 2,048 bytes
    answers: list[Answer] = []
    dropped: list[int] = []
    for number in range(9):
        answers.append(chat.ask(f"Question {number}: who is the queen?", max_new_tokens=150))
        dropped.append(chat.dropped_turns)
    assert all(answer.usage.total_tokens <= 2048 for answer in answers)
    cut = next(turn for turn, count in enumerate(dropped) if count)
    assert dropped[cut] > 1
    assert dropped[cut + 1] == dropped[cut]
    assert answers[cut].usage.total_tokens <= 1024
    assert answers[cut].steps.prefill_tokens > answers[cut].usage.prompt_tokens / 2
    assert answers[cut + 1].steps.prefill_tokens == new_tokens(answers[cut + 1], answers[cut])


def test_if_no_turn_fits_passages_are_left_out(retriever: Retriever) -> None:
    small = LanguageModel(tiny_model(max_position_embeddings=512), byte_tokenizer(), name="small")
    chat = Chat(Rag(retriever, small, k=3))
    for turn, question in enumerate(QUESTIONS):
        answer = chat.ask(question, max_new_tokens=190)
        assert answer.usage.total_tokens <= 512
        assert 1 <= len(answer.passages) < 3
        assert chat.dropped_turns == turn


def test_a_follow_up_question_is_rewritten_for_the_search_only(passages: list[Passage], typist: LanguageModel) -> None:
    search, plain = RecordingSearcher(passages), RecordingSearcher(passages)
    chat = Chat(Rag(search, typist, k=1), rewrite=True)
    for question in QUESTIONS[:2]:
        chat.ask(question, max_new_tokens=9)
    new = rewrite_question(typist, chat.turns[:1], QUESTIONS[1])
    assert search.queries == [QUESTIONS[0], new]
    assert chat.search_query == new != QUESTIONS[1]
    assert QUESTIONS[1] in chat.turns[1].messages[0]["content"]
    assert new not in chat.turns[1].messages[0]["content"]
    unchanged = Chat(Rag(plain, typist, k=1))
    for question in QUESTIONS[:2]:
        unchanged.ask(question, max_new_tokens=9)
    assert plain.queries == list(QUESTIONS[:2])


def test_rewriting_keeps_the_prefix_cache_of_the_conversation(passages: list[Passage], typist: LanguageModel) -> None:
    chat = Chat(Rag(RecordingSearcher(passages), typist, k=1), rewrite=True)
    first, second = (chat.ask(question, max_new_tokens=9) for question in QUESTIONS[:2])
    assert second.steps.prefill_tokens == new_tokens(second, first)


def test_the_text_of_a_closed_stream_becomes_a_turn(retriever: Retriever, typist: LanguageModel) -> None:
    chat = Chat(Rag(retriever, typist, k=1))
    with chat.stream(QUESTIONS[0]) as stream:
        first = next(stream)
    assert [turn.text for turn in chat.turns] == [first]
    stream.close()
    assert len(chat.turns) == 1
    follow = chat.ask(QUESTIONS[1], max_new_tokens=9)
    assert follow.steps.prefill_tokens < follow.usage.prompt_tokens / 2


def test_a_question_without_passages_does_not_become_a_turn(passages: list[Passage], typist: LanguageModel) -> None:
    search = RecordingSearcher(passages)
    chat = Chat(Rag(search, typist, k=1))
    search.passages = []
    with pytest.raises(ValueError, match="found no passage"):
        chat.ask(QUESTIONS[0])
    assert chat.turns == []


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


def test_an_empty_answer_does_not_become_a_turn(retriever: Retriever, typist: LanguageModel) -> None:
    chat = Chat(Rag(retriever, typist, k=1))
    chat.stream(QUESTIONS[0]).close()
    assert chat.turns == []


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


def test_a_session_is_stored_under_the_rewritten_question(
    retriever: Retriever, typist: LanguageModel, tmp_path: Any
) -> None:
    store = SessionStore(tmp_path / "sessions.sqlite", embedder=HashEmbedder())
    chat = Chat(Rag(retriever, typist, k=1, sessions=store), rewrite=True)
    chat.ask(QUESTIONS[0], max_new_tokens=9)
    chat.ask(QUESTIONS[1], max_new_tokens=9)
    assert chat.search_query != QUESTIONS[1]
    assert [store.forget(question) for question in (QUESTIONS[1], chat.search_query)] == [False, True]


def test_a_prompt_that_is_a_string_is_refused(passages: list[Passage]) -> None:
    base = LanguageModel(tiny_model(), byte_tokenizer(chat=False), name="base")
    with pytest.raises(ValueError, match="A conversation needs a prompt of messages, and this prompt is a string"):
        Chat(Rag(RecordingSearcher(passages), base)).ask(QUESTIONS[0])

"""Each passage by itself: the likeliest answer that is no refusal is the answer, and its passage comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from antiphon.accel import Completion, LanguageModel, PrefixCache, Summary, Usage
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines import Rag
from antiphon.pipelines.each import AskedPassage, surest_answer
from antiphon.pipelines.prompt import DECLINED, Prompt, reader_prompt
from antiphon.retrieval import Passage, Retriever

QUESTION = "How many eggs does a queen lay?"
WAX, HONEY = ("[1] Wax", " melts."), ("[1] Honey", " keeps", " for years.")
REFUSAL = ("The passages", " do not say.")


@dataclass(eq=False)
class Script:
    """A text that is known beforehand, each piece with what it costs in likelihood; notes how far it was read."""

    pieces: Sequence[str]
    each: float
    read: int = 0
    is_closed: bool = False

    def __next__(self) -> str:
        if self.is_closed or self.read == len(self.pieces):
            raise StopIteration
        self.read += 1
        return self.pieces[self.read - 1]

    def close(self) -> None:
        self.is_closed = True

    @property
    def log_probability(self) -> float:
        return self.each * self.read

    @property
    def completion(self) -> Completion:
        text = "".join(self.pieces[: self.read])
        return Completion(text, "stop", Usage(1, 1), Summary(steps=1, tokens=1, seconds=0.0), (1,))


@dataclass
class Scripted:
    """A model that says what is known beforehand."""

    scripts: Sequence[Script]
    given: dict[str, Any] = field(default_factory=dict)

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Any,
    ) -> Sequence[Script]:
        self.given = parameters
        return self.scripts


def _asked(count: int) -> list[AskedPassage]:
    return [AskedPassage(Passage.at("a.md", place, "Wax melts."), Prompt("?"), "?") for place in range(count)]


def _answered(*scripts: Script) -> tuple[int, str]:
    """Which passage answers, and what."""
    asked = _asked(len(scripts))
    chosen, pieces = surest_answer(Scripted(scripts), asked)
    return asked.index(chosen), "".join(pieces)


def test_the_likeliest_answer_that_is_no_refusal_is_the_answer() -> None:
    assert _answered(Script(REFUSAL, 0.0), Script(WAX, -3.0), Script(HONEY, -1.0)) == (2, "".join(HONEY))
    assert _answered(Script(HONEY, -3.0), Script(WAX, -3.0)) == (1, "".join(WAX))


def test_where_nothing_answers_the_best_passage_declines() -> None:
    assert _answered(Script(REFUSAL, -2.0), Script(REFUSAL, -1.0)) == (0, DECLINED)
    assert _answered(Script((), 0.0)) == (0, "")


def test_nothing_said_is_no_answer_and_an_article_is_no_refusal_yet() -> None:
    queen = ("The", " queen", " lays.")
    assert _answered(Script((), 0.0), Script(("The", " passages do not say."), -0.1), Script(queen, -5.0)) == (
        2,
        "".join(queen),
    )


def test_what_declines_or_can_no_longer_win_is_given_up_at_once() -> None:
    long = Script(("[1] Bees",) * 9, -5.0)
    declining = Script((*REFUSAL, *REFUSAL), -0.1)
    short = Script(WAX, -0.1)
    assert _answered(declining, long, short) == (2, "".join(WAX))
    assert declining.is_closed
    assert declining.read == 1
    assert long.is_closed
    assert long.read <= 3


def test_an_answer_beside_refusals_is_given_out_while_it_grows() -> None:
    answer = Script(HONEY, -1.0)
    [first, second] = _asked(2)
    chosen, pieces = surest_answer(Scripted([Script(REFUSAL, 0.0), answer]), [first, second])
    assert chosen is second
    assert answer.read == 1
    assert next(pieces) == HONEY[0]
    pieces.close()
    assert answer.is_closed
    assert list(pieces) == []
    assert pieces.completion.text == HONEY[0]


def test_an_error_frees_all_of_them() -> None:
    class Broken(Script):
        def __next__(self) -> str:
            raise RuntimeError("out of memory")

    other = Script(HONEY, -1.0)
    with pytest.raises(RuntimeError, match="out of memory"):
        _answered(other, Broken(WAX, 0.0))
    assert other.is_closed


@pytest.fixture(scope="module")
def reader() -> LanguageModel:
    """A random model whose configuration names the reader's prompts."""
    model: Any = tiny_model(max_position_embeddings=2048)
    model.config.prompt_format = "reader"
    return LanguageModel(model, byte_tokenizer(), name="tiny-reader")


def test_the_reader_says_to_each_passage_what_it_says_alone_and_the_likeliest_wins(
    reader: LanguageModel, retriever: Retriever
) -> None:
    found = retriever.search(QUESTION, 3)
    prompts = [reader_prompt(QUESTION, [passage]).content for passage in found]
    alone = reader.stream_batch(prompts, max_new_tokens=12)
    texts = [stream.to_end().completion.text for stream in alone]
    best = max(range(3), key=lambda place: alone[place].log_probability)
    rag = Rag(retriever, reader, k=3)
    answer = rag.ask(QUESTION, max_new_tokens=12)
    assert answer.text == texts[best] == reader.generate(prompts[best], max_new_tokens=12).text
    assert answer.passages[0] == found[best]
    assert set(answer.passages) == set(found)
    assert rag.ask(QUESTION, max_new_tokens=12, drafter="nothing").text == answer.text
    assert "".join(rag.stream(QUESTION, max_new_tokens=12)) == answer.text


def test_passages_that_were_read_before_are_not_read_again(reader: LanguageModel, retriever: Retriever) -> None:
    rag = Rag(retriever, reader, k=3, remembered_tokens=100_000)
    assert rag.memory is not None
    first = rag.ask(QUESTION, max_new_tokens=8)
    assert first.steps.prefill_tokens == first.usage.prompt_tokens
    for question in (QUESTION, "How long does honey keep?"):
        again = rag.ask(question, max_new_tokens=8)
        assert again.steps.prefill_tokens < 2 * len(question)
        assert again.text == Rag(retriever, reader, k=3).ask(question, max_new_tokens=8).text
    assert 0 < rag.memory.size < 100_000
    rag.memory.clear()
    assert rag.memory.size == 0


def test_what_is_remembered_is_bounded(reader: LanguageModel, retriever: Retriever) -> None:
    rag = Rag(retriever, reader, k=1, remembered_tokens=400)
    assert rag.memory is not None
    for question in ("honey", "queen", "colonies", "honey"):
        used = rag.ask(question, max_new_tokens=4).usage.total_tokens
        assert rag.memory.size <= 400 + used
    with pytest.raises(ValueError, match="-1"):
        Rag(retriever, reader, remembered_tokens=-1)


def test_a_prompt_of_ones_own_has_all_passages_at_once(reader: LanguageModel, retriever: Retriever) -> None:
    stream = Rag(retriever, reader, k=3, prompt=reader_prompt).stream(QUESTION, max_new_tokens=4)
    assert stream.prompt == reader_prompt(QUESTION, stream.passages)

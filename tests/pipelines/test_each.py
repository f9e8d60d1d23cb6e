"""Each passage by itself: the answer that fits the question best is the answer, and its passage comes first."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.accel import Completion, LanguageModel, PrefixCache, Summary, Usage
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.accel.text.messages import PromptInput
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.each import AskedPassage, surest_answer
from antiphon.pipelines.prompt import DECLINED, Prompt, reader_prompt
from antiphon.pipelines.rag import MAX_NEW_TOKENS
from antiphon.pipelines.relevance import Relevance, relevance_to
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


class Words:
    """A tokenizer of words; with ``is_told`` a word within a sentence is another token than at its beginning."""

    def __init__(self, is_told: bool = True) -> None:
        self._ids: dict[str, int] = defaultdict(lambda: len(self._ids))
        self._is_told = is_told

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._ids[word if self._is_told else word.strip()] for word in re.findall(r" ?\S+", text)]


@dataclass
class Scripted:
    """A model that says what is known beforehand, ``again`` when it is asked a second time."""

    scripts: Sequence[Script]
    again: Sequence[Script] = ()
    tokenizer: Words = field(default_factory=Words)
    given: list[dict[str, Any]] = field(default_factory=list)

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Any,
    ) -> Sequence[Script]:
        self.given.append({**parameters, "prompts": prompts})
        scripts = self.scripts if len(self.given) == 1 else self.again or [Script((), 0.0) for _ in prompts]
        assert len(scripts) == len(prompts) == len(references) == len(prefixes)
        return scripts


def _asked(count: int) -> list[AskedPassage]:
    return [
        AskedPassage(
            Passage.at("a.md", place, "Wax melts."),
            Prompt("?", answers=(DECLINED, "[1] Honey keeps for years.")),
            f"?{place}",
        )
        for place in range(count)
    ]


def _fits(said: Mapping[str, float]) -> Relevance:
    """Relevance that is known beforehand by a word of what is said; of all else it is 0.5."""
    return lambda passage, text: next((fit for word, fit in said.items() if word in text), 0.5)


def _answered(*scripts: Script, **said: float) -> tuple[int, str]:
    """Which passage answers, and what; ``said`` is the relevance of a sentence with this word."""
    asked = _asked(len(scripts))
    surest = surest_answer(Scripted(scripts), asked, _fits(said))
    return asked.index(surest.asked), "".join(surest.pieces)


def test_the_answer_that_fits_best_is_the_answer() -> None:
    wax, honey = Script(WAX, -0.1), Script(HONEY, -0.1)
    assert _answered(wax, Script(REFUSAL, 0.0), honey, Wax=0.6, Honey=0.8) == (2, "".join(HONEY))
    assert _answered(Script(WAX, -0.1), Script(HONEY, -0.1), Wax=0.8, Honey=0.6) == (0, "".join(WAX))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_where_no_answer_fits_a_refusal_stands_and_its_passage_comes_first(place: int) -> None:
    scripts = [Script(WAX, -0.1), Script(HONEY, -0.1)]
    scripts.insert(place, Script(REFUSAL, -4.0))
    assert _answered(*scripts, Wax=0.1, Honey=0.2) == (place, DECLINED)
    assert all(script.is_closed or script.read == len(script.pieces) for script in scripts)


def test_where_no_passage_is_declined_there_is_no_refusal_to_give() -> None:
    assert _answered(Script(WAX, -0.1), Script(HONEY, -0.1), Wax=0.1, Honey=0.2) == (1, "".join(HONEY))


def test_of_several_refusals_the_first_stands() -> None:
    scripts = [Script(REFUSAL, -4.0), Script(WAX, -0.1), Script(REFUSAL, -0.1)]
    assert _answered(*scripts, Wax=0.1) == (0, DECLINED)
    assert scripts[2].is_closed
    assert scripts[2].read == 1


def test_the_first_sentence_alone_is_weighed_without_its_number() -> None:
    weighed: list[str] = []

    def relevance(passage: Passage, text: str) -> float:
        weighed.append(text)
        return 0.5

    scripts = [Script(("[1] Wax melts.", "\n[1] It is", " soft."), -0.1), Script(HONEY, -0.1)]
    surest_answer(Scripted(scripts), _asked(2), relevance)
    assert weighed == ["Wax melts.", "Honey keeps for years."]


def test_what_was_declined_is_asked_again_without_a_refusal() -> None:
    asked = _asked(3)
    model = Scripted([Script(REFUSAL, -0.1), Script(WAX, -0.1), Script(REFUSAL, -0.1)])
    model.again = [Script(WAX, -0.1), Script(HONEY, -0.5)]
    surest = surest_answer(model, asked, _fits({"Wax": 0.1, "Honey": 0.8}), logit_bias={7: 1.0}, seed=3)
    assert (surest.asked, "".join(surest.pieces)) == (asked[2], "".join(HONEY))
    assert [each["prompts"] for each in model.given] == [["?0", "?1", "?2"], ["?0", "?2"]]
    refusing = model.tokenizer.encode(DECLINED)[0]
    assert surest.options == {"logit_bias": {7: 1.0, refusing: -100.0}}
    assert [(each["seed"], each["logit_bias"]) for each in model.given] == [
        (3, {7: 1.0}),
        (3, {7: 1.0, refusing: -100.0}),
    ]


@pytest.mark.parametrize(
    ("said", "fit", "each"), [(HONEY, 0.3, -0.01), (HONEY, 0.9, -2.0), (("[1] Honey", " never spoils."), 0.9, -0.01)]
)
def test_what_it_says_unwillingly_has_to_fit_to_be_likely_and_to_be_quoted(
    said: Sequence[str], fit: float, each: float
) -> None:
    unwilling = Script(said, each)
    model = Scripted([Script(REFUSAL, -0.1)], [unwilling])
    surest = surest_answer(model, _asked(1), _fits({"Honey": fit}))
    assert ("".join(surest.pieces), surest.options) == (DECLINED, {})
    assert unwilling.is_closed


def test_where_a_refusal_begins_as_a_sentence_may_it_is_final() -> None:
    model = Scripted([Script(REFUSAL, -0.1)], [Script(HONEY, -0.1)], Words(is_told=False))
    surest = surest_answer(model, _asked(1), _fits({"Honey": 0.9}))
    assert "".join(surest.pieces) == DECLINED
    assert len(model.given) == 1


def test_of_answers_that_fit_alike_the_likeliest_is_the_answer() -> None:
    assert _answered(Script(REFUSAL, 0.0), Script(WAX, -3.0), Script(HONEY, -1.0)) == (2, "".join(HONEY))
    assert _answered(Script(HONEY, -3.0), Script(WAX, -3.0)) == (1, "".join(WAX))


def test_where_nothing_answers_the_best_passage_declines() -> None:
    assert _answered(Script(REFUSAL, -2.0), Script(REFUSAL, -1.0)) == (0, DECLINED)
    assert _answered(Script((), 0.0)) == (0, "")


def test_nothing_said_is_no_answer_and_an_article_is_no_refusal_yet() -> None:
    queen = ("The", " queen", " lays.")
    assert _answered(Script((), 0.0), Script(("The", " passages do not say."), -0.1), Script(queen, -0.5)) == (
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


def test_an_answer_is_given_out_as_soon_as_its_first_sentence_is_whole() -> None:
    answer = Script(("[1] Honey", " keeps.", "\n[1] Wax", " melts."), -1.0)
    [first, second] = _asked(2)
    surest = surest_answer(Scripted([Script(REFUSAL, 0.0), answer]), [first, second], _fits({}))
    assert surest.asked is second
    assert answer.read == 3
    pieces = surest.pieces
    assert [next(pieces), next(pieces)] == ["[1] Honey", " keeps."]
    pieces.close()
    assert answer.is_closed
    assert list(pieces) == []
    assert pieces.completion.text == "[1] Honey keeps.\n[1] Wax"


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


def test_the_reader_says_to_each_passage_what_it_says_alone_and_the_best_wins(
    reader: LanguageModel, retriever: Retriever
) -> None:
    found = retriever.search(QUESTION, 3)
    prompts = [reader_prompt(QUESTION, [passage]).content for passage in found]
    alone = reader.stream_batch(prompts, max_new_tokens=12)
    texts = [stream.to_end().completion.text for stream in alone]
    relevance = relevance_to(QUESTION, retriever)
    fits = [relevance(*pair) for pair in zip(found, (text.strip().partition("\n")[0] for text in texts), strict=True)]
    best = max(range(3), key=lambda place: fits[place] + 0.2 * alone[place].log_probability)
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


def test_the_command_line_asks_as_python_does(tiny_folder: Path, index_folder: Path, tmp_path: Path) -> None:
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

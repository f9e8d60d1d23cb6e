"""Each passage by itself: the line that answers best begins the answer, and its passage comes first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, PrefixCache, Stream
from antiphon.accel.drafting.continuation_scorer import ContinuationScorer
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.accel.text.messages import PromptInput
from antiphon.integrations.langchain import AntiphonRetriever, ChatAntiphon
from antiphon.pipelines import Rag
from antiphon.pipelines.cli import app
from antiphon.pipelines.cli.ask import ask
from antiphon.pipelines.each import (
    FIRST,
    LINES,
    REACH,
    Measures,
    WeighingModel,
    choose_passages,
    fitting_lines,
    is_enough,
    log_probabilities,
    weight_of,
)
from antiphon.pipelines.prompt import DECLINED, reader_prompt
from antiphon.pipelines.quotes import quotable_lines, quotes_of
from antiphon.pipelines.rag import MAX_NEW_TOKENS
from antiphon.pipelines.relevance import Measure, relevance_to
from antiphon.retrieval import Retriever
from tests.pipelines.asked import HONEY, WAX, asked_of, chosen_of, measures_of
from tests.pipelines.scripted import Scripted

QUESTION = "How many eggs does a queen lay?"


def test_of_lines_that_are_as_likely_the_one_that_answers_best_begins_the_answer() -> None:
    asked = asked_of(WAX, HONEY)
    chosen = chosen_of(asked, {WAX: -1.0, HONEY: -1.0}, Wax=0.6, Honey=2.8)
    assert (chosen.asked, chosen.options) == (asked[1], {"response_prefix": HONEY})
    assert "".join(chosen.answer(Scripted({}), **chosen.options)) == f"{HONEY} It is so."


def test_of_lines_that_answer_as_well_the_likelier_one_begins_the_answer() -> None:
    asked = asked_of(f"{WAX}\n{HONEY}", "[1] Bees fly.")
    chosen = chosen_of(asked, {WAX: -0.1, HONEY: -6.0, "[1] Bees fly.": -8.0})
    assert (chosen.asked, chosen.options) == (asked[0], {"response_prefix": WAX})


@pytest.mark.parametrize(("stop", "stops"), [((), ["\n"]), ("!", ["!", "\n"]), (["!"], ["!", "\n"])])
@pytest.mark.parametrize(("fit", "similar", "likely"), [(0.2, 0.1, -1.0), (0.2, 0.5, -8.0), (-6.0, 0.5, -1.0)])
def test_where_no_line_is_enough_the_passage_of_the_heaviest_declines_and_says_no_more(
    stop: Any, stops: list[str], fit: float, similar: float, likely: float
) -> None:
    asked = asked_of(WAX, HONEY)
    model = Scripted({WAX: likely, HONEY: likely, DECLINED: -0.01 if likely < -1 else -4.0})
    chosen = choose_passages(model, asked, measures_of({"Wax": fit - 0.1, "Honey": fit}, similar), stop=stop)
    assert (chosen.asked, chosen.options) == (asked[1], {"response_prefix": DECLINED, "stop": stops})


def test_what_the_model_would_rather_decline_weighs_less() -> None:
    assert weight_of(0.5, -1.0, -8.0) > weight_of(0.5, -1.0, -0.1)
    assert weight_of(0.5, -1.0, -8.0) > weight_of(0.4, -1.0, -8.0) > weight_of(0.4, -3.0, -8.0)
    assert weight_of(0.5, -1.0, -99.0) == weight_of(0.5, -1.0, -10.0)


@pytest.mark.parametrize(
    ("similarity", "likely", "declining", "is_answer"),
    [
        (0.4, -1.0, -3.0, True),
        (0.3, -1.0, -3.0, False),  # it is not similar
        (0.4, -3.0, -3.0, False),  # it is not likely
        (0.4, -3.0, -0.1, False),  # it would rather decline
        (0.6, -2.4, -0.1, True),  # but this fits, and is what it would say if it did not
        (0.6, -9.0, 0.0, True),  # who declines for certain says nothing of lines
    ],
)
def test_a_line_has_to_be_similar_to_be_likely_and_to_be_said_willingly(
    similarity: float, likely: float, declining: float, is_answer: bool
) -> None:
    assert is_enough(similarity, likely, declining) is is_answer


def test_lines_that_answer_least_are_not_weighed_and_their_passages_not_read() -> None:
    lines = "\n".join(f"[1] Line {place}." for place in range(LINES))
    model = Scripted({DECLINED: -9.0, **dict.fromkeys(lines.splitlines(), -1.0)})
    chosen = choose_passages(model, asked_of(WAX, lines), measures_of({"Wax": -0.1}))
    assert model.read == ["?1"]
    assert chosen.options["response_prefix"] in lines


def test_a_line_of_several_passages_is_weighed_once_in_the_first() -> None:
    model = Scripted({WAX: -0.1, DECLINED: -9.0})
    asked = asked_of(WAX, WAX)
    assert choose_passages(model, asked, measures_of({})).asked is asked[0]
    assert model.read == ["?0"]


def test_a_line_of_several_passages_is_weighed_where_it_answers_best() -> None:
    asked = asked_of(WAX, WAX)
    second = asked[1].passages[0]
    measures = Measures(
        lambda pairs: [float(passage is second) for passage, _ in pairs], lambda pairs: [0.5 for _ in pairs]
    )
    model = Scripted({WAX: -0.1, DECLINED: -9.0})
    assert choose_passages(model, asked, measures).asked is asked[1]
    assert model.read == ["?1"]


def test_lines_that_answer_much_worse_than_the_best_are_not_weighed() -> None:
    model = Scripted({WAX: -1.0, HONEY: -0.1, DECLINED: -9.0})
    asked = asked_of(WAX, HONEY)
    near = choose_passages(model, asked, measures_of({"Wax": REACH - 0.1}))
    assert (near.asked, model.read) == (asked[0], ["?0", "?1"])
    model.read.clear()
    far = choose_passages(model, asked, measures_of({"Wax": REACH + 0.1}))
    assert (far.asked, model.read) == (asked[0], ["?0"])


@pytest.mark.parametrize(("fit", "similar"), [(1.0, 0.5), (2.0, 0.1)])
def test_the_heaviest_line_is_said_where_another_shows_that_there_is_an_answer_or_it_is_heavy_enough(
    fit: float, similar: float
) -> None:
    asked = asked_of(f"{WAX}\n{HONEY}")
    measures = Measures(
        measures_of({"Wax": fit, "Honey": -1.5}).relevance,
        lambda pairs: [0.1 if "Wax" in line else similar for _, line in pairs],
    )
    model = Scripted({WAX: -1.0, HONEY: -1.0, DECLINED: -2.0})
    assert choose_passages(model, asked, measures).options == {"response_prefix": WAX}


@pytest.mark.parametrize("asks", ["How long does honey keep?", '**"Who asks?"**', "蜂蜜能保存多久？", "How?!"])
def test_a_question_is_no_answer(asks: str) -> None:
    asked = asked_of(f"[1] {asks}", HONEY)
    assert [line.text for line in fitting_lines(asked, measures_of({}).relevance)] == [HONEY]
    for code in ("[1] grep -E '(a|b)?' `x?`", r"[1] version: (\d+)?"):
        assert [line.text for line in fitting_lines(asked_of(code), measures_of({}).relevance)] == [code]


def test_passages_without_a_line_are_answered_as_the_model_likes() -> None:
    model = Scripted({})
    asked = asked_of("", "")
    chosen = choose_passages(model, asked, measures_of({}), seed=3)
    assert (chosen.asked, chosen.options, model.read) == (asked[0], {"seed": 3}, [])


@pytest.mark.parametrize("options", [{"response_prefix": "So"}, {"json_schema": {"type": "object"}}])
def test_an_answer_whose_form_was_asked_for_has_it(options: dict[str, Any]) -> None:
    asked = asked_of(WAX, HONEY)
    model = Scripted({WAX: -1.0, HONEY: -0.1, DECLINED: -9.0})
    chosen = choose_passages(model, asked, measures_of({}), **options)
    assert (chosen.asked, chosen.options) == (asked[1], options)


def test_what_was_read_is_what_the_answer_goes_on_from() -> None:
    model, prefixes = Scripted({WAX: -0.1, DECLINED: -9.0}), [PrefixCache()]
    chosen = choose_passages(model, asked_of(WAX), measures_of({}), prefixes, seed=3)
    chosen.answer(model, **chosen.options)
    [given] = model.given
    assert (given["seed"], given["response_prefix"]) == (3, WAX)
    assert given["prefix"] is prefixes[0]


def test_lines_and_the_refusal_fit_into_one_compiled_step() -> None:
    assert (LINES + 1) * (FIRST - 1) <= 63


def test_an_error_frees_all_of_them() -> None:
    class Broken(Scripted):
        def _verify(self, scorer: ContinuationScorer) -> None:
            raise RuntimeError("out of memory")

    model = Broken({})
    with pytest.raises(RuntimeError, match="out of memory"):
        choose_passages(model, asked_of(WAX, HONEY), measures_of({}))
    assert model.streams[0].is_closed


def _likelihood(model: LanguageModel, prompt: Any, text: str) -> float:
    """The log-probability of a text's first tokens as an answer's beginning, by one plain forward."""
    read = list(model.tokenize(prompt).tokens)
    said = model.tokenizer.encode(text, add_special_tokens=False)[:FIRST]
    with torch.no_grad():
        scores = model.model(torch.tensor([read + said])).logits[0].log_softmax(-1)
    return sum(float(scores[len(read) - 1 + place, token]) for place, token in enumerate(said))


def test_one_tree_of_lines_says_what_plain_forwards_say(reader: LanguageModel) -> None:
    asked = asked_of("[1] Wax melts.\n[1] Wax is soft.", HONEY)
    texts = [[*one.lines, DECLINED] for one in asked]
    found = log_probabilities(cast(WeighingModel, reader), asked, texts, [PrefixCache() for _ in asked])
    for one, own, weights in zip(asked, texts, found, strict=True):
        assert weights == pytest.approx([_likelihood(reader, one.tokenized, text) for text in own], abs=1e-3)


def test_a_model_that_verifies_no_tree_is_asked_for_each_line(reader: LanguageModel) -> None:
    class Plain(LanguageModel):
        def stream_batch(self, prompts: Sequence[PromptInput], **parameters: Any) -> list[Stream]:
            return super().stream_batch(prompts, **{**parameters, "num_draft_tokens": 1})

    [asked] = asked_of(f"{WAX}\n{HONEY}")
    plain = Plain(reader.model, reader.tokenizer, name="tiny-reader")
    [found] = log_probabilities(cast(WeighingModel, plain), [asked], [[WAX, HONEY]], [PrefixCache()])
    assert found == pytest.approx([_likelihood(reader, asked.tokenized, text) for text in (WAX, HONEY)], abs=1e-3)


def test_lines_are_weighed_where_every_forward_has_one_shape(reader: LanguageModel) -> None:
    fixed = LanguageModel(reader.model, reader.tokenizer, name="tiny-reader", deterministic=True)
    [asked] = asked_of(f"{WAX}\n{HONEY}")
    [found] = log_probabilities(cast(WeighingModel, fixed), [asked], [[WAX, HONEY]], [PrefixCache()])
    assert found == pytest.approx([_likelihood(reader, asked.tokenized, text) for text in (WAX, HONEY)], abs=1e-3)


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_a_question_that_was_asked_before_weighs_its_lines_alike(engine: Any) -> None:
    model, prefix = LanguageModel(tiny_model(), byte_tokenizer(), name="tiny", engine=engine), PrefixCache()
    [asked] = asked_of(f"{WAX}\n{HONEY}")
    first, again = (
        log_probabilities(cast(WeighingModel, model), [asked], [[WAX, HONEY]], [prefix])[0] for _ in range(2)
    )
    assert first == pytest.approx(again, abs=1e-3)


def test_the_answer_begins_with_the_heaviest_line_and_goes_on_as_the_model_likes(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heavy(question: str) -> Measure:
        """As relevance, so high that what a model of random weights finds unlikely is an answer still."""
        return lambda said: [20 + fit for fit in relevance_to(question)(said)]

    monkeypatch.setattr("antiphon.pipelines.rag.relevance_to", heavy)
    found = retriever.search(QUESTION, 3)
    prompts = [reader_prompt(QUESTION, [passage]) for passage in found]
    lines = [(place, line) for place, one in enumerate(prompts) for line in one.answers[-1].splitlines()]
    pairs = [(found[place], quotes_of(line)[0].sentence) for place, line in lines]
    nats = [
        (_likelihood(reader, prompts[place].content, line), _likelihood(reader, prompts[place].content, DECLINED))
        for place, line in lines
    ]
    assert len(lines) <= LINES
    weights = [weight_of(fit, *one) for fit, one in zip(heavy(QUESTION)(pairs), nats, strict=True)]
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


def test_lines_of_two_passages_that_weigh_nearly_the_same_begin_one_answer(
    reader: LanguageModel, retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = retriever.search(QUESTION, 3)
    wanted = {passage.text: quotable_lines([passage])[0][0].sentence for passage in found[1:]}
    monkeypatch.setattr(
        "antiphon.pipelines.rag.relevance_to",
        lambda question: lambda said: [99.0 if wanted.get(passage.text) == line else 0.0 for passage, line in said],
    )
    monkeypatch.setattr("antiphon.pipelines.each._NEARLY", 50.0)
    monkeypatch.setattr("antiphon.pipelines.each.is_enough", lambda *_: True)
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
    kept = Rag(retriever, reader, k=3, remembered_tokens=100_000)
    assert [kept.ask(QUESTION, max_new_tokens=300).text for _ in range(2)] == [answer.text] * 2


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

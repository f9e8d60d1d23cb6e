"""Recipes of the reader: training examples, their logits, and the judgement of answers."""

from collections import defaultdict

import pytest
import torch

from antiphon.accel import Summary, Usage
from antiphon.accel.decoding.stats import FinishReason
from antiphon.accel.text.messages import encode_prompt
from antiphon.pipelines.answer import Answer
from antiphon.pipelines.data.demo import demo_documents
from antiphon.pipelines.prompt import reader_prompt
from antiphon.pipelines.quotes import Quote, quotable_lines
from antiphon.retrieval import Passage
from recipes.reader.corpus import read_corpus
from recipes.reader.encoding import encode_example
from recipes.reader.evaluate import JudgedAnswer
from recipes.reader.example import Question, TrainingExample
from recipes.reader.multi_passage import MultiPassageExamples
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.written_questions import WrittenQuestion
from recipes.relevance.examples import RelevanceExamples
from tests.tiny import EOS, byte_tokenizer, tiny_model

PASSAGES = (Passage.at("a.txt", 0, "Bees dance. They sing."), Passage.at("b.txt", 0, "Wax melts."))
WANTED = Question("Who dances?", (Quote(1, "Bees dance."),))


def _judged(question: Question, text: str, finish: FinishReason = "stop") -> JudgedAnswer:
    steps = Summary(steps=3, tokens=11, seconds=2.0)
    return JudgedAnswer(question, Answer(question.text, text, (), PASSAGES, Usage(1, 11), steps, finish))


@pytest.mark.parametrize(
    ("text", "verbatim", "passage", "sentence"),
    [
        ("[1] Bees dance.", True, True, True),
        ("[1] They sing.", True, True, False),
        ("[2] Bees dance.", False, False, False),
        ("[2] Wax melts.", True, False, False),
        ("[3] Bees dance.", False, False, False),
        ("[1] Bees danced.", False, True, False),
        ("[1] Bees", False, True, False),
        ("[1] They sing.\n[1] Bees dance.", True, True, True),
        ("[1] Bees dance.\n[2] Invented.", False, True, True),
        ("Bees dance.", False, False, False),
    ],
)
def test_an_answer_is_judged_by_its_quotes(text: str, verbatim: bool, passage: bool, sentence: bool) -> None:
    judged = _judged(WANTED, text)
    assert (judged.is_verbatim, judged.is_right_passage, judged.is_right_sentence) == (verbatim, passage, sentence)


TOKENIZER = byte_tokenizer()
LESSON = TrainingExample(
    (Passage.at("a.txt", 0, "Bees dance."), Passage.at("b.txt", 0, "Wax melts.")),
    (
        Question("Who dances?", (Quote(1, "Bees dance."),)),
        Question("What melts", (Quote(2, "Wax melts."), Quote(1, "Bees dance."))),
        Question("Who sings?"),
    ),
)


def test_each_branch_has_the_logits_of_its_own_prompt() -> None:
    model = tiny_model()
    encoded = encode_example(LESSON, TOKENIZER)
    got = model(
        input_ids=encoded.tokens,
        position_ids=encoded.positions,
        attention_mask=encoded.mask,
        use_cache=False,
        logits_to_keep=encoded.sources,
    ).logits[0]
    at = 0
    for question in LESSON.questions:
        prompt = encode_prompt(reader_prompt(question.text, LESSON.passages).content, TOKENIZER)
        answer = [*TOKENIZER.encode(question.answer, add_special_tokens=False), EOS]
        plain = model(input_ids=torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
        assert encoded.targets[at : at + len(answer)].tolist() == answer
        torch.testing.assert_close(got[at : at + len(answer)], plain, atol=2e-4, rtol=0)
        at += len(answer)
    assert at == len(encoded.targets)


def _lines(passage: Passage) -> list[str]:
    return [quote.sentence for quote in quotable_lines([passage])[0]]


def test_pairs_are_of_every_kind_and_always_the_same() -> None:
    examples = _examples()
    pairs = examples.pairs(3, 60)
    assert pairs == _examples().pairs(3, 60) != examples.pairs(4, 60)
    answered = [one for one in pairs if one.lines]
    without = [one for one in pairs if one.without]
    assert 15 < len(answered) < 45
    assert [one.lines for one in without] == [()] * len(without) != []
    assert all(set(one.lines) | set(one.without) <= set(_lines(one.passage)) for one in pairs)
    kinds: dict[str, set[str]] = defaultdict(set)
    for one in (one for own in examples.asked.values() for one in own):
        kinds[one.kind].add(one.question)
    assert kinds["answered"] == {"Which option gives the mast?", "Which option gives the keel?"}
    assert len(kinds["made"]) > 2
    assert "Who built it?" in kinds["refused"]
    declined = {one.question for one in pairs if not one.lines and not one.without}
    assert declined == {one.question for own in examples.asked.values() for one in own if not one.lines}


def _examples() -> RelevanceExamples:
    passages = [
        Passage.at(f"{folder}/{name}.md", 0, f"## {name}\n\n- `{name}`: Sets the {name} of it.\n- `no-{name}`: None.")
        for folder in ("docs", "other")
        for name in ("mast", "keel", "jib")
    ]
    asked = [
        WrittenQuestion(f"docs/{name}", f"Which option gives the {name}?", (f"`{name}`: Sets the {name} of it.",), ())
        for name in ("mast", "keel")
    ]
    return RelevanceExamples(
        passages, [*asked, WrittenQuestion("docs/mast", "Who built it?", (), ("`no-mast`: None.",))], seed=2
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [MultiPassageExamples, SinglePassageExamples])
def test_answers_are_lines_of_the_passages_and_other_questions_are_declined(
    make: type[MultiPassageExamples] | type[SinglePassageExamples],
) -> None:
    examples, again = (make(read_corpus(demo_documents()[1:3]), seed=3) for _ in range(2))
    declined = 0
    for example in map(examples.example, range(30)):
        lines = {line for own in quotable_lines(example.passages) for line in own}
        assert any(question.quotes for question in example.questions)
        assert all(lines.issuperset(question.quotes) for question in example.questions)
        declined += sum(not question.quotes for question in example.questions)
    assert declined > 2
    assert examples.example(3) == again.example(3)

"""Training examples of the reader: their answers are lines of their passages, and other questions are declined."""

import pytest

from antiphon.pipelines.data.demo import demo_documents
from antiphon.pipelines.quotes import quotable_lines
from recipes.reader.corpus import read_corpus
from recipes.reader.multi_passage import MultiPassageExamples
from recipes.reader.single_passage import SinglePassageExamples

pytestmark = pytest.mark.slow


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

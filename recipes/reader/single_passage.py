"""Training examples of one passage each, with questions that its lines answer and questions that they do not.

The reader is asked about each passage alone, so most of its questions at run time are not answered by the passage. The
questions to decline are those that a keyword search would bring to the passage. Examples are deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random

from antiphon.pipelines.quotes import Quote
from antiphon.retrieval import Passage
from recipes.reader.corpus import page_name
from recipes.reader.example import Question, TrainingExample
from recipes.reader.multi_passage import (
    MultiPassageExamples,
    deduplicated,
    has_all_long_words,
    is_answered_by_other,
    lines_of_passage,
)
from recipes.reader.rule_questions import PassageQuestion, sentence_questions
from recipes.reader.structure_questions import STRUCTURED, structure_questions
from recipes.reader.written_questions import WrittenQuestion

_NEAR = 8  # passages that the keyword search returns for a question
_MOST = 6  # maximum number of questions that the passage answers
_BY_RULE = 3  # maximum number of generated questions about a passage that has written ones
_STRUCTURED = 4  # structure questions per passage that are searched for as near misses of other passages
_ROWS = 512  # questions per search
_TRIES = 2000


class SinglePassageExamples:
    """Generates the examples of a corpus, one passage each.

    Args:
        passages: Passages of the corpus.
        written: Written questions; those about other passages are left out.
        seed: Random seed.
        short: Share of examples whose passage is cut to a few sentences.

    Attributes:
        near: By passage number, the questions about other passages that a keyword search brings to it.
    """

    def __init__(
        self, passages: Sequence[Passage], written: Sequence[WrittenQuestion] = (), *, seed: int = 0, short: float = 0.0
    ) -> None:
        self._many = MultiPassageExamples(passages, written, seed=seed)
        self.passages, self.seed, self.short = passages, seed, short
        random = Random(f"{seed} structure")
        self._structured = {
            index: asked for index, passage in enumerate(passages) if (asked := structure_questions(passage, random))
        }
        self.anchors = self._many.anchors
        self.structured = [
            index for index, asked in self._structured.items() if any(one.kind in STRUCTURED for one in asked)
        ]
        self.near: Mapping[int, list[PassageQuestion]] = self._near_misses(random)
        self.folders = self._many.folders

    def example(self, number: int, *, is_written: bool = False) -> TrainingExample:
        """Return an example.

        Args:
            number: Number of the example.
            is_written: Choose a passage with written questions; otherwise one with structure.

        Raises:
            ValueError: no question could be made from many passages.
        """
        random = Random(f"{self.seed} {number} {is_written}")
        for _ in range(_TRIES):
            if is_written and self.folders:
                index = random.choice(random.choice(self.folders))
            else:
                index = random.choice(self.structured or range(len(self.passages)))
            if example := self._about(index, random):
                return example
        raise ValueError(f"Of {_TRIES} passages none gives a question; give documents of English prose.")

    def about(self, index: int) -> TrainingExample:
        """Return an example about passage ``index``; empty if it yields no question."""
        return self._about(index, Random(f"{self.seed} about {index}")) or TrainingExample((), ())

    def asked_about(self, index: int, by_rule: int, random: Random) -> list[PassageQuestion]:
        """Return the written questions about a passage and some generated ones about its structure.

        Args:
            index: Number of the passage.
            by_rule: Maximum number of generated questions.
            random: Random numbers.
        """
        made = self._structured.get(index, [])
        return [*self._many.asked.get(index, ()), *random.sample(made, min(by_rule, len(made)))]

    def _about(self, index: int, random: Random) -> TrainingExample | None:
        passage = self.passages[index]
        if self.short and index in self._many.asked and random.random() < self.short:
            passage = self._many.excerpt(index, random)
        answerable = self._answerable(index, passage, random)[:_MOST]
        declined = self._declined(index, passage, random)[: max(2, len(answerable) + random.choice((-1, 0, 1)))]
        questions = answerable + declined
        random.shuffle(questions)
        return TrainingExample((passage,), tuple(questions)) if answerable else None

    def _answerable(self, index: int, passage: Passage, random: Random) -> list[Question]:
        lines = lines_of_passage(passage)
        known = [one for one in self._many.asked.get(index, ()) if one.sentences]
        made = self._structured.get(index, []) + sentence_questions(passage.text, random)
        random.shuffle(known)
        random.shuffle(made)
        made.sort(key=lambda one: one.kind == "keywords")
        asked = known + (made[:_BY_RULE] if known else made)
        fitting = [one for one in asked if lines.issuperset(one.sentences)]
        return deduplicated(
            [Question(one.text, tuple(Quote(1, line) for line in one.sentences), one.kind) for one in fitting]
        )

    def _declined(self, index: int, passage: Passage, random: Random) -> list[Question]:
        lines = lines_of_passage(passage)
        own = self._many.asked.get(index, ())
        refused = [one for one in own if not one.sentences or not lines.intersection(one.sentences)]
        near = [one for one in self.near.get(index, ()) if not is_answered_by_other(one, (passage,))]
        far = self._many.asked.get(random.choice(self.anchors), [])[:1] if self.anchors else []
        far = [
            one
            for one in far
            if not is_answered_by_other(one, (passage,)) and not has_all_long_words(one.text, (passage,))
        ]
        for questions in (refused, near):
            random.shuffle(questions)
        chosen = refused[:2] + near + far
        return [
            Question(one.text, (), f"near-{one.kind}") for one in chosen if not is_answered_by_other(one, (passage,))
        ]

    def _near_misses(self, random: Random) -> dict[int, list[PassageQuestion]]:
        """Map passages to the questions about other passages that a keyword search brings to them."""
        pairs = [(index, one) for index, asked in self._many.asked.items() for one in asked if one.sentences]
        for index, asked in self._structured.items():
            pairs += [(index, one) for one in random.sample(asked, min(_STRUCTURED, len(asked)))]
        found: dict[int, list[PassageQuestion]] = defaultdict(list)
        for first in range(0, len(pairs), _ROWS):
            part = pairs[first : first + _ROWS]
            for (own, one), nearest in zip(part, self._many.nearest([one.text for _, one in part], _NEAR), strict=True):
                for index in nearest:
                    if self._is_another(own, index, one):
                        found[index].append(one)
        return found

    def _is_another(self, own: int, index: int, one: PassageQuestion) -> bool:
        """Return whether a passage is not the question's own.

        For a generated question it must not be on the same page either.
        """
        if self.passages[index].text == self.passages[own].text:
            return False
        return index != own and (
            one.kind == "written" or page_name(self.passages[index]) != page_name(self.passages[own])
        )

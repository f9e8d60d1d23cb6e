"""Passages to examples: each with its neighbours, the questions they answer and some that they do not.

Deterministic: example ``number`` of a seed is always the same. Knows nothing of tokens or of models.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from antiphon.pipelines.quotes import Quote, quotable_lines, quoted_form
from antiphon.retrieval import Passage
from antiphon.retrieval.segmentation import sentences
from recipes.reader.corpus import page_name
from recipes.reader.example import Question, TrainingExample
from recipes.reader.rule_questions import PassageQuestion, quotable, sentence_questions
from recipes.reader.written_questions import WrittenQuestion

PASSAGES = (1, 2, 3, 3, 3, 4, 5)
"""How many passages a example has, drawn from these."""

SHORT = 0.3
"""The share of examples whose passages are cut to a few sentences, where a reader is trained."""

QUESTIONS = 12
_UNANSWERABLE = (1, 2, 2, 3)
_NEIGHBOURS = 12
_BY_RULE = 4  # questions made by rule beside those that people asked, at most
_KEYWORDS = 1  # questions of a example that are bare keywords, at most
_TRIES, _MOST_TRIES = 20, 2000
_SENTENCES = (1, 1, 2, 3)
_SAME = 0.6  # of a sentence's words in another: they say the same
_WORD = re.compile(r"\w+")


class MultiPassageExamples:
    """The examples of a corpus: rules make most questions, people wrote the rest.

    ``written`` are questions about passages of this corpus; those about others are left out. In a share ``short`` of
    the examples passages are cut to a few sentences each, as notes and short texts have them.
    """

    def __init__(
        self, passages: Sequence[Passage], written: Sequence[WrittenQuestion] = (), *, seed: int = 0, short: float = 0.0
    ) -> None:
        if not passages:
            raise ValueError("There are no passages to make examples of; give more documents, or more of their pages.")

        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

        self.passages = passages
        self.seed, self.short = seed, short
        self._words = TfidfVectorizer(sublinear_tf=True, stop_words="english")
        vectors = self._words.fit_transform(
            f"{passage.metadata.get('title', '')} {passage.text}" for passage in passages
        )
        self._vectors = vectors.tocsr()
        self.asked = _by_passage(passages, written)
        self.anchors = sorted(self.asked)
        self.folders = _by_folder(passages, self.anchors)

    def example(self, number: int, *, is_written: bool = False) -> TrainingExample:
        """TrainingExample ``number``, around a passage that people asked about where ``is_written`` and there is one.

        Every folder that has such passages has its turn as often as the others.

        Raises:
            ValueError: of many passages none gives a question.
        """
        random = Random(f"{self.seed} {number} {is_written}")
        for _ in range(_MOST_TRIES):
            part = random.choice(self.folders) if is_written and self.folders else range(len(self.passages))
            if example := self._around(random.choice(part), random):
                return example
        raise ValueError(
            f"Of {_MOST_TRIES} passages none has a sentence that a question could be made of; "
            "give documents of English prose."
        )

    def about(self, number: int) -> TrainingExample:
        """A example around passage ``anchors[number]``, one that people asked about; empty if it gives no question."""
        random = Random(f"{self.seed} about {number}")
        tries = (self._around(self.anchors[number], random) for _ in range(_TRIES))
        return next((example for example in tries if example), TrainingExample((), ()))

    def nearest(self, questions: Sequence[str], count: int) -> list[list[int]]:
        """For each question the numbers of the ``count`` passages that share its words, best first."""
        scores = (self._words.transform(questions) @ self._vectors.T).tocsr()
        return [_best(scores[row], count) for row in range(len(questions))]

    def _around(self, anchor: int, random: Random) -> TrainingExample | None:
        near = self._neighbours(anchor)
        count = random.choice(PASSAGES)
        chosen = [anchor, *random.sample(near[: 2 * count], min(count - 1, len(near)))]
        random.shuffle(chosen)
        passages = tuple(self.passages[index] for index in chosen)
        if self.short and random.random() < self.short:
            passages = tuple(self.excerpt(index, random) for index in chosen)
        answerable = self._answerable(chosen, passages, random)
        if not answerable:
            return None
        others = [index for index in near if index not in chosen] + [random.randrange(len(self.passages))]
        declined = self._refusals(chosen, passages, anchor, random) + self._foreign(others, passages, random)
        declined = declined[: random.choice(_UNANSWERABLE)]
        questions = answerable[: QUESTIONS - len(declined)] + declined
        random.shuffle(questions)
        return TrainingExample(passages, tuple(questions))

    def _neighbours(self, anchor: int) -> list[int]:
        scores = (self._vectors @ self._vectors[anchor].T).toarray().ravel()
        count = min(_NEIGHBOURS, len(scores))
        best = scores.argpartition(-count)[-count:]
        text = self.passages[anchor].text
        ranked = sorted(best.tolist(), key=lambda index: -scores[index])
        return [index for index in ranked if index != anchor and self.passages[index].text != text]

    def _answerable(self, chosen: Sequence[int], passages: Sequence[Passage], random: Random) -> list[Question]:
        """WrittenQuestion questions first, then made ones, no two about the same sentences."""
        made: list[Question] = []
        for number, (index, passage) in enumerate(zip(chosen, passages, strict=True), start=1):
            asked = sentence_questions(passage.text, random)
            random.shuffle(asked)
            lines = lines_of_passage(passage)
            known = [one for one in self.asked.get(index, ()) if one.sentences and lines.issuperset(one.sentences)]
            for one in known + asked:
                if not is_answered_by_other(one, passages, number - 1):
                    quotes = tuple(Quote(number, sentence) for sentence in one.sentences)
                    made.append(Question(one.text, quotes, one.kind))
        random.shuffle(made)
        written = [question for question in made if question.kind == "written"]
        by_rule = [question for question in made if question.kind != "written"]
        return deduplicated(written + (by_rule[:_BY_RULE] if written else by_rule))

    def excerpt(self, index: int, random: Random) -> Passage:
        """A few sentences of a passage, one that people asked about among them; half of them without their heading."""
        passage = self.passages[index]
        spans = list(sentences(passage.text))
        asked = {one.sentences[0] for one in self.asked.get(index, ()) if one.sentences}
        wanted = [at for at, span in enumerate(spans) if quoted_form(passage.text[slice(*span)]) in asked]
        prose = [at for at, span in enumerate(spans) if quotable(passage.text[slice(*span)])]
        count = random.choice(_SENTENCES)
        first = max(0, random.choice(wanted or prose or range(len(spans))) - random.randrange(count))
        start, end = spans[first][0], spans[min(first + count, len(spans)) - 1][1]
        metadata = passage.metadata if random.random() < 0.5 else {}
        return Passage.at(passage.source, passage.start + start, passage.text[start:end], metadata)

    def _refusals(
        self, chosen: Sequence[int], passages: Sequence[Passage], anchor: int, random: Random
    ) -> list[Question]:
        """Questions that people asked about the anchor, and those whose answers were cut off."""
        refused = [one for one in self.asked.get(anchor, ()) if not one.sentences]
        for index, passage in zip(chosen, passages, strict=True):
            lines = lines_of_passage(passage)
            refused += [one for one in self.asked.get(index, ()) if not lines.issuperset(one.sentences)]
        random.shuffle(refused)
        return [Question(one.text, (), "written-no") for one in refused if not is_answered_by_other(one, passages)]

    def _foreign(self, others: Sequence[int], passages: Sequence[Passage], random: Random) -> list[Question]:
        """Questions that passages nearby answer and these do not."""
        written = [one for index in others for one in self.asked.get(index, ()) if one.sentences]
        asked = written + [one for index in others for one in sentence_questions(self.passages[index].text, random)[:2]]
        asked = [one for one in asked if one.kind != "list" and not is_answered_by_other(one, passages)]
        asked = [one for one in asked if not has_all_long_words(one.text, passages)]
        random.shuffle(asked)
        asked.sort(key=lambda one: one.kind == "keywords")
        return [Question(one.text, (), f"near-{one.kind}") for one in asked]


def _best(scores: Any, count: int) -> list[int]:
    """The columns of a sparse row with the highest values, best first."""
    order = scores.data.argsort()[::-1][:count]
    return [int(scores.indices[place]) for place in order]


def _by_passage(passages: Sequence[Passage], written: Sequence[WrittenQuestion]) -> Mapping[int, list[PassageQuestion]]:
    """The written questions by the passage that holds all their sentences; those about other corpora are left out."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, passage in enumerate(passages):
        places[page_name(passage)].append(index)
    found: dict[int, list[PassageQuestion]] = defaultdict(list)
    lines = {
        index: lines_of_passage(passages[index])
        for name in {one.page for one in written}
        for index in places.get(name, ())
    }
    for one in written:
        for index in places.get(one.page, ()):
            if lines[index].issuperset({*one.place, *one.sentences}):
                found[index].append(PassageQuestion(one.question, one.sentences, "written"))
                break
    return found


def _by_folder(passages: Sequence[Passage], anchors: Sequence[int]) -> list[list[int]]:
    folders: dict[str, list[int]] = defaultdict(list)
    for index in anchors:
        folders[page_name(passages[index]).partition("/")[0]].append(index)
    return list(folders.values())


def lines_of_passage(passage: Passage) -> set[str]:
    """What of a passage can be quoted, as it is said."""
    return {quote.sentence for quote in quotable_lines([passage])[0]}


def deduplicated(questions: Sequence[Question]) -> list[Question]:
    """One question for each answer, and few that are bare keywords."""
    seen: set[tuple[Quote, ...]] = set()
    kept, keywords = [], 0
    for question in questions:
        if question.quotes in seen:
            continue
        if question.kind == "keywords":
            if keywords == _KEYWORDS:
                continue
            keywords += 1
        seen.add(question.quotes)
        kept.append(question)
    return kept


def is_answered_by_other(asked: PassageQuestion, passages: Sequence[Passage], but: int | None = None) -> bool:
    """Whether a passage other than number ``but`` nearly says a sentence that answers the question."""
    others = [set(_words(passage.text)) for index, passage in enumerate(passages) if index != but]
    wanted = [words for sentence in asked.sentences if (words := set(_words(sentence)))]
    return any(len(words & other) > _SAME * len(words) for words in wanted for other in others)


def has_all_long_words(question: str, passages: Sequence[Passage]) -> bool:
    """Whether one passage has every long word of a question, so that it may well answer it."""
    words = {word for word in _words(question) if len(word) > 4}
    return any(words <= set(_words(passage.text)) for passage in passages)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text) if len(word) > 3]

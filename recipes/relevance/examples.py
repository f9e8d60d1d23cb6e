"""Passages and what was asked about them: which of their lines answers, or that none does. Deterministic.

The questions are those of the reader's examples: people asked most of them, rules make those about structure, and some
are about other passages, to which a search by words brings them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from antiphon.retrieval import Passage
from recipes.reader.corpus import page_name
from recipes.reader.multi_passage import lines_of_passage
from recipes.reader.single_passage import SinglePassageExamples
from recipes.reader.written_questions import WrittenQuestion

TURNS: Mapping[str, int] = {
    "encyclopedia": 5,
    "npm": 7,
    "manuals": 3,
    "python": 3,
    "everyday": 3,
    "unanswered": 5,
    "node": 3,
    "rust": 2,
    "sqlite": 2,
    "django": 2,
    "curl": 2,
    "catch2": 2,
}
"""How often each folder of the corpus has its turn; others once."""

KINDS: Mapping[str, float] = {"answered": 0.43, "made": 0.07, "without": 0.14, "refused": 0.18, "near": 0.18}
"""How often a pair is of each kind: a question that people asked and the passage answers, such a one that a rule made,
one whose answer is left out, one that the passage only seems to answer, and one about another passage. A folder that
has none of a kind gives questions that are answered instead, or answers that are left out."""

_BY_RULE, _NEAR = 3, 3  # questions about structure, and near misses, of each passage
_WITHOUT_QUESTIONS = 6000  # passages that nobody asked about, for what rules ask of them
_OF_A_PAGE = 4  # passages of one page in a batch, so that what is wrong is hard to tell from what is right
_ANSWERED, _DECLINED = 6, 3  # questions of a passage in one batch
_TRIES = 10  # pages that are drawn for a passage, at most


@dataclass(frozen=True, slots=True)
class LineExample:
    """A question about a passage, and those of its lines that answer it; none where the passage does not say.

    ``is_near`` says that the question is about another passage, and only shares words with this one, ``is_made`` that
    a rule made it.
    """

    passage: Passage
    question: str
    lines: tuple[str, ...]
    is_near: bool = False
    is_made: bool = False

    @property
    def kind(self) -> str:
        """Of `KINDS` that of the question and its whole passage."""
        if self.lines:
            return "made" if self.is_made else "answered"
        return "near" if self.is_near else "refused"


@dataclass(frozen=True, slots=True)
class PairExample:
    """A question and a passage that are read together, without some of its lines; ``lines`` of the others answer."""

    passage: Passage
    question: str
    lines: tuple[str, ...]
    without: tuple[str, ...] = ()


class RelevanceExamples:
    """What was asked about the passages of a corpus, by passage.

    Raises:
        ValueError: none of the passages answers a question.
    """

    def __init__(self, passages: Sequence[Passage], written: Sequence[WrittenQuestion], *, seed: int = 0) -> None:
        random = Random(f"{seed} relevance")
        examples = SinglePassageExamples(passages, written, seed=seed)
        self.asked: dict[Passage, list[LineExample]] = {}
        structured = sorted(examples.structured)
        others = random.sample(structured, min(_WITHOUT_QUESTIONS, len(structured)))
        for index in sorted({*examples.anchors, *others}):
            if asked := list(_about(examples, index, random)):
                self.asked[passages[index]] = asked
        self._seed = seed
        self._pools = _pools(one for asked in self.asked.values() for one in asked)
        self._folders = _by_folder([one for one, asked in self.asked.items() if any(each.lines for each in asked)])
        if not self._folders:
            raise ValueError(
                f"Of {len(passages)} passages none answers a question; give more documents, or questions about them."
            )
        self._turns = [name for name in self._folders for _ in range(TURNS.get(name, 1))]

    def batch(self, number: int, passages: int) -> list[LineExample]:
        """Batch ``number``: what was asked about so many passages, or a few more, some of them of the same page."""
        random = Random(f"{self._seed} batch {number}")
        chosen: dict[Passage, None] = {}
        for page in islice(self._pages(random), _TRIES * passages):
            chosen |= dict.fromkeys(random.sample(page, min(_OF_A_PAGE, len(page))))
            if len(chosen) >= passages:
                break
        return [one for passage in chosen for one in self._some(passage, random)]

    def pairs(self, number: int, count: int) -> list[PairExample]:
        """So many pairs, always the same: about half of the passages answer their question.

        The others lack the lines that do, are asked what they nearly say, or what is said elsewhere.
        """
        random = Random(f"{self._seed} pairs {number}")
        return [self._pair(random) for _ in range(count)]

    def _pair(self, random: Random) -> PairExample:
        pools = self._pools[random.choice(self._turns)]
        kind = random.choices([*KINDS], [*KINDS.values()])[0]
        if kind in ("refused", "near") and not pools[kind]:
            kind = "without"
        answered = pools["answered"] or pools["made"]
        one = random.choice(pools[kind] or answered)
        if kind == "without":
            return PairExample(one.passage, one.question, (), without=one.lines)
        return PairExample(one.passage, one.question, one.lines)

    def _pages(self, random: Random) -> Iterator[list[Passage]]:
        while True:
            yield random.choice(self._folders[random.choice(self._turns)])

    def _some(self, passage: Passage, random: Random) -> list[LineExample]:
        answered = [one for one in self.asked[passage] if one.lines]
        declined = [one for one in self.asked[passage] if not one.lines]
        return random.sample(answered, min(_ANSWERED, len(answered))) + random.sample(
            declined, min(_DECLINED, len(declined))
        )


def _about(examples: SinglePassageExamples, index: int, random: Random) -> Iterator[LineExample]:
    passage = examples.passages[index]
    lines = lines_of_passage(passage)
    if not lines:
        return
    for one in examples.asked_about(index, _BY_RULE, random):
        answering = tuple(line for line in one.sentences if line in lines)
        if answering or not one.sentences:
            yield LineExample(passage, one.text, answering, is_made=one.kind != "written")
    near = [one for one in examples.near.get(index, ()) if one.kind == "written"]
    for one in random.sample(near, min(_NEAR, len(near))):
        yield LineExample(passage, one.text, (), is_near=True)


def _by_folder(passages: Sequence[Passage]) -> dict[str, list[list[Passage]]]:
    """The passages of each page, by the folder of the page."""
    pages: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        pages[page_name(passage)].append(passage)
    folders: dict[str, list[list[Passage]]] = defaultdict(list)
    for name, own in pages.items():
        folders[name.partition("/")[0]].append(own)
    return dict(folders)


def _pools(asked: Iterable[LineExample]) -> dict[str, dict[str, list[LineExample]]]:
    """The questions by the folder of their page, and by their kind."""
    pools: dict[str, dict[str, list[LineExample]]] = defaultdict(lambda: defaultdict(list))
    for one in asked:
        pools[page_name(one.passage).partition("/")[0]][one.kind].append(one)
    return pools

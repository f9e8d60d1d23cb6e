"""Passages and what was asked about them: which of their lines answers, or that none does. Deterministic.

The questions are those of the reader's lessons: people asked most of them, rules make those about structure, and some
are about other passages, to which a search by words brings them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from antiphon.pipelines.training.reader.corpus import page_name
from antiphon.pipelines.training.reader.lessons import lines_of_passage
from antiphon.pipelines.training.reader.single import SinglePassageLessons
from antiphon.pipelines.training.reader.written import Written
from antiphon.retrieval import Passage

TURNS: Mapping[str, int] = {"encyclopedia": 5, "npm": 5, "manuals": 5, "python": 4, "everyday": 3}
"""How often each folder of the corpus has its turn; others once."""

_BY_RULE, _NEAR = 3, 3  # questions about structure, and near misses, of each passage
_WITHOUT_QUESTIONS = 6000  # passages that nobody asked about, for what rules ask of them
_OF_A_PAGE = 4  # passages of one page in a batch, so that what is wrong is hard to tell from what is right
_ANSWERED, _DECLINED = 6, 3  # questions of a passage in one batch
_TRIES = 10  # pages that are drawn for a passage, at most


@dataclass(frozen=True, slots=True)
class AskedLines:
    """A question about a passage, and those of its lines that answer it; none where the passage does not say."""

    passage: Passage
    question: str
    lines: tuple[str, ...]


class Examples:
    """What was asked about the passages of a corpus, by passage.

    Raises:
        ValueError: none of the passages answers a question.
    """

    def __init__(self, passages: Sequence[Passage], written: Sequence[Written], *, seed: int = 0) -> None:
        random = Random(f"{seed} relevance")
        lessons = SinglePassageLessons(passages, written, seed=seed)
        self.asked: dict[Passage, list[AskedLines]] = {}
        structured = sorted(lessons.structured)
        others = random.sample(structured, min(_WITHOUT_QUESTIONS, len(structured)))
        for index in sorted({*lessons.anchors, *others}):
            if asked := list(_about(lessons, index, random)):
                self.asked[passages[index]] = asked
        self._seed = seed
        self._folders = _by_folder([one for one, asked in self.asked.items() if any(each.lines for each in asked)])
        if not self._folders:
            raise ValueError(
                f"Of {len(passages)} passages none answers a question; give more documents, or questions about them."
            )

    def batch(self, number: int, passages: int) -> list[AskedLines]:
        """Batch ``number``: what was asked about so many passages, or a few more, some of them of the same page."""
        random = Random(f"{self._seed} batch {number}")
        chosen: dict[Passage, None] = {}
        for page in islice(self._pages(random), _TRIES * passages):
            chosen |= dict.fromkeys(random.sample(page, min(_OF_A_PAGE, len(page))))
            if len(chosen) >= passages:
                break
        return [one for passage in chosen for one in self._some(passage, random)]

    def _pages(self, random: Random) -> Iterator[list[Passage]]:
        names = [name for name in self._folders for _ in range(TURNS.get(name, 1))]
        while True:
            yield random.choice(self._folders[random.choice(names)])

    def _some(self, passage: Passage, random: Random) -> list[AskedLines]:
        answered = [one for one in self.asked[passage] if one.lines]
        declined = [one for one in self.asked[passage] if not one.lines]
        return random.sample(answered, min(_ANSWERED, len(answered))) + random.sample(
            declined, min(_DECLINED, len(declined))
        )


def _about(lessons: SinglePassageLessons, index: int, random: Random) -> Iterator[AskedLines]:
    passage = lessons.passages[index]
    lines = lines_of_passage(passage)
    if not lines:
        return
    for one in lessons.asked_about(index, _BY_RULE, random):
        answering = tuple(line for line in one.sentences if line in lines)
        if answering or not one.sentences:
            yield AskedLines(passage, one.text, answering)
    near = [one for one in lessons.near.get(index, ()) if one.kind == "written"]
    for one in random.sample(near, min(_NEAR, len(near))):
        yield AskedLines(passage, one.text, ())


def _by_folder(passages: Sequence[Passage]) -> dict[str, list[list[Passage]]]:
    """The passages of each page, by the folder of the page."""
    pages: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        pages[page_name(passage)].append(passage)
    folders: dict[str, list[list[Passage]]] = defaultdict(list)
    for name, own in pages.items():
        folders[name.partition("/")[0]].append(own)
    return dict(folders)

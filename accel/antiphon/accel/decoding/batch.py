"""Several texts that one thread decodes together, so many at a time. Knows neither models nor drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from antiphon.accel.decoding.loop import Loop
from antiphon.accel.decoding.running_text import Text
from antiphon.accel.decoding.stats import Step


class Batch:
    """Decodes up to ``size`` texts at once; when one ends, the next one that waits begins.

    Each text is drafted for, verified and ended by itself, so it says what it would say alone; only the forwards are
    shared, and with them the seconds of its steps.

    Raises:
        ValueError: ``size`` is below 1.
    """

    def __init__(self, loop: Loop, *, size: int = 8) -> None:
        if size < 1:
            raise ValueError(f"The batch size is {size}; it must be at least 1.")
        self.size = size
        self._loop = loop
        self._waiting: deque[Text] = deque()
        self._active: list[Text] = []
        self._steps: dict[Text, deque[Step | Exception]] = {}
        self._at_end: dict[Text, Callable[[], object]] = {}

    @property
    def active(self) -> Sequence[Text]:
        """The texts that are being decoded now."""
        return tuple(self._active)

    def add(self, text: Text, at_end: Callable[[], object] | None = None) -> Iterator[Step]:
        """The steps of one more text. Asking for one runs forwards for all; dropping the iterator ends the text.

        ``at_end`` is called when the text has ended, though nobody may have read its last steps yet.
        """
        self._waiting.append(text)
        self._steps[text] = deque()
        if at_end is not None:
            self._at_end[text] = at_end
        return self._of(text)

    def _of(self, text: Text) -> Iterator[Step]:
        steps = self._steps[text]
        try:
            while True:
                while not steps:
                    self._advance()
                step = steps.popleft()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.finish:
                    return
        finally:
            self._leave(text)

    def _advance(self) -> None:
        """One more step of everybody, and the first one of those that can begin."""
        while self._waiting and len(self._active) < self.size:
            self._active.append(self._waiting.popleft())
        texts = list(self._active)
        for text, step in zip(texts, self._loop.advance(texts), strict=True):
            self._steps[text].append(step)
            if isinstance(step, Exception) or step.finish:
                self._active.remove(text)
                self._at_end.pop(text, _nothing)()

    def _leave(self, text: Text) -> None:
        """Free the place of a text that has ended, or that nobody reads any more."""
        self._loop.leave(text)
        for place in (self._active, self._waiting):
            if text in place:
                place.remove(text)


def _nothing() -> None:
    """Nobody wants to know."""

"""One prompt decoded once: what is decoded, by what, and what it took. Knows no way to do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt in token ids, the texts that drafts may come from, and the answer to replay, where one is."""

    prompt: tuple[int, ...]
    references: tuple[str, ...] = ()
    answer: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class MethodRun:
    """One job decoded once; times are seconds of the wall clock.

    ``first`` is from the call until the first tokens are there: the prefill. ``steps`` and everything else that is
    counted begins after it. ``reading`` is what was done for drafts before it, such as an index of the references: it
    counts as decoding, for plain decoding has no use for it. A first draft that rides in the prefill's forward, as
    prompt lookup's does, is free. ``forward`` is spent in the model itself, where a forward is done when it returns
    (None elsewhere); ``drafting`` and ``looping`` are what our own steps say of their drafter, and of everything
    that is not their forward. ``drafted`` is None where a program does not tell it.
    """

    tokens: tuple[int, ...]
    seconds: float
    first: float
    steps: int
    drafted: int | None
    reading: float = 0.0
    drafting: float | None = None
    forward: float | None = None
    looping: float | None = None

    @property
    def decoding(self) -> float:
        """Seconds of the decoding phase."""
        return self.seconds - self.first + self.reading


class Method(Protocol):
    """A way to decode under the name that a command line gives it.

    Calling it decodes one job greedily, ``limit`` new tokens at most.
    """

    @property
    def name(self) -> str:
        """The name."""

    @property
    def is_peer(self) -> bool:
        """Whether it is another program's: what people could take instead."""

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode the job and say what it took."""

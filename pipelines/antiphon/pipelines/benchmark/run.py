"""Interfaces of the speed benchmark: a job, a decoding method, and the measurements of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from antiphon.accel import LanguageModel


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to decode.

    Attributes:
        references: Texts that drafts may be copied from.
    """

    prompt: tuple[int, ...]
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodRun:
    """Measurements of decoding one job once; times are seconds of the wall clock.

    Attributes:
        tokens: Emitted token ids.
        first_token_seconds: Time until the prefill emits the first tokens.
        steps: Forward passes after the prefill.
        drafted: Draft tokens verified after the prefill; None if the program does not report them.
        setup_seconds: Drafting work before the first token, such as indexing the references. It counts as decoding
            time, because plain decoding does not need it. Drafting for the prefill, as in prompt lookup, is not
            counted.
        draft_seconds: Time in the drafter, as Antiphon's steps report it.
    """

    tokens: tuple[int, ...]
    seconds: float
    first_token_seconds: float
    steps: int
    drafted: int | None
    setup_seconds: float = 0.0
    draft_seconds: float | None = None

    @property
    def decode_seconds(self) -> float:
        """Decoding time, including the drafting work before the first token (``setup_seconds``)."""
        return self.seconds - self.first_token_seconds + self.setup_seconds


class Method(Protocol):
    """A way to decode one prompt greedily."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def is_baseline(self) -> bool:
        """Whether the method is another program, with which Antiphon is compared."""

    def __call__(self, language_model: LanguageModel, job: Job, limit: int) -> MethodRun:
        """Decode a job, at most ``limit`` new tokens, and measure it."""

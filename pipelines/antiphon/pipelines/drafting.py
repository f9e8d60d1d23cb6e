"""How a text was decoded, for display: what each forward added, and which tokens a draft had guessed.

Tells when a token was certain and who had guessed it, never why the model chose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from antiphon.accel import Origin
from antiphon.pipelines.rendering.parts import Part

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Drafting:
    """A text with the origins of its tokens, as `antiphon.accel.Completion` has them.

    It shows itself, in a notebook and in the terminal (``rich.print``): parts by forward, and in each what a draft had
    guessed against the model's own token. Chen et al., *Faster In-Context Learning for LLMs via N-Gram Trie Speculative
    Decoding*, draw their texts so.
    """

    text: str
    origins: Sequence[Origin]

    @property
    def parts(self) -> list[Part]:
        """The text, forward by forward; one that added only special tokens has no part."""
        parts = [self._part(step, list(origins)) for step, origins in groupby(self.origins, lambda each: each.step)]
        return [part for part in parts if part.drafted or part.own]

    @property
    def drafted(self) -> int:
        """How many tokens a draft had guessed."""
        return sum(origin.is_drafted for origin in self.origins)

    @property
    def steps(self) -> int:
        """How many forwards the text took."""
        return self.origins[-1].step + 1 if self.origins else 0

    @property
    def caption(self) -> str:
        """The figures in one sentence."""
        tokens = len(self.origins)
        return f"{tokens} tokens in {self.steps} steps; drafts had guessed {self.drafted} of them."

    def _part(self, step: int, origins: Sequence[Origin]) -> Part:
        drafted, own = (
            "".join(self.text[each.start : each.end] for each in origins if each.is_drafted is is_drafted)
            for is_drafted in (True, False)
        )
        return Part(step + 1, len(origins), drafted, own)

    def _repr_html_(self) -> str:
        from antiphon.pipelines.rendering.html import drafting_html

        return drafting_html(self.parts, self.caption)

    def __rich__(self) -> RenderableType:
        from antiphon.pipelines.rendering.terminal import drafting_text

        return drafting_text(self.parts, self.caption)

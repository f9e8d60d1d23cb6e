"""The decoding trace of a text, for display: what each forward pass added, and which tokens were drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from antiphon.accel import Origin
from antiphon.pipelines.rendering.segments import DecodingStep

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class DecodingTrace:
    """A text with the origins of its tokens.

    A notebook and ``rich.print`` show, for each forward pass, the accepted draft tokens and the model's own token, as
    in Chen et al., *Faster In-Context Learning for LLMs via N-Gram Trie Speculative Decoding*.
    """

    text: str
    origins: Sequence[Origin]

    @property
    def steps(self) -> list[DecodingStep]:
        """The text that each forward pass added; passes that added only special tokens are left out."""
        steps = [self._step(step, list(origins)) for step, origins in groupby(self.origins, lambda each: each.step)]
        return [step for step in steps if step.drafted or step.own]

    @property
    def num_drafted(self) -> int:
        """The number of accepted draft tokens."""
        return sum(origin.is_drafted for origin in self.origins)

    @property
    def num_steps(self) -> int:
        """The number of forward passes."""
        return self.origins[-1].step + 1 if self.origins else 0

    @property
    def caption(self) -> str:
        """The counts in one sentence."""
        return f"{len(self.origins)} tokens in {self.num_steps} steps; {self.num_drafted} of them were drafted."

    def _step(self, step: int, origins: Sequence[Origin]) -> DecodingStep:
        drafted, own = (
            "".join(self.text[each.start : each.end] for each in origins if each.is_drafted is is_drafted)
            for is_drafted in (True, False)
        )
        return DecodingStep(step + 1, len(origins), drafted, own)

    def _repr_html_(self) -> str:
        from antiphon.pipelines.rendering.html import trace_html

        return trace_html(self.steps, self.caption)

    def __rich__(self) -> RenderableType:
        from antiphon.pipelines.rendering.terminal import trace_text

        return trace_text(self.steps, self.caption)

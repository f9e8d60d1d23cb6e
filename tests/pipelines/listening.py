"""The default drafter with ears: what a text was begun with."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters import Blend
from antiphon.accel.testing.drafters import RecordingDrafter


class Listening(RecordingDrafter):
    """Drafts as the default does, and writes down prompt and references too."""

    def __init__(self) -> None:
        super().__init__(Blend())
        self.prompt: list[int] = []
        self.references: list[list[int]] = []

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        self.prompt, self.references = list(prompt), [list(reference) for reference in references]
        super().begin(prompt, references)

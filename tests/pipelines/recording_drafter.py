"""The default drafter, which also records its prompt and references."""

from collections.abc import Sequence

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters import Blend
from tests.accel.adversarial_drafters import RecordingDrafter


class RecordingBlend(RecordingDrafter):
    """A `Blend` that records its prompt and references, and the drafts and logits of each step."""

    def __init__(self) -> None:
        super().__init__(Blend())
        self.prompt: list[int] = []
        self.references: list[list[int]] = []

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> None:
        """Record the prompt and the references. See `Drafter.begin`."""
        self.prompt, self.references = list(prompt), [list(reference) for reference in references]
        super().begin(prompt, references)

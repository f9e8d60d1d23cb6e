"""Write a drafter: it proposes tokens that the model verifies, so a bad drafter costs time but never changes a word.

python examples/custom_drafter.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

from antiphon.accel import EMPTY, Accepted, Draft, LanguageModel
from antiphon.accel.drafting.draft import Logits, Tokens, chain


class BigramDrafter:
    """Proposes the token that followed the last token most recently in the prompt, the references or the answer."""

    def begin(self, prompt: Tokens, references: Sequence[Tokens]) -> Draft | None:
        """Forget the previous request and read this one's texts."""
        self._next: dict[int, int] = {}
        for tokens in (*references, prompt):
            self._next.update(pairwise(tokens))
        return None

    def propose(self, context: Tokens, budget: int) -> Draft:
        """Return a chain of at most `budget` tokens, each the successor of the one before it."""
        self._next.update(pairwise(context[-8:]))
        tokens, last = [], context[-1]
        while len(tokens) < budget and last in self._next:
            last = self._next[last]
            tokens.append(last)
        return chain(tokens, [0.5**depth for depth in range(1, len(tokens) + 1)]) if tokens else EMPTY

    def observe(self, draft: Draft, accepted: Accepted, logits: Logits | None) -> None:
        """Learn nothing: the successors are read from the context."""


def main() -> None:
    """Generate with the drafter above and with none, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a name on the hub")
    arguments = parser.parse_args()

    model = LanguageModel.from_pretrained(arguments.model, dtype="float32")
    prompt = "One, two, three, four. One, two, three, four. One, two,"
    drafted = model.generate(prompt, drafter=BigramDrafter, max_new_tokens=40)
    plain = model.generate(prompt, drafter="nothing", max_new_tokens=40)

    print(drafted.text)
    print(f"{drafted.steps.tokens_per_step:.2f} tokens per step")
    print("identical text:", drafted.text == plain.text)


if __name__ == "__main__":
    main()

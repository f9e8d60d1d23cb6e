"""Find the tokens that end a text: from the generation settings, the tokenizer and the chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.thinking import thinking_format

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_ANSWER = "PROBE-ANSWER"


class EndTokens:
    """The tokens that end a model's texts.

    Fine-tuned models often have one end token in their settings, but were trained to write another.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._probed: tuple[str, int | None] = ("", None)  # the chat template, and the token after its answers

    def ids(self, configured: int | Sequence[int] | None, more: Iterable[int] = ()) -> tuple[int, ...]:
        """Return the ids of the end tokens, beginning with the ids in the generation settings."""
        given = [configured] if isinstance(configured, int) else configured or ()
        found = [*given, self._tokenizer.eos_token_id, self._end_of_turn(), *more]
        known = [token for token in found if isinstance(token, int) and 0 <= token < self._vocab_size]
        return tuple(dict.fromkeys(known))

    def _end_of_turn(self) -> int | None:
        """Return the token that the chat template writes after an answer, found by rendering an answer."""
        template = str(self._tokenizer.chat_template or "")
        if self._probed[0] != template:
            self._probed = (template, _token_after_answer(self._tokenizer))
        return self._probed[1]


def _token_after_answer(tokenizer: PreTrainedTokenizerBase) -> int | None:
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = apply_chat_template(turns, (), tokenizer, add_generation_prompt=False)
    except ValueError:
        return None
    after = text.rpartition(_ANSWER)[2].lstrip()
    known = {**tokenizer.get_added_vocab(), str(tokenizer.eos_token): tokenizer.eos_token_id}
    thinking = thinking_format(tokenizer)
    kept = {mark: token for mark, token in known.items() if thinking is None or mark != thinking.end}
    marks = [mark for mark, token in kept.items() if token is not None and after.startswith(mark)]
    return known[max(marks, key=len)] if marks else None

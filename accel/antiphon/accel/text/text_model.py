"""Whoever continues texts and answers messages, here or elsewhere: what may be asked of any. Runs nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from antiphon.accel.text.completion import Completion, TextStream
from antiphon.accel.text.messages import CountedPrompt, PromptInput, TokenizedPrompt
from antiphon.accel.text.parameters import Parameters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antiphon.accel.decoding.prefix_cache import PrefixCache

__all__ = ["TextModel"]


class TextModel(Protocol):
    """A `LanguageModel`, which runs here, or a `RemoteLanguageModel`, which a server runs."""

    @property
    def name(self) -> str:
        """What the model is called."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's tokenizer; None where only its server has one."""

    @property
    def context_window(self) -> int | None:
        """How many tokens, prompt and completion together, the model takes; None where nobody says."""

    @property
    def takes_messages(self) -> bool:
        """Whether messages can be written for the model."""

    @property
    def prompt_format(self) -> str | None:
        """The form of prompts that the model was made for; None where none is named."""

    def tokenize(self, prompt: PromptInput) -> TokenizedPrompt | CountedPrompt:
        """The prompt and how many tokens it has, to be handed on to `stream`."""

    def generate(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Completion:
        """The whole completion."""

    def generate_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        seeds: Sequence[int] | None = None,
        batch_size: int = 8,
        **parameters: Unpack[Parameters],
    ) -> list[Completion]:
        """The completion of each prompt."""

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> TextStream:
        """The completion piece by piece."""

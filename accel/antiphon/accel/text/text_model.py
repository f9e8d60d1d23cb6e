"""The interface of language models, local or on a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from antiphon.accel.text.completion import Completion, TextStream
from antiphon.accel.text.messages import CountedPrompt, PromptInput, ReferenceInput, TokenizedPrompt
from antiphon.accel.text.parameters import Parameters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antiphon.accel.decoding.prefix_cache import PrefixCache


class TextModel(Protocol):
    """A language model: `LanguageModel` runs in this process, `RemoteLanguageModel` on a server."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's tokenizer; None if only its server has one."""

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens of prompt and completion together; None if unknown."""

    @property
    def takes_messages(self) -> bool:
        """Whether prompts may be messages, because the model has a chat template or its server accepts messages."""

    @property
    def prompt_format(self) -> str | None:
        """Name of the prompt format for which the model was trained; None if unknown."""

    @property
    def num_parameters(self) -> int | None:
        """Number of the model's weights; None if unknown."""

    def tokenize(self, prompt: PromptInput) -> TokenizedPrompt | CountedPrompt:
        """Return the prompt with its number of tokens; the result can be passed in place of the prompt."""

    def generate(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Completion:
        """Return the completion of a prompt.

        Args:
            references: Texts that the completion may repeat; drafts are copied from them.
            prefix: Prefix cache of a conversation, reused for the common prefix.
            parameters: Parameters of generation, see `Settings`.
        """

    def generate_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[ReferenceInput]] = (),
        seeds: Sequence[int] | None = None,
        batch_size: int = 8,
        **parameters: Unpack[Parameters],
    ) -> list[Completion]:
        """Return the completion of each prompt, in the order of the prompts.

        Args:
            references: Reference texts for each prompt; empty: no references.
            seeds: Random seed for each prompt; None: the parameter ``seed`` for all.
            parameters: Parameters of generation, see `Settings`.
        """

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> TextStream:
        """Return the completion as a stream of text pieces.

        Args:
            references: Texts that the completion may repeat; drafts are copied from them.
            prefix: Prefix cache of a conversation, reused for the common prefix.
            parameters: Parameters of generation, see `Settings`.
        """

"""The methods that LangChain requires of every language model, chat or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.exceptions import ContextOverflowError

from antiphon.accel.text.messages import PromptInput
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.integrations.generation_fields import GenerationFields
from antiphon.integrations.model_call import ModelCall
from antiphon.retrieval import Passage


class ContextOverflowLengthError(ContextLengthError, ContextOverflowError):
    """Raised for a prompt that is too long.

    It is derived from LangChain's own error for this case, so LangChain's fallbacks and middleware
    recognize it.
    """


class AntiphonBaseModel(GenerationFields):
    """A base class that counts tokens and names the model in caches and traces. List it before LangChain's class."""

    @property
    def _llm_type(self) -> str:
        return "antiphon"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return self.cache_parameters()

    def text_call(self, prompt: PromptInput, passages: tuple[Passage, ...], given: Mapping[str, Any]) -> ModelCall:
        """Prepare a call with a prompt; see `GenerationFields.text_call`. LangChain's ``ls_`` arguments are ignored."""
        kept = {name: value for name, value in given.items() if not name.startswith("ls_")}
        return replace(super().text_call(prompt, passages, kept), context_error=ContextOverflowLengthError)

    def get_token_ids(self, text: str) -> list[int]:
        """Tokenize a text with the model's own tokenizer, without special tokens.

        Raises:
            ValueError: the model runs on a server, and no tokenizer was given.
        """
        if self.language_model.tokenizer is None:
            raise ValueError(f"The model {self.model!r} runs on a server; give its RemoteLanguageModel a tokenizer=.")
        return list(self.language_model.tokenizer.encode(text, add_special_tokens=False))

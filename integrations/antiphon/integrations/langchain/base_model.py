"""The methods that LangChain requires of every language model, chat or not."""

from __future__ import annotations

from typing import Any

from antiphon.integrations.generation_fields import GenerationFields


class AntiphonBaseModel(GenerationFields):
    """Identity and token counting for caches and traces; precedes LangChain's base class in the MRO."""

    @property
    def _llm_type(self) -> str:
        return "antiphon"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return self.cache_parameters()

    def get_token_ids(self, text: str) -> list[int]:
        """Tokenize a text with the model's own tokenizer, without special tokens.

        Raises:
            ValueError: the model runs on a server, and no tokenizer was given.
        """
        if self.language_model.tokenizer is None:
            raise ValueError(f"The model {self.model!r} runs on a server; give its RemoteLanguageModel a tokenizer=.")
        return list(self.language_model.tokenizer.encode(text, add_special_tokens=False))

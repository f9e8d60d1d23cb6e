"""What LangChain asks any language model, chat or not, of one that is Antiphon's."""

from __future__ import annotations

from typing import Any

from antiphon.integrations.fields import GenerationFields


class LocalModel(GenerationFields):
    """A local model as a cache, a trace and a counter of tokens see it; stands before LangChain's own base."""

    @property
    def _llm_type(self) -> str:
        return "antiphon"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return self.told()

    def get_token_ids(self, text: str) -> list[int]:
        """The token ids of a text, by the model's own tokenizer.

        Raises:
            ValueError: the model runs on a server, and was given none.
        """
        if self.language_model.tokenizer is None:
            raise ValueError(f"The model {self.model!r} runs on a server; give its RemoteLanguageModel a tokenizer=.")
        return list(self.language_model.tokenizer.encode(text, add_special_tokens=False))

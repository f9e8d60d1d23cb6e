"""Builds the request that `generate` prepares from tokenized prompts and the settings of one text. Decodes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from antiphon.accel.decoding.grammar import JsonGrammar
from antiphon.accel.decoding.request import Request, prepare
from antiphon.accel.decoding.score_processors import forced_prefix, penalties
from antiphon.accel.text.parameters import Settings

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel.decoding.prefix_cache import PrefixCache


class RequestBuilder:
    """Builds requests for one model and its tokenizer.

    Args:
        model: The causal model.
        tokenizer: Its tokenizer.
        name: Name of the model in error messages.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self._vocab_size: int = model.config.get_text_config(decoder=True).vocab_size
        end = self._end_tokens()["eos_token_id"]
        self._json = JsonGrammar(tokenizer, self._vocab_size, end[0] if isinstance(end, list) else end)

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens, prompt and completion together; None if the model sets no limit."""
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return window if isinstance(window, int) and window > 0 else None

    def build(self, tokens: Sequence[int], settings: Settings, prefix: PrefixCache | None = None) -> Request:
        """Return the request for one text.

        Args:
            tokens: Token ids of the prompt.
            settings: How to generate.
            prefix: Prefix cache of the conversation; its cache is taken out.

        Raises:
            ValueError: The prompt fills the context window, or a setting does not fit the model.
        """
        limit = min(settings.max_new_tokens, self._remaining(len(tokens)))
        processors = penalties(
            settings.presence_penalty,
            settings.frequency_penalty,
            settings.logit_bias,
            len(tokens),
            self._vocab_size,
        )
        processors += forced_prefix(self.prefix_tokens(settings.response_prefix), len(tokens))
        # The schema comes last, so that no other processor can override it.
        processors += self._json.processors(settings.json_schema, len(tokens), limit)
        # The cache is taken out when nothing can be refused any more: a refused request would lose it.
        cache = None if prefix is None else prefix.take(self.model, tokens)
        return self._prepare(tokens, limit, processors, settings, past_key_values=cache)

    def build_certified(self, tokens: Sequence[int], emitted: int, settings: Settings) -> Request:
        """Return the request that a greedy completion is compared with; `certify` uses its logits processors.

        Args:
            tokens: Token ids of the prompt.
            emitted: Number of emitted tokens.
            settings: Repetition penalty and response prefix of the completion.
        """
        processors = forced_prefix(self.prefix_tokens(settings.response_prefix), len(tokens))
        return self._prepare(tokens, max(emitted, 1), processors, settings)

    def prefix_tokens(self, response_prefix: str) -> list[int]:
        """Return the tokens of a response prefix; the names of special tokens in it are ordinary text."""
        if not response_prefix:
            return []
        return list(self.tokenizer.encode(response_prefix, add_special_tokens=False, split_special_tokens=True))

    def generator(self, seed: int | None) -> torch.Generator:
        """Return a new random generator with this seed; None: with a random seed."""
        generator = torch.Generator(self.model.device)
        return generator.manual_seed(generator.seed() if seed is None else seed)

    def _prepare(
        self, tokens: Sequence[int], limit: int, processors: LogitsProcessorList, settings: Settings, **more: Any
    ) -> Request:
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return prepare(
            self.model,
            ids,
            attention_mask=torch.ones_like(ids),  # without a mask, pad tokens in a prompt would count as padding
            max_new_tokens=limit,
            logits_processor=processors,
            **settings.generate_kwargs,
            **self._end_tokens(),
            **more,
        )

    def _remaining(self, prompt_tokens: int) -> int:
        """Return how many tokens fit after the prompt."""
        window = self.context_window
        if window is None:
            return 2**31
        if prompt_tokens >= window:
            raise ValueError(
                f"The prompt has {prompt_tokens} tokens and the context window of {self.name!r} holds {window}; "
                "shorten the prompt, or give fewer passages, so that at least one token can follow."
            )
        return window - prompt_tokens

    def _end_tokens(self) -> dict[str, Any]:
        """Return the end-of-sequence tokens: all of the model's generation settings, else the tokenizer's."""
        settings = self.model.generation_config
        end = settings.eos_token_id if settings and settings.eos_token_id is not None else self.tokenizer.eos_token_id
        padding = settings.pad_token_id if settings else None
        first = end[0] if isinstance(end, list) else end
        return {"eos_token_id": end, "pad_token_id": first if padding is None else padding}

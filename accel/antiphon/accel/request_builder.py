"""Builds requests from prompts and settings: to generate, to score, to certify. Decodes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList

from antiphon.accel.certify import emitted_ids
from antiphon.accel.continuation_scores import ScoreRequest
from antiphon.accel.decoding.generation import Generation
from antiphon.accel.decoding.grammar import JsonGrammar
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.prefix_cache import PrefixCache, common_length
from antiphon.accel.decoding.request import Request, prepare
from antiphon.accel.decoding.score_processors import penalties
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.text.completion import Completion
from antiphon.accel.text.messages import (
    PromptInput,
    ReferenceInput,
    TokenizedPrompt,
    begin_answer,
    check_references,
    tokenize_prompt,
)
from antiphon.accel.text.parameters import Settings, check, check_lengths, check_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


CONTEXT_TOKENS = 64
"""Number of last prompt tokens that are decoded with the text after a response prefix, so that spaces are right."""


@dataclass(frozen=True, slots=True)
class StartedRequest:
    """A request that is ready to be decoded.

    Attributes:
        generation: The request.
        settings: Its settings.
        prefix: Its prefix cache.
        prompt: Its prompt, with the response prefix.
        response_prefix_tokens: Number of tokens that the response prefix added to the prompt.
    """

    generation: Generation
    settings: Settings
    prefix: PrefixCache | None
    prompt: TokenizedPrompt
    response_prefix_tokens: int

    @property
    def context(self) -> tuple[int, ...]:
        """The last tokens of the prompt if there is a response prefix, for the detokenizer."""
        return self.prompt.tokens[-CONTEXT_TOKENS:] if self.settings.response_prefix else ()


@dataclass(frozen=True, slots=True)
class CertifiedText:
    """Prompt and emitted tokens of a completion, and the logits processors that they were chosen with."""

    tokens: list[int]
    prompt_tokens: int
    processors: LogitsProcessorList


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

    def start(
        self,
        prompt: PromptInput,
        references: Sequence[ReferenceInput],
        settings: Settings,
        prefix: PrefixCache | None,
        *,
        options: DecodingOptions,
        table: RecyclingTable | None,
    ) -> StartedRequest:
        """Return a request that is ready to be decoded. The caller holds the engine's lock.

        Args:
            prompt: The prompt.
            references: Texts that drafts are copied from.
            settings: How to generate.
            prefix: Prefix cache of the conversation; its cache is taken out.
            options: How to decode.
            table: Recycling table of the request; None for none.

        Raises:
            ValueError, TypeError: As `LanguageModel.stream`.
        """
        read = tokenize_prompt(prompt, self.tokenizer)
        begun = begin_answer(read, settings.response_prefix, self.tokenizer)
        check_references(references)
        sources = [read.tokens_of(each) or each for each in references]
        request = self.build(begun.tokens, settings, prefix)
        options = options.with_num_draft_tokens(settings.num_draft_tokens)
        options = options if settings.drafter is None else replace(options, drafter=settings.drafter)
        if table is not None and options.reproducible:
            table = RecyclingTable(self.name)  # a separate table for this request
        generation = Generation(
            request,
            sources,
            self.tokenizer,
            self.generator(settings.seed) if settings.is_sampled else None,
            options,
            table if prefix is None else prefix.tenant,
            recycling=False if table is None else table,
        )
        added = begun.count - common_length(read.tokens, begun.tokens)
        return StartedRequest(generation, settings, prefix, begun, added)

    def scored(
        self,
        prompts: Sequence[PromptInput],
        continuations: Sequence[Sequence[str]],
        first: int | None,
        prefixes: Sequence[PrefixCache],
    ) -> list[ScoreRequest]:
        """Return the prompts with the continuations to score, tokenized.

        Args:
            prompts: The prompts.
            continuations: Texts for each prompt.
            first: Number of first tokens of each continuation that are scored; None: all.
            prefixes: The prefix cache of each prompt; empty for none.

        Raises:
            ValueError, TypeError: As `LanguageModel.score_batch`.
        """
        check("first", first, first is None or (isinstance(first, int) and first > 0), "1 or more, or None for all")
        caches: list[PrefixCache | None] = list(prefixes) or [None] * len(prompts)
        check_lengths(len(prompts), continuations=continuations, prefixes=caches)
        each = zip(prompts, continuations, caches, strict=True)
        return [self._scored(prompt, texts, first, cache) for prompt, texts, cache in each]

    def _scored(
        self, prompt: PromptInput, continuations: Sequence[str], first: int | None, prefix: PrefixCache | None
    ) -> ScoreRequest:
        tokens, encode = tokenize_prompt(prompt, self.tokenizer).tokens, self.tokenizer.encode
        texts = [encode(text, add_special_tokens=False)[:first] for text in check_texts("continuations", continuations)]
        longest, window = max(map(len, texts), default=0), self.context_window
        if window is not None and len(tokens) + longest > window:
            raise ValueError(
                f"The prompt has {len(tokens)} tokens and a continuation {longest}, and the context window of "
                f"{self.name!r} holds {window}; shorten them, or score only the first tokens (first=)."
            )
        return ScoreRequest(tokens, texts, prefix)

    def build(self, tokens: Sequence[int], settings: Settings, prefix: PrefixCache | None = None) -> Request:
        """Return the request for one text.

        Args:
            tokens: Token ids of the prompt, with those of the response prefix.
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
        # The schema comes last, so that no other processor can override it.
        processors += self._json.processors(settings.answer_schema, len(tokens), limit)
        # The cache is taken out when nothing can be refused any more: a refused request would lose it.
        cache = None if prefix is None else prefix.take(self.model, tokens)
        return self._prepare(tokens, limit, processors, settings, past_key_values=cache)

    def certified(
        self,
        prompt: PromptInput,
        completion: Completion | Sequence[int] | str,
        repetition_penalty: float,
        response_prefix: str,
    ) -> CertifiedText:
        """Return a greedy completion as the arguments of `antiphon.accel.certify.certify`.

        Args:
            prompt: The prompt.
            completion: A completion, token ids, or a text.
            repetition_penalty: Penalty of token ids or a text.
            response_prefix: Response prefix of token ids, which do not contain it, or of a text.

        Raises:
            ValueError: As `LanguageModel.certify`.
        """
        if isinstance(completion, Completion):
            if completion.temperature:
                raise ValueError(
                    f"The completion was sampled, at temperature {completion.temperature:g}: its tokens were drawn and "
                    "need not be the best. Certify a greedy one, at temperature 0."
                )
            repetition_penalty, response_prefix = completion.repetition_penalty, completion.response_prefix
        elif isinstance(completion, str):
            starts = completion.startswith(response_prefix)
            check("completion", completion, starts, f"a text that starts with the response prefix {response_prefix!r}")
            completion = completion.removeprefix(response_prefix)
        begun = begin_answer(tokenize_prompt(prompt, self.tokenizer), response_prefix, self.tokenizer)
        emitted = emitted_ids(begun, completion, self.tokenizer)
        settings = Settings(repetition_penalty=repetition_penalty)
        request = self._prepare(begun.tokens, max(len(emitted), 1), LogitsProcessorList(), settings)
        return CertifiedText([*begun.tokens, *emitted], begun.count, request.processors)

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

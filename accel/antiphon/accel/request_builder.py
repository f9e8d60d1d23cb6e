"""Build requests from prompts and settings. Decodes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList

from antiphon.accel.constraints.grammar import JsonGrammar
from antiphon.accel.constraints.penalties import penalties
from antiphon.accel.decoding.model_request import ModelRequest, prepare
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.prefix_cache import PrefixCache
from antiphon.accel.decoding.stats import Step, TokenLogprob
from antiphon.accel.decoding.tokens import collect_logprobs
from antiphon.accel.drafting.draft import common_length
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.text.completion import Stream
from antiphon.accel.text.end_tokens import EndTokens
from antiphon.accel.text.messages import (
    PromptInput,
    ReferenceInput,
    begin_answer,
    check_references,
    tokenize_prompt,
    with_template_variables,
)
from antiphon.accel.text.parameters import ContextLengthError, Settings
from antiphon.accel.text.thinking import ThinkingStart
from antiphon.accel.thinking_control import ThinkingControl

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


CONTEXT_TOKENS = 64
"""Number of last prompt tokens that are decoded with the text after a response prefix, so that spaces are right."""


OpenStream = Callable[[Iterator[Step]], Stream]
"""Returns the stream of a request's text, given the steps of the request."""


class RequestBuilder:
    """Builds requests for one model and its tokenizer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self._vocab_size: int = model.config.get_text_config(decoder=True).vocab_size
        self._end = EndTokens(tokenizer, self._vocab_size)
        self._json = JsonGrammar(tokenizer, self._vocab_size)

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
    ) -> tuple[ModelRequest, OpenStream]:
        """Return a request that is ready to be decoded, and a function that converts its steps to a stream.

        The caller holds the engine's lock.

        Args:
            prefix: Prefix cache of the conversation; the request takes its KV cache.
            table: Recycling table of the request; None: no table.

        Raises:
            ValueError, TypeError: As `LanguageModel.stream`.
        """
        prompt = with_template_variables(prompt, settings.thinking, settings.template_variables)
        read = tokenize_prompt(prompt, self.tokenizer)
        begun = begin_answer(read, settings.response_prefix, self.tokenizer)
        check_references(references)
        options = options.with_num_draft_tokens(settings.num_draft_tokens)
        make = partial(
            ModelRequest,
            references=[read.tokens_of(reference) or reference for reference in references],
            tokenizer=self.tokenizer,
            generator=self.generator(settings.seed) if settings.is_sampled else None,
            options=options if settings.drafter is None else replace(options, drafter=settings.drafter),
            tenant=table if prefix is None else prefix.tenant,
            recycling=False if table is None else table,
        )
        request = self.build(begun.tokens, settings, make, prefix, begun.thinking)
        open_stream = partial(self._open_stream, request, settings, prefix)
        added = begun.count - common_length(read.tokens, begun.tokens)
        return request, partial(
            open_stream,
            prompt_tokens=begun.count,
            response_prefix_tokens=added,
            context=begun.tokens[-CONTEXT_TOKENS:] if settings.response_prefix else (),
            thinking=begun.thinking,
            weights=options.weights or "",
        )

    def _open_stream(
        self,
        request: ModelRequest,
        settings: Settings,
        prefix: PrefixCache | None,
        steps: Iterator[Step],
        **arguments: Any,
    ) -> Stream:
        """Return a stream of the text of a request's steps."""
        logprobs: list[TokenLogprob] = []
        sampler = request.sampler  # a stream that refers to the request would keep its KV cache
        if settings.logprobs is not None and sampler.logits is not None:
            steps = collect_logprobs(steps, sampler.logits, settings.logprobs, logprobs)
        return Stream(
            steps if prefix is None else prefix.keep_after(request, steps),
            self.tokenizer,
            stop=settings.stop_strings,
            temperature=settings.temperature,
            repetition_penalty=settings.repetition_penalty,
            logprobs=logprobs,
            response_prefix=settings.response_prefix,
            end_tokens=self._end_tokens(settings),
            **arguments,
        )

    def build(
        self,
        tokens: Sequence[int],
        settings: Settings,
        make: Callable[..., ModelRequest],
        prefix: PrefixCache | None = None,
        thinking: ThinkingStart | None = None,
    ) -> ModelRequest:
        """Return the request for one text.

        Args:
            tokens: Token ids of the prompt, including the response prefix.
            make: Function that makes the `ModelRequest` from the arguments prepared by `generate`; all others are
                bound.
            prefix: Prefix cache of the conversation; the request takes its KV cache.
            thinking: How thinking is separated from the answer; None: the model does not think.

        Raises:
            ValueError: The prompt fills the context window, or a setting does not fit the model.
        """
        remaining, schema, most = self._remaining(len(tokens)), settings.answer_schema, settings.max_thinking_tokens
        limit, end = min(settings.max_new_tokens, remaining), self._end_tokens(settings)
        processors = penalties(
            settings.presence_penalty,
            settings.frequency_penalty,
            settings.logit_bias,
            len(tokens),
            self._vocab_size,
        )

        def make_schema(prompt_tokens: int, max_tokens: int) -> LogitsProcessorList:
            return self._json.processors(schema, prompt_tokens, max_tokens, end)

        # The schema comes last, so that no other processor can override it.
        if thinking is None or thinking.state == "answer" or (schema is None and most is None):
            processors += make_schema(len(tokens), limit)
        else:
            control = ThinkingControl(
                self.tokenizer,
                thinking,
                len(tokens),
                max_new_tokens=settings.max_new_tokens,
                max_thinking_tokens=most,
                max_total=remaining,
                make_schema=None if schema is None else make_schema,
                end_tokens=end,
            )
            processors.append(control)
            limit = control.limit
        # The cache is taken out when nothing can be refused any more: a refused request would lose it.
        cache = None if prefix is None else prefix.take(self.model, tokens)
        request = self._prepare(tokens, limit, processors, settings, make, past_key_values=cache)
        for processor in processors:
            if isinstance(processor, ThinkingControl):
                processor.bind(request.output)
        return request

    def generator(self, seed: int | None) -> torch.Generator:
        """Return a new random generator with this seed; None: with a random seed."""
        generator = torch.Generator(self.model.device)
        return generator.manual_seed(generator.seed() if seed is None else seed)

    def _prepare(
        self,
        tokens: Sequence[int],
        limit: int,
        processors: LogitsProcessorList,
        settings: Settings,
        make: Callable[..., ModelRequest],
        **more: Any,
    ) -> ModelRequest:
        ids = torch.tensor([list(tokens)], device=self.model.device)
        end, config = self._end_tokens(settings), self.model.generation_config
        padding = config.pad_token_id if config else None
        return prepare(
            self.model,
            ids,
            make,
            attention_mask=torch.ones_like(ids),  # without a mask, pad tokens in a prompt would count as padding
            max_new_tokens=limit,
            logits_processor=processors,
            **settings.generate_kwargs,
            eos_token_id=list(end) or None,
            pad_token_id=next(iter(end), None) if padding is None else padding,
            **more,
        )

    def _remaining(self, prompt_tokens: int) -> int:
        """Return how many tokens fit after the prompt."""
        window = self.context_window
        if window is None:
            return 2**31
        if prompt_tokens >= window:
            raise ContextLengthError(
                f"The prompt has {prompt_tokens} tokens and the context window of {self.name!r} holds {window}: this "
                f"model's maximum context length is {window} tokens. Shorten the prompt, or give fewer passages, so "
                "that at least one token can follow."
            )
        return window - prompt_tokens

    def _end_tokens(self, settings: Settings) -> tuple[int, ...]:
        """Return the tokens that end the text of a request."""
        config = self.model.generation_config
        configured = config.eos_token_id if config else None
        return () if settings.ignore_eos else self._end.ids(configured, settings.stop_token_ids)

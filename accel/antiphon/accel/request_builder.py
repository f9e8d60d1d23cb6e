"""Build requests from prompts and settings. Nothing is decoded here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from antiphon.accel.decoding.drafter_choice import drafter_factory
from antiphon.accel.decoding.engine_request import EngineRequest, GreedySampler, TokenOutput
from antiphon.accel.decoding.generate_arguments import check_supported, reference_tokens
from antiphon.accel.decoding.options import DecodingOptions
from antiphon.accel.decoding.prefix_cache import PrefixCache
from antiphon.accel.decoding.stats import Step, TokenLogprob
from antiphon.accel.drafting.draft import common_length
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.engines.protocol import AnonymousTenant, SequenceOptions
from antiphon.accel.stored_model import StoredModel
from antiphon.accel.text.chat_template import apply_chat_template
from antiphon.accel.text.completion import Stream
from antiphon.accel.text.messages import (
    PromptInput,
    ReferenceInput,
    begin_answer,
    check_references,
    tokenize_prompt,
    with_template_variables,
)
from antiphon.accel.text.parameters import ContextLengthError, Settings
from antiphon.accel.text.thinking import ThinkingStart, thinking_format

if TYPE_CHECKING:
    import torch
    from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel.constraints.grammar import JsonGrammar
    from antiphon.accel.decoding.model_request import ModelRequest

_ANSWER = "PROBE-ANSWER"


class EndTokens:
    """The tokens that end a model's texts.

    Fine-tuned models often have one end token in their settings, but were trained to write another
    one.
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


CONTEXT_TOKENS = 64
"""Number of prompt tokens decoded with the text after a response prefix, for correct spaces."""


OpenStream = Callable[[Iterator[Step]], Stream]
"""A function that returns the stream of a request's text, given the request's steps."""


class RequestBuilder:
    """Builds requests for one model and its tokenizer."""

    def __init__(self, model: PreTrainedModel | StoredModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.source = model
        self.tokenizer = tokenizer
        self.name = name
        self._vocab_size: int = model.config.get_text_config(decoder=True).vocab_size
        self._end = EndTokens(tokenizer, self._vocab_size)

    @property
    def model(self) -> PreTrainedModel:
        """The model of transformers."""
        return self.source.loaded if isinstance(self.source, StoredModel) else self.source

    @cached_property
    def _json(self) -> JsonGrammar:
        from antiphon.accel.constraints.grammar import JsonGrammar

        return JsonGrammar(self.tokenizer, self._vocab_size)

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens, prompt and completion together; None if the model sets no limit."""
        window = getattr(self.source.config.get_text_config(), "max_position_embeddings", None)
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
    ) -> tuple[EngineRequest, OpenStream]:
        """Return a request that is ready to be decoded, and the function that streams its steps.

        The caller holds the engine's lock.

        Args:
            prefix: Prefix cache of the conversation; the request takes the KV cache out of it.
            table: Recycling table of the request; None: no table.

        Raises:
            ValueError, TypeError: As for `LanguageModel.stream`.
        """
        prompt = with_template_variables(prompt, settings.thinking, settings.template_variables)
        read = tokenize_prompt(prompt, self.tokenizer)
        begun = begin_answer(read, settings.response_prefix, self.tokenizer)
        check_references(references)
        options = options.with_num_draft_tokens(settings.num_draft_tokens)
        if settings.drafter is not None:
            options = replace(options, drafter=settings.drafter)
        own: dict[str, Any] = {
            "references": [read.tokens_of(reference) or reference for reference in references],
            "options": options,
            "tenant": table if prefix is None else prefix.tenant,
            "recycling": False if table is None else table,
        }
        request = self._greedy(begun.tokens, settings, begun.thinking, **own)
        if request is None:
            from antiphon.accel.decoding.model_request import ModelRequest

            own["generator"] = self.generator(settings.seed) if settings.is_sampled else None
            make = partial(ModelRequest, tokenizer=self.tokenizer, **own)
            request = self.build(begun.tokens, settings, make, prefix, begun.thinking)
        added = begun.count - common_length(read.tokens, begun.tokens)
        return request, partial(
            self._open_stream,
            request,
            settings,
            prefix,
            prompt_tokens=begun.count,
            response_prefix_tokens=added,
            context=begun.tokens[-CONTEXT_TOKENS:] if settings.response_prefix else (),
            thinking=begun.thinking,
            weights=options.weights or "",
        )

    def _open_stream(
        self,
        request: EngineRequest,
        settings: Settings,
        prefix: PrefixCache | None,
        steps: Iterator[Step],
        **arguments: Any,
    ) -> Stream:
        """Return a stream of the text of a request's steps."""
        logprobs: list[TokenLogprob] = []
        if settings.logprobs is not None:
            from antiphon.accel.decoding.tokens import Sampler, collect_logprobs

            sampler = request.sampler  # a stream that refers to the request would keep the request's KV cache
            if isinstance(sampler, Sampler) and sampler.logits is not None:
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

    def _greedy(
        self,
        tokens: Sequence[int],
        settings: Settings,
        thinking: ThinkingStart | None,
        *,
        references: Sequence[Any],
        options: DecodingOptions,
        tenant: Hashable,
        recycling: bool | RecyclingTable,
    ) -> EngineRequest | None:
        """Return a request that runs without torch; None if a setting, or a loaded model, needs torch."""
        source, end = self.source, self._end_tokens(settings)
        if not isinstance(source, StoredModel) or not source.decodes_greedily():
            return None
        limits_thinking = thinking is not None and settings.max_thinking_tokens is not None
        if settings.changes_scores or settings.is_sampled or limits_thinking or not end:
            return None
        drafter = drafter_factory(options, source.selected.engine)()
        if getattr(drafter, "bita_weights", None) is not None:
            return None
        limit = len(tokens) + min(settings.max_new_tokens, self._remaining(len(tokens)))
        return EngineRequest(
            source.selected.engine,
            drafter,
            GreedySampler(),
            TokenOutput([*tokens], limit, set(end)),
            options=options,
            wanted=SequenceOptions(tenant=AnonymousTenant() if tenant is None else tenant),
            references=reference_tokens(references, self.tokenizer, self._vocab_size),
            recycling=recycling,
        )

    def decodes_plainly(self) -> bool:
        """Return whether the generation settings add no processor or criterion to greedy requests.

        Such requests end only at end tokens or at their maximum length.
        """
        from transformers import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria

        def is_plain(model: Any, input_ids: Any, *, is_cache_given: bool, **given: Any) -> bool:
            processors, criteria = given.pop("logits_processor"), given.pop("stopping_criteria")
            config = given.pop("generation_config")
            check_supported(model, input_ids, config, given)
            ends = all(type(each) in (EosTokenCriteria, MaxLengthCriteria) for each in criteria)
            return ends and not processors and config.prefill_chunk_size is None

        with suppress(ValueError):
            make: Any = is_plain
            return bool(self._prepare([0], 1, LogitsProcessorList(), Settings(), make))
        return False

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
            make: Function that makes the `ModelRequest` from the arguments that `generate`
                prepares. The function's other arguments are already bound.
            prefix: Prefix cache of the conversation; the request takes the KV cache out of it.
            thinking: How thinking is separated from the answer; None: the model does not think.

        Raises:
            ValueError: The prompt fills the context window, or a setting does not fit the model.
        """
        from antiphon.accel.constraints.penalties import penalties
        from antiphon.accel.thinking_control import ThinkingControl

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
        # The cache is taken last, because a request that is refused after this would lose it.
        cache = None if prefix is None else prefix.take(self.model, tokens)
        request = self._prepare(tokens, limit, processors, settings, make, past_key_values=cache)
        for processor in processors:
            if isinstance(processor, ThinkingControl):
                processor.bind(request.output)
        return request

    def generator(self, seed: int | None) -> torch.Generator:
        """Return a new random generator with this seed; None: with a random seed."""
        import torch

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
        import torch

        from antiphon.accel.decoding.model_request import prepare

        ids = torch.tensor([list(tokens)], device=self.model.device)
        end, config = self._end_tokens(settings), self.source.generation_config
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
        config = self.source.generation_config
        configured = config.eos_token_id if config else None
        return () if settings.ignore_eos else self._end.ids(configured, settings.stop_token_ids)

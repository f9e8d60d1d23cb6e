"""Text in, text out: a causal model, its tokenizer and a drafter. Knows nothing of passages: a reference is a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from antiphon.accel.certify import Certificate, emitted_ids
from antiphon.accel.certify import certify as certify_output
from antiphon.accel.decoding.choice import check_drafter, factory_of
from antiphon.accel.decoding.grammar import JsonGrammar
from antiphon.accel.decoding.logprobs import TokenLogprob, noting_logprobs
from antiphon.accel.decoding.options import DecodingKeywords, DecodingOptions, take_options
from antiphon.accel.decoding.penalties import beginning, penalties
from antiphon.accel.decoding.prefix import PrefixCache
from antiphon.accel.decoding.remembered import own_table, with_table
from antiphon.accel.decoding.request import prepare
from antiphon.accel.decoding.stats import Step
from antiphon.accel.decoding.text_generation import TextGeneration, steps_of
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.engines.selection import SelectedEngine, select_engine
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.loading import check_causal, load_pretrained
from antiphon.accel.text.completion import Completion, Stream, Usage
from antiphon.accel.text.messages import Conversation, Message, PromptInput, TokenizedPrompt, encode_prompt, tokenize_prompt
from antiphon.accel.text.parameters import Parameters, Settings, check, check_texts

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel.engines.openvino.loader import Report
    from antiphon.accel.engines.protocol import ModelEngine

__all__ = ["Certificate", "Completion", "Conversation", "LanguageModel", "Message", "Stream", "Usage"]


class LanguageModel:
    """A causal model that continues texts and answers messages, drafting from the references it is given.

    What is drafted never changes the text, only the number of forwards. Any number of requests may run at once, from
    any threads: where that is faster they share forwards, and each says what it says alone.

    The keyword arguments are those of `DecodingOptions`: ``drafter``, ``num_draft_tokens``, ``deterministic``, ``compiled``,
    ``cost``, ``reproducible``, ``engine``, ``weights``.

    The default drafter also guesses what the model itself found likely before. With ``recycling=True`` it remembers
    that from all requests, in the table ``recycling_table``, which can be cleared and saved; a table of your own is used
    instead, and False remembers nothing. Texts never show what was remembered, but how fast they come may: so give
    tenants that must not learn of each other tables of their own, here or with each request. With a table goes what
    an engine with memory for all texts (OpenVINO's) has read: prompts that begin alike are read once for each table.

    On such an engine keys and values take ``memory`` bytes at most; without it, a quarter of what is free, and 1 GiB
    at most. ``report`` is told where the model is converted at its first start.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        recycling: bool | RecyclingTable = True,
        memory: int | None = None,
        report: Report | None = None,
        **options: Unpack[DecodingKeywords],
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "name_or_path", "") or model.config.model_type
        check_causal(model, self.name)
        self.options = DecodingOptions(**options)
        check_drafter(self.options.drafter)
        select_engine(model, self.options.runs_on, memory=memory, report=report)
        self.recycling_table = RecyclingTable(self.name) if recycling is True else self._table(recycling)
        end = self._ends()["eos_token_id"]
        self.vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
        self._json = JsonGrammar(tokenizer, self.vocabulary, end[0] if isinstance(end, list) else end)
        if self.options.fixed_rows:
            engine = engine_of(model)
            engine.lock.run(lambda: engine.deterministic_traits(self.options.fixed_rows))

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        device_map: Any = None,
        recycling: bool | RecyclingTable = True,
        memory: int | None = None,
        report: Report | None = None,
        **arguments: Any,
    ) -> LanguageModel:
        """Load a causal model of transformers, from a folder or the hub.

        Without ``device`` it goes to a GPU if there is one; ``device_map`` ("auto" or a map) spreads it over several.
        ``dtype="auto"`` is the checkpoint's own, but float32 on a CPU without bfloat16 units. `DecodingOptions` apart,
        everything else, such as ``quantization_config`` or ``attn_implementation``, goes to transformers as it is.

        The weights of a model that was loaded here are the language model's own: whoever changes them afterwards (an
        adapter that is merged, a layer that is exchanged) calls `antiphon.accel.prepack` with the model. The ``engine``
        is "auto" here: on x86 CPUs OpenVINO, where it is installed, agrees with torch and is faster.

        Raises:
            ValueError: what lies there is no causal language model, the device, drafter or engine is unknown, or the
                engine that was asked for cannot run the model.
            OSError: nothing lies there, or the hub cannot be reached.
        """
        arguments.setdefault("engine", "auto")
        options = take_options(arguments)
        check_drafter(options.drafter)  # an unknown one is refused before anything is loaded
        model, tokenizer = load_pretrained(name_or_path, device=device, dtype=dtype, device_map=device_map, **arguments)
        engine_of(model).own()
        more: Any = {"recycling": recycling, "memory": memory, "report": report} | options.keywords
        return cls(model, tokenizer, name=str(name_or_path), **more)

    @property
    def selected(self) -> SelectedEngine:
        """The engine, and why it is this one."""
        return select_engine(self.model, self.options.runs_on)

    @property
    def engine(self) -> ModelEngine:
        """Who runs the model's forwards."""
        return self.selected.engine

    @property
    def context_window(self) -> int | None:
        """How many tokens, prompt and completion together, the model was made for; None where it sets no limit."""
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return window if isinstance(window, int) and window > 0 else None

    @property
    def takes_messages(self) -> bool:
        """Whether messages can be written for the model: its tokenizer has a chat template."""
        return self.tokenizer.chat_template is not None

    @property
    def prompt_format(self) -> str | None:
        """The form of prompts that the model's configuration names; None where it names none."""
        return getattr(self.model.config, "prompt_format", None)

    def generate(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Completion:
        """The whole completion; see `stream`, whose pieces it joins."""
        return self.stream(prompt, references=references, prefix=prefix, **parameters).to_end().completion

    def generate_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        seeds: Sequence[int] | None = None,
        batch_size: int = 8,
        **parameters: Unpack[Parameters],
    ) -> list[Completion]:
        """The completion of each prompt: the text that it gets alone, from forwards that ``batch_size`` prompts share.

        ``references`` is one list for each prompt, ``seeds`` one for each where one for all will not do. When a text
        ends, the next prompt takes its place. A model that cannot share forwards answers one prompt after the other.

        Raises:
            ValueError, TypeError: as `stream`; or there are not as many references or seeds as prompts.
        """
        check("prompts", prompts, not isinstance(prompts, str), "a list of prompts")
        check("batch_size", batch_size, isinstance(batch_size, int) and batch_size > 0, "1 or more")
        settings = Settings(**parameters)
        each = [replace(settings, seed=seed) for seed in seeds] if seeds else [settings] * len(prompts)
        streams = self._batch(prompts, references, each, batch_size=batch_size)
        return [stream.to_end().completion for stream in streams]

    def stream_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[str]] = (),
        prefixes: Sequence[PrefixCache] = (),
        **parameters: Unpack[Parameters],
    ) -> list[Stream]:
        """The completions of several prompts piece by piece: whoever asks one for a piece has a forward run for all.

        Each knows its `Stream.log_probability` all the way, and one that is closed costs nothing any more. ``prefixes``
        is one for each prompt, as in `stream`.

        Raises:
            ValueError, TypeError: as `generate_batch`.
        """
        check("prompts", prompts, not isinstance(prompts, str), "a list of prompts")
        each = [Settings(**parameters)] * len(prompts)
        return self._batch(prompts, references, each, prefixes, is_weighed=True)

    def _batch(
        self,
        prompts: Sequence[PromptInput],
        references: Sequence[Sequence[str]],
        settings: Sequence[Settings],
        prefixes: Sequence[PrefixCache] = (),
        *,
        batch_size: int | None = None,
        is_weighed: bool = False,
    ) -> list[Stream]:
        """Streams that share forwards, one for each prompt."""
        shares = list(references) or [()] * len(prompts)
        kept: list[PrefixCache | None] = list(prefixes) or [None] * len(prompts)
        for name, given in (("references", shares), ("seeds", settings), ("prefixes", kept)):
            count = f"{len(prompts)}, one for each prompt"
            check(f"The number of {name}", len(given), len(given) == len(prompts), count)

        def begin() -> list[TextGeneration]:
            return [self._generation(*one) for one in zip(prompts, shares, settings, kept, strict=True)]

        generations = self.engine.lock.run(begin)
        running = steps_of(generations, batch_size)
        if is_weighed:
            for generation in generations:
                generation.chooser.weigh()
        return [self._stream(*one) for one in zip(generations, running, settings, kept, strict=True)]

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Stream:
        """Continue a text, or answer messages, piece by piece, as the parameters say (see `Settings`).

        A text is tokenized as the tokenizer does it, with its own special tokens; messages, or a `Conversation` of
        messages and tools, go through its chat template once. The text ends before the first ``stop`` string, at an
        end-of-sequence token, after ``max_new_tokens``, or where the context window is full. What a ``prefix`` holds of
        the prompt is not read again, and what this request has read is in it afterwards.

        Raises:
            ValueError: a parameter is out of range, a message is malformed, the drafter is unknown, the tokenizer has
                no chat template, or the prompt leaves no room in the context window.
            TypeError: a reference or stop string is not text, or there is no parameter of that name.
        """
        settings = Settings(**parameters)
        generation = self.engine.lock.run(lambda: self._generation(prompt, references, settings, prefix))
        return self._stream(generation, generation.steps(), settings, prefix)

    def _generation(
        self, prompt: PromptInput, references: Sequence[str], settings: Settings, prefix: PrefixCache | None = None
    ) -> TextGeneration:
        """One request, ready to be decoded."""
        read, begun = tokenize(prompt, self.tokenizer), self._begun(settings.response_prefix)
        tokens, sources = read.tokens, [read.tokens_of(each) or each for each in check_texts("references", references)]
        room = min(settings.max_new_tokens, self._room(len(tokens)))
        request = prepare(
            self.model,
            **self._inputs(tokens),
            past_key_values=None if prefix is None else prefix.take(self.model, tokens),
            max_new_tokens=room,
            logits_processor=self._processors(settings, len(tokens), room),
            **settings.generate_kwargs,
            **self._ends(),
        )
        options = self.options.with_num_draft_tokens(settings.num_draft_tokens)
        options = options if settings.drafter is None else replace(options, drafter=settings.drafter)
        table = self._table(settings.recycling)
        own = (
            RecyclingTable(self.name) if table is not None and options.reproducible else table
        )  # what it teaches itself
        options = replace(options, drafter=with_table(factory_of(options, self.engine), own))
        tenant = own if prefix is None else prefix.tenant
        generator = self._generator(settings.seed) if settings.is_sampled else None
        return TextGeneration(
            request, [*sources, begun] if begun else sources, self.tokenizer, generator, options, tenant
        )

    def _table(self, given: bool | RecyclingTable | None) -> RecyclingTable | None:
        """The runners-up that a request may use."""
        if given is None or given is True:
            return self.recycling_table
        return own_table(given, self.name, reproducible=self.options.reproducible)

    def _processors(self, settings: Settings, prompt_tokens: int, room: int) -> LogitsProcessorList:
        """What changes the model's scores, beside what transformers has for it: the schema has the last word."""
        taken = (settings.presence_penalty, settings.frequency_penalty, settings.logit_bias)
        changed = penalties(*taken, prompt_tokens, self.vocabulary)
        changed += beginning(self._begun(settings.response_prefix), prompt_tokens)
        changed += self._json.processors(settings.json_schema, prompt_tokens, room)
        return changed

    def _begun(self, response_prefix: str) -> list[int]:
        """The tokens that a text begins with; what would be a special token is text."""
        return (
            self.tokenizer.encode(response_prefix, add_special_tokens=False, split_special_tokens=True)
            if response_prefix
            else []
        )

    def _stream(
        self,
        generation: TextGeneration,
        steps: Iterator[Step],
        settings: Settings,
        prefix: PrefixCache | None = None,
    ) -> Stream:
        found: list[TokenLogprob] = []
        chooser = generation.chooser  # alone: who holds the stream is not to hold what the model has read
        if settings.logprobs is not None and chooser.logits is not None:
            steps = noting_logprobs(steps, chooser.logits, settings.logprobs, found)
        return Stream(
            steps if prefix is None else prefix.keeping(generation, steps),
            self.tokenizer,
            prompt_tokens=generation.request.input_ids.shape[1],
            stop=settings.stop_strings,
            chosen=(settings.temperature, settings.repetition_penalty),
            likelihood=lambda: chooser.log_probability,
            logprobs=found,
            weights=self.options.weights or "",
            response_prefix=settings.response_prefix,
        )

    def tokenize(self, prompt: PromptInput) -> TokenizedPrompt:
        """The prompt as the model reads it: whoever counts its tokens first hands it on in place of the prompt.

        Raises:
            ValueError: the prompt is empty, a message is malformed, or the tokenizer has no chat template.
        """
        return tokenize(prompt, self.tokenizer)

    def certify(
        self,
        prompt: PromptInput,
        completion: Completion | Sequence[int] | str,
        *,
        repetition_penalty: float = 1.0,
        response_prefix: str = "",
        ulps: float | None = None,
    ) -> Certificate:
        """Prove that a greedy completion of this prompt is the model's own, whoever made it; see `certify.certify`.

        A completion knows its ``repetition_penalty`` and its ``response_prefix``, of which nothing is proven; for ids
        or a text they are what is given here. Of a text the ids are guessed, by the tokenizer: where the certificate
        holds it is proven all the same, where it does not, the answer may have been emitted in other tokens.

        Raises:
            ValueError: the completion was sampled, is empty, does not fit, or is not of the weights that were loaded.
        """
        self.options.check_certifiable()
        if isinstance(completion, Completion):
            if completion.temperature:
                raise ValueError(
                    f"The completion was sampled, at temperature {completion.temperature:g}: its tokens were drawn and "
                    "need not be the best. Certify a greedy one, at temperature 0."
                )
            repetition_penalty, response_prefix = completion.repetition_penalty, completion.response_prefix
        emitted = emitted_ids(completion, self.tokenizer)

        def prove() -> Certificate:
            tokens = encode_prompt(prompt, self.tokenizer)
            request = prepare(
                self.model,
                **self._inputs(tokens),
                max_new_tokens=max(len(emitted), 1),
                logits_processor=beginning(self._begun(response_prefix), len(tokens)),
                **Settings(repetition_penalty=repetition_penalty).generate_kwargs,
                **self._ends(),
            )
            processors = request.processors
            return certify_output(self.model, [*tokens, *emitted], len(tokens), logits_processor=processors, ulps=ulps)

        return self.engine.lock.run(prove)

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Any]:
        """The prompt as tensors; the mask says that a pad token in it is text."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _room(self, prompt_tokens: int) -> int:
        """How many tokens may follow the prompt."""
        window = self.context_window
        if window is None:
            return 2**31
        if prompt_tokens >= window:
            raise ValueError(
                f"The prompt has {prompt_tokens} tokens and the context window of {self.name!r} holds {window}; "
                "shorten the prompt, or give fewer passages, so that at least one token can follow."
            )
        return window - prompt_tokens

    def _ends(self) -> dict[str, Any]:
        """The tokens that end a text: all that the model's generation settings name, else the tokenizer's one."""
        settings = self.model.generation_config
        end = settings.eos_token_id if settings and settings.eos_token_id is not None else self.tokenizer.eos_token_id
        padding = settings.pad_token_id if settings else None
        first = end[0] if isinstance(end, list) else end
        return {"eos_token_id": end, "pad_token_id": first if padding is None else padding}

    def _generator(self, seed: int | None) -> torch.Generator:
        generator = torch.Generator(self.model.device)
        return generator.manual_seed(generator.seed() if seed is None else seed)

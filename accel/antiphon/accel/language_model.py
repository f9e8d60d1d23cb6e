"""A causal model with tokenizer and drafter: text in, text out. References are texts; passages are not known here."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from antiphon.accel.decoding.drafter_choice import check_drafter, check_table
from antiphon.accel.decoding.engine_request import EngineRequest, decode_together
from antiphon.accel.decoding.options import DecodingKeywords, DecodingOptions, pop_options
from antiphon.accel.decoding.prefix_cache import PrefixCache
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.engines.selection import SelectedEngine, select_engine
from antiphon.accel.memory_estimate import check_memory
from antiphon.accel.models.bundled import converted_model
from antiphon.accel.quiet_loading import quiet_loading
from antiphon.accel.remote.server import is_address
from antiphon.accel.request_builder import OpenStream, RequestBuilder
from antiphon.accel.stored_model import NotCachedError, StoredModel, store_of
from antiphon.accel.text.completion import Completion, Stream
from antiphon.accel.text.messages import (
    PromptInput,
    ReferenceInput,
    TokenizedPrompt,
    tokenize_prompt,
)
from antiphon.accel.text.parameters import Parameters, Settings, split_batch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel.drafting.drafters.head import DraftHead
    from antiphon.accel.engines.protocol import ModelEngine
    from antiphon.accel.progress import Progress


class LanguageModel:
    """A causal model that continues texts and answers messages; drafts are copied from a request's references.

    Drafts never change the text, only the number of forward passes. Requests may run concurrently in any threads.
    They share forward passes if that is faster, and each generates the same text as alone.

    Through the recycling table, earlier requests affect the speed of later requests, never their
    text. Tenants that must not observe each other need separate tables, given here or with each
    request. The OpenVINO engine has one KV cache for all requests. In this cache, requests with the
    same recycling table share the common prefixes of their prompts.

    Args:
        name: Name of the model, for messages and stored files; None: the name in its configuration.
        recycling: True: the default drafter also drafts tokens that were likely in earlier requests, from
            ``recycling_table``. A table: use this table. False: use no table.
        memory: Maximum size of the KV cache on OpenVINO, in bytes; None: a quarter of the free memory, at most 1 GiB.
        report: Called with the progress of a conversion to OpenVINO, at a model's first start.
        head: The model's trained draft head. The default drafter adds the head's guesses. "auto":
            the MTP layers of the checkpoint. A folder or hub name: an EAGLE-3 head in the format of
            speculators, a Gemma 4 assistant or a DFlash model. None: no head.
        **options: The fields of `DecodingOptions`: drafter, num_draft_tokens, compiled, cost, engine,
            reproducible, weights.
    """

    def __init__(
        self,
        model: PreTrainedModel | StoredModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        recycling: bool | RecyclingTable = True,
        memory: int | None = None,
        report: Progress | None = None,
        head: str | Path | None = None,
        **options: Unpack[DecodingKeywords],
    ) -> None:
        self._source = model
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "name_or_path", "") or model.config.model_type
        self.options = DecodingOptions(**options)
        if not isinstance(model, StoredModel):
            from antiphon.accel.engines.torch.loading import check_causal

            check_causal(model, self.name)
            check_drafter(self.options.drafter)
            if head is not None:
                _use_head(model, head)
            selected = select_engine(model, self.options.engine_choice, memory=memory, report=report)
            _warn_of_unused_head(model, selected.engine, self.name)
        self.recycling_table = RecyclingTable(self.name) if recycling is True else self._recycling_table(recycling)
        self._requests = RequestBuilder(model, tokenizer, self.name)
        if self.options.reproducible:
            from antiphon.accel.engines.torch.engine import engine_of

            engine = engine_of(self.model)
            engine.lock.run(engine.reproducible_traits)

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
        report: Progress | None = None,
        head: str | Path | None = "auto",
        only_cached: bool = False,
        **arguments: Any,
    ) -> LanguageModel:
        """Load a causal model of transformers by its name.

        If an earlier process has loaded the model into OpenVINO and cached everything needed, the
        model is opened from the cache, without torch and transformers. These two are imported only
        when they are needed: for sampling, for processors of scores, or when `model` is read.

        Args:
            name_or_path: A bundled model ("reader", "smollm2"), a folder, a GGUF file, a LoRA adapter for SmolLM2, or a
                name on the hub. If a folder has the name of a bundled model, write "./reader".
            device: A torch device; None: a GPU if there is one.
            dtype: "auto": the checkpoint's precision, but float32 on a CPU without bfloat16 units.
            device_map: "auto" or a map, to spread the model over several devices.
            head: As for the class; "auto" takes the MTP layers of the checkpoint, if it has any.
            only_cached: Raise an error if the model cannot be opened from the cache.
            **arguments: Fields of `DecodingOptions`; all other arguments, such as
                ``quantization_config``, go to transformers. ``engine`` is "auto" by default:
                OpenVINO is used on an x86 CPU if it is installed, agrees with torch and is faster.

        Raises:
            ValueError: The model is not a causal language model; the device, drafter or engine is unknown; the engine
                cannot run the model; or the name is the address of a server, see `RemoteLanguageModel`.
            ImportError: The package of a bundled model is missing; the message says what to run.
            OSError: No model is found under this name, or the hub cannot be reached.
            NotEnoughMemoryError: The model needs more memory than this process may use.
            NotCachedError: ``only_cached`` is True, and the cache lacks something or torch runs the
                model.
        """
        arguments.setdefault("engine", "auto")
        options = pop_options(arguments)
        check_drafter(options.drafter)  # before anything is loaded
        if isinstance(name_or_path, str) and is_address(name_or_path):
            raise ValueError(
                f"{name_or_path} is the address of a server; load it with RemoteLanguageModel({name_or_path!r})."
            )
        place = converted_model(name_or_path, progress=report) or name_or_path
        if device_map is None and "quantization_config" not in arguments:
            runs: Any = {"engine": options.engine_name, "weights": options.weights, "cache": memory}
            check_memory(place, device=device, dtype=dtype, head=head, location=arguments, **runs)
        more: Any = {"name": str(name_or_path), "recycling": recycling, "memory": memory} | options.keywords
        store = store_of(place, device, dtype, device_map, options, arguments) if head in (None, "auto") else None
        load = partial(_load, place, device=device, dtype=dtype, device_map=device_map, **arguments)
        if store is not None and (opened := store.open(memory, lambda: load()[0], partial(_tokenizer, place))):
            return cls(*opened, **more)  # type: ignore[arg-type]  # FileTokenizer has all that is used here
        if only_cached:
            raise NotCachedError(f"{name_or_path} cannot be opened from the cache.")
        model, tokenizer = load()
        loaded = cls(model, tokenizer, report=report, head=head, **more)
        runs_plainly = loaded.engine.name == "openvino" and loaded._requests.decodes_plainly()
        if store is not None and runs_plainly and head is not None and _head_of(model) is None:
            store.save(model, tokenizer)
        return loaded

    @property
    def model(self) -> PreTrainedModel:
        """Transformers' model; loaded at first access if this object was opened from the cache.

        Raises:
            ValueError: The model's files have changed since it was opened.
        """
        return self._requests.model

    @property
    def selected(self) -> SelectedEngine:
        """The engine that runs the model, and why it was selected."""
        if isinstance(self._source, StoredModel) and not self._source.is_loaded:
            return self._source.selected
        return select_engine(self.model, self.options.engine_choice)

    @property
    def engine(self) -> ModelEngine:
        """The engine that runs the model's forward passes."""
        return self.selected.engine

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens, prompt and completion together; None if the model sets no limit."""
        return self._requests.context_window

    @property
    def takes_messages(self) -> bool:
        """Whether the tokenizer has a chat template, so that prompts may be messages."""
        return self.tokenizer.chat_template is not None

    @property
    def prompt_format(self) -> str | None:
        """The prompt format that the model's configuration names; None if it names none."""
        return getattr(self._source.config, "prompt_format", None)

    @cached_property
    def num_parameters(self) -> int | None:
        """Number of the model's weights as stored; weights packed into one number count once."""
        if isinstance(self._source, StoredModel):
            return self._source.num_parameters
        return sum(weights.numel() for weights in chain(self.model.parameters(), self.model.buffers()))

    def generate(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Completion:
        """Return the whole completion; see `stream` for the arguments and errors."""
        return self.stream(prompt, references=references, prefix=prefix, **parameters).to_end().completion

    def generate_batch(
        self,
        prompts: Sequence[PromptInput],
        *,
        references: Sequence[Sequence[ReferenceInput]] = (),
        seeds: Sequence[int] | None = None,
        batch_size: int = 8,
        **parameters: Unpack[Parameters],
    ) -> list[Completion]:
        """Return each prompt's completion, the same as if it were generated alone.

        The prompts share forward passes. When a completion ends, the next prompt takes its place. A
        model that cannot share forward passes processes the prompts one after the other.

        Args:
            seeds: A random seed for each prompt; None: the parameter ``seed`` for all.
            batch_size: Maximum number of prompts that are decoded at the same time.

        Raises:
            ValueError, TypeError: As for `stream`; or the number of references or seeds differs
                from the number of prompts.
        """
        requests = split_batch(prompts, references, seeds, batch_size, Settings(**parameters))
        started = self.engine.lock.run(lambda: [self._start(*request, None) for request in requests])
        running = decode_together([request for request, _ in started], batch_size)
        streams = [open_stream(steps) for (_, open_stream), steps in zip(started, running, strict=True)]
        return [stream.to_end().completion for stream in streams]

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Stream:
        """Continue a text, or answer messages, and return a stream of pieces of the new text.

        The text ends before a ``stop`` string, at an end-of-sequence token, after
        ``max_new_tokens``, or when the context window is full.

        Args:
            prompt: A text, messages, or a `Conversation` (messages and tools). A text is tokenized
                with the tokenizer's special tokens. To messages, the chat template is applied.
            references: Texts, or spans of a tokenized prompt, that the answer may repeat; drafts are copied from them.
            prefix: The prefix cache of a conversation. The part of the prompt that is already in
                the cache is not prefilled again. Afterwards, the cache contains the request's
                tokens.
            **parameters: As in `Settings`.

        Raises:
            ValueError: A parameter is out of range, a message is malformed, the drafter is unknown, the tokenizer has
                no chat template, or the prompt fills the context window.
            TypeError: A reference or stop string is not text, or ``parameters`` has an unknown
                name.
        """
        settings = Settings(**parameters)
        request, open_stream = self.engine.lock.run(lambda: self._start(prompt, references, settings, prefix))
        return open_stream(request.steps())

    def _start(
        self, prompt: PromptInput, references: Sequence[ReferenceInput], settings: Settings, prefix: PrefixCache | None
    ) -> tuple[EngineRequest, OpenStream]:
        """Return a request that is ready to be decoded, and the function that streams its steps."""
        table = self._recycling_table(settings.recycling)
        return self._requests.start(prompt, references, settings, prefix, options=self.options, table=table)

    def _recycling_table(self, given: bool | RecyclingTable | None) -> RecyclingTable | None:
        """Return ``given`` if it is a table. For None or True, return this model's table; for False, return None."""
        if given is None or given is True:
            return self.recycling_table
        return check_table(given, self.name)

    def tokenize(self, prompt: PromptInput) -> TokenizedPrompt:
        """Tokenize a prompt. Every method accepts the result in place of the prompt, and does not tokenize it again.

        Raises:
            ValueError: The prompt is empty, a message is malformed, or the tokenizer has no chat template.
        """
        return tokenize_prompt(prompt, self.tokenizer)


def _load(place: str | Path, **options: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    _import_transformers()
    from antiphon.accel.engines.torch.loading import load_pretrained

    return load_pretrained(place, **options)


def _tokenizer(place: str | Path) -> PreTrainedTokenizerBase:
    _import_transformers()
    from antiphon.accel.engines.torch.loading import load_tokenizer

    return load_tokenizer(str(place))


def _import_transformers() -> None:
    """Import transformers completely, even if another thread has begun to import it."""
    with quiet_loading():
        pass


def _head_of(model: PreTrainedModel) -> DraftHead | None:
    from antiphon.accel.engines.torch.engine import engine_of

    return engine_of(model).head


def _use_head(model: PreTrainedModel, head: str | Path) -> None:
    from antiphon.accel.engines.torch.engine import engine_of
    from antiphon.accel.engines.torch.heads import load_head

    engine_of(model).head, engine_of(model).head_reason = load_head(model, head)


def _warn_of_unused_head(model: PreTrainedModel, selected: ModelEngine, name: str) -> None:
    own = _head_of(model)
    if own is not None and (missing := selected.missing_for_head(own)):
        warnings.warn(
            f"The {own.name} of {name!r} is not used: it reads what the engine {selected.name} does not give, "
            f"{missing}. Load the model with engine='torch', or with head=None.",
            stacklevel=3,
        )

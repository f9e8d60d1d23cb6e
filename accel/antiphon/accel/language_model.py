"""A causal model with tokenizer and drafter: text in, text out. It knows no passages; a reference is a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from antiphon.accel.decoding.drafter_choice import check_drafter, check_table
from antiphon.accel.decoding.model_request import ModelRequest, decode_together
from antiphon.accel.decoding.options import DecodingKeywords, DecodingOptions, pop_options
from antiphon.accel.decoding.prefix_cache import PrefixCache
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.engines.selection import SelectedEngine, select_engine
from antiphon.accel.engines.torch.engine import engine_of
from antiphon.accel.engines.torch.loading import check_causal, load_pretrained
from antiphon.accel.memory_estimate import check_memory
from antiphon.accel.models.bundled import converted_model
from antiphon.accel.remote.server import is_address
from antiphon.accel.request_builder import OpenStream, RequestBuilder
from antiphon.accel.text.completion import Completion, Stream
from antiphon.accel.text.messages import (
    PromptInput,
    ReferenceInput,
    TokenizedPrompt,
    tokenize_prompt,
)
from antiphon.accel.text.parameters import Parameters, Settings, split_batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from antiphon.accel.engines.openvino.loader import ProgressCallback
    from antiphon.accel.engines.protocol import ModelEngine


class LanguageModel:
    """A causal model that continues texts and answers messages; drafts are copied from a request's references.

    Drafts never change the text, only the number of forward passes. Requests may run concurrently in any threads.
    They share forward passes if that is faster, and each generates the same text as alone.

    The recycling table lets earlier requests affect the speed of later ones, never the text. Give separate tables to
    tenants that must not observe each other, here or with each request. An engine with one KV cache for all requests
    (OpenVINO's) computes a common prefix of several prompts once per table.

    Args:
        name: Name of the model, for messages and stored files; None: the name in its configuration.
        recycling: True: the default drafter also drafts tokens that were likely in earlier requests, from
            ``recycling_table``. A table: use this table. False: use no table.
        memory: Maximum size of the KV cache on OpenVINO, in bytes; None: a quarter of the free memory, at most 1 GiB.
        report: Called with the progress of the conversion to OpenVINO when a model is first used.
        **options: The fields of `DecodingOptions`: drafter, num_draft_tokens, compiled, cost, engine,
            reproducible, weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        recycling: bool | RecyclingTable = True,
        memory: int | None = None,
        report: ProgressCallback | None = None,
        **options: Unpack[DecodingKeywords],
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "name_or_path", "") or model.config.model_type
        check_causal(model, self.name)
        self.options = DecodingOptions(**options)
        check_drafter(self.options.drafter)
        select_engine(model, self.options.engine_choice, memory=memory, report=report)
        self.recycling_table = RecyclingTable(self.name) if recycling is True else self._recycling_table(recycling)
        self._requests = RequestBuilder(model, tokenizer, self.name)
        if self.options.reproducible:
            engine = engine_of(model)
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
        report: ProgressCallback | None = None,
        **arguments: Any,
    ) -> LanguageModel:
        """Load a causal model of transformers by its name.

        Args:
            name_or_path: A bundled model ("reader", "smollm2"), a folder, a GGUF file, a LoRA adapter for SmolLM2, or a
                name on the hub. For a folder with the name of a bundled model, write "./reader".
            device: A torch device; None: a GPU if there is one.
            dtype: "auto": the checkpoint's own, but float32 on a CPU without bfloat16 units.
            device_map: "auto" or a map, to spread the model over several devices.
            **arguments: Fields of `DecodingOptions`; all others, such as ``quantization_config``, are passed to
                transformers. ``engine`` is "auto" by default: OpenVINO on x86 CPUs, if it is installed, agrees with
                torch and is faster.

        Raises:
            ValueError: The model is not a causal language model; the device, drafter or engine is unknown; the engine
                cannot run the model; or the name is the address of a server, see `RemoteLanguageModel`.
            ImportError: The package of a bundled model is missing; the message has the command.
            OSError: The model is not found, or the hub cannot be reached.
            NotEnoughMemoryError: The model needs more memory than this process may use.
        """
        arguments.setdefault("engine", "auto")
        options = pop_options(arguments)
        check_drafter(options.drafter)  # before anything is loaded
        place: str | Path = name_or_path
        if isinstance(place, str) and is_address(place):
            raise ValueError(f"{place} is the address of a server; load it with RemoteLanguageModel({place!r}).")
        place = converted_model(place, progress=report) or place
        if device_map is None and "quantization_config" not in arguments:
            runs: Any = {"engine": options.engine_name, "weights": options.weights, "cache": memory}
            check_memory(place, device=device, dtype=dtype, location=arguments, **runs)
        model, tokenizer = load_pretrained(place, device=device, dtype=dtype, device_map=device_map, **arguments)
        more: Any = {"recycling": recycling, "memory": memory, "report": report} | options.keywords
        return cls(model, tokenizer, name=str(name_or_path), **more)

    @property
    def selected(self) -> SelectedEngine:
        """The engine that runs the model, and why it was selected."""
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
        """The prompt format named in the model's configuration; None if there is none."""
        return getattr(self.model.config, "prompt_format", None)

    @cached_property
    def num_parameters(self) -> int | None:
        """Number of the model's stored weights; several weights packed into one number count as one."""
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
        """Return the completion of each prompt, the same as when it is generated alone; prompts share forward passes.

        When a completion ends, the next prompt takes its place. A model that cannot share forward passes processes
        the prompts one after the other.

        Args:
            seeds: One for each prompt; None: the parameter ``seed`` for all.
            batch_size: Maximum number of prompts that are decoded at the same time.

        Raises:
            ValueError, TypeError: As `stream`; or the number of references or seeds differs from that of the prompts.
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
        """Continue a text, or answer messages, as a stream of pieces of text.

        The text ends before a ``stop`` string, at an end-of-sequence token, after ``max_new_tokens``, or if the
        context is full.

        Args:
            prompt: A text, which is tokenized with the tokenizer's special tokens; or messages or a `Conversation`
                (messages and tools), to which the chat template is applied.
            references: Texts, or spans of a tokenized prompt, that the answer may repeat; drafts are copied from them.
            prefix: The prefix cache of a conversation. The part of the prompt in it is not prefilled again;
                afterwards it contains the tokens of this request.
            **parameters: As in `Settings`.

        Raises:
            ValueError: A parameter is out of range, a message is malformed, the drafter is unknown, the tokenizer has
                no chat template, or the prompt fills the context window.
            TypeError: A reference or stop string is not text, or there is no parameter of that name.
        """
        settings = Settings(**parameters)
        request, open_stream = self.engine.lock.run(lambda: self._start(prompt, references, settings, prefix))
        return open_stream(request.steps())

    def _start(
        self, prompt: PromptInput, references: Sequence[ReferenceInput], settings: Settings, prefix: PrefixCache | None
    ) -> tuple[ModelRequest, OpenStream]:
        """Return a request that is ready to be decoded, and a function that converts its steps to a stream."""
        table = self._recycling_table(settings.recycling)
        return self._requests.start(prompt, references, settings, prefix, options=self.options, table=table)

    def _recycling_table(self, given: bool | RecyclingTable | None) -> RecyclingTable | None:
        """Return a request's recycling table: the given one; this model's for None or True; None for False."""
        if given is None or given is True:
            return self.recycling_table
        return check_table(given, self.name)

    def tokenize(self, prompt: PromptInput) -> TokenizedPrompt:
        """Tokenize a prompt. Every method accepts the result in place of the prompt, and does not tokenize it again.

        Raises:
            ValueError: The prompt is empty, a message is malformed, or the tokenizer has no chat template.
        """
        return tokenize_prompt(prompt, self.tokenizer)

"""Text in, text out, by a model that a server runs: any that speaks OpenAI's protocol. Runs no model itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from os import environ
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack

from antiphon.accel.remote.client import Client
from antiphon.accel.remote.errors import RemoteError
from antiphon.accel.remote.request_body import add_references, build_body
from antiphon.accel.remote.server import ServedModel, find_model, has_plugin
from antiphon.accel.remote.stream import RemoteStream
from antiphon.accel.text.completion import Completion
from antiphon.accel.text.messages import (
    Conversation,
    CountedPrompt,
    Message,
    PromptInput,
    TokenizedPrompt,
    encode_prompt,
)
from antiphon.accel.text.parameters import Parameters, Settings, check, check_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antiphon.accel.decoding.prefix_cache import PrefixCache

__all__ = ["RemoteError", "RemoteLanguageModel", "RemoteStream"]

Content = str | Sequence[Message] | Conversation

KEY = "ANTIPHON_API_KEY"
"""The environment variable that holds the server's key where none is given."""

BYTES = 3
"""So many bytes of a text count as a token where nobody can count: a cautious guess, most texts have four."""


class RemoteLanguageModel:
    """A language model that a server runs, asked as `LanguageModel` is: the same words go in, the same come out.

    ``model`` is its name there, by default the first that the server has. The server is asked once what it is
    (``/models``), when that is first needed: a vLLM with Antiphon's plug-in and Antiphon's own server draft from the
    references; any other never sees them, and a warning says so, once. ``api_key`` is by default what the environment's
    ANTIPHON_API_KEY holds.

    A request has ``timeout`` seconds for each wait, and is asked again up to ``retries`` times, with longer and longer
    pauses, while no piece of its answer has come. ``context_window`` (tokens), ``tokenizer`` and ``prompt_format`` are
    for servers that do not tell. Any number of threads may ask at once.

    Raises:
        ImportError: the package openai is missing.
        ValueError: the address is none, or a number is out of range.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 2,
        context_window: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        prompt_format: str | None = None,
    ) -> None:
        check("timeout", timeout, timeout > 0, "above 0 seconds")
        check("retries", retries, isinstance(retries, int) and retries >= 0, "0 or more")
        self.client = Client(base_url, api_key=api_key or environ.get(KEY), timeout=timeout, retries=retries)
        self.tokenizer = tokenizer
        self.prompt_format = prompt_format
        self.takes_messages = True
        self._model = model
        self._window = context_window
        self._asking = Lock()
        self._counts = True
        self._takes_references: bool | None = None

    @cached_property
    def server(self) -> ServedModel:
        """What the server says of itself and the model, asked when first needed and kept.

        Raises:
            RemoteError: it cannot be reached, rejects the key, or has no such model.
        """
        return find_model(self.client, self._model)

    @property
    def name(self) -> str:
        """The model's name, as the server has it."""
        return self._model or self.server.name

    @property
    def context_window(self) -> int | None:
        """How many tokens, prompt and completion together, the model takes; None where nobody says."""
        return self._window or self.server.context_window

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
        """The completion of each prompt, in order; ``batch_size`` of them are asked for at once.

        Raises:
            ValueError, TypeError: as `stream`; or there are not as many references or seeds as prompts.
            RemoteError: one of them failed; those under way end, and no further one is begun.
        """
        check("prompts", prompts, not isinstance(prompts, str), "a list of prompts")
        check("batch_size", batch_size, isinstance(batch_size, int) and batch_size > 0, "1 or more")
        settings = Settings(**parameters)
        each = [replace(settings, seed=seed) for seed in seeds] if seeds else [settings] * len(prompts)
        shares = list(references) or [()] * len(prompts)
        for name, given in (("references", shares), ("seeds", each)):
            count = f"{len(prompts)}, one for each prompt"
            check(f"The number of {name}", len(given), len(given) == len(prompts), count)
        streams = [self._stream(*one) for one in zip(prompts, shares, each, strict=True)]
        pool = ThreadPoolExecutor(batch_size, thread_name_prefix="antiphon-remote")
        try:
            return list(pool.map(_read, streams))
        finally:  # after an error, or Ctrl-C, nobody waits for the rest
            for stream in streams:
                stream.close()
            pool.shutdown(wait=False, cancel_futures=True)

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[str] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> RemoteStream:
        """Continue a text, or answer messages, piece by piece, as the parameters say (see `Settings`).

        A ``prefix`` is not needed: servers keep what they have read themselves.

        Raises:
            ValueError: a parameter is out of range, or is one for models that are run here.
            TypeError: a reference or stop string is not text, or there is no parameter of that name.
            RemoteError: the server does not answer as it should; raised where the first piece is asked for. Broken off
                in the midst of an answer it is a `BrokenStreamError`, which has what was received.
        """
        return self._stream(prompt, references, Settings(**parameters))

    def tokenize(self, prompt: PromptInput) -> CountedPrompt:
        """The prompt and how many tokens it has, to be handed on to `stream`.

        They are counted by the tokenizer, if one was given, else by a vLLM itself, else guessed, rather too many.
        """
        content = _content(prompt)
        return prompt if isinstance(prompt, CountedPrompt) else CountedPrompt(content, self._count(content))

    def _count(self, prompt: Content) -> int:
        if self.tokenizer is not None:
            return len(encode_prompt(prompt, self.tokenizer))
        if self.server.kind == "vllm" and self._counts:
            try:
                return int(self.client.post("/../tokenize", self._to_count(prompt))["count"])
            except (RemoteError, KeyError):
                self._counts = False
        return len(str(_texts(prompt)).encode()) // BYTES

    def _to_count(self, prompt: Content) -> dict[str, Any]:
        named = {"model": self.server.name}
        if isinstance(prompt, str):
            return named | {"prompt": prompt}
        conversation = prompt if isinstance(prompt, Conversation) else Conversation(prompt)
        tools = {"tools": [dict(tool) for tool in conversation.tools]} if conversation.tools else {}
        return named | {"messages": [dict(message) for message in conversation.messages]} | tools

    def _stream(self, prompt: PromptInput, references: Sequence[str], settings: Settings) -> RemoteStream:
        sources = check_texts("references", references)
        begin = partial(self._begin, prompt, sources, settings)
        chosen = {"temperature": settings.temperature, "repetition_penalty": settings.repetition_penalty}
        return RemoteStream(self.client, begin, **chosen)

    def _begin(self, prompt: PromptInput, references: Sequence[str], settings: Settings) -> Any:
        with self._asking:
            server = self.server
            is_drafted = bool(references) and self._drafts()
        path, body = build_body(_content(prompt), settings, server)
        return self.client.stream(path, add_references(body, references, server) if is_drafted else body)

    def _drafts(self) -> bool:
        """Whether the server drafts from references; where it does not, that is said once."""
        if self._takes_references is None:
            kind = self.server.kind
            self._takes_references = kind == "antiphon" or (
                kind == "vllm" and has_plugin(self.client, self.server.name)
            )
            if not self._takes_references:
                warnings.warn(
                    f"{self.client.base_url} does not draft from references, so they are not sent: answers are the "
                    "same, and as fast as that server is by itself.",
                    stacklevel=2,
                )
        return self._takes_references


def _read(stream: RemoteStream) -> Completion:
    return stream.to_end().completion


def _content(prompt: PromptInput) -> Content:
    """What a prompt says; one that was tokenized here is sent as its text."""
    if isinstance(prompt, CountedPrompt):
        return prompt.content
    return prompt.text if isinstance(prompt, TokenizedPrompt) else prompt


def _texts(prompt: Content) -> object:
    return prompt.messages if isinstance(prompt, Conversation) else prompt

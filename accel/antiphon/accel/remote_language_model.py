"""A language model on a server that speaks OpenAI's protocol. This process runs no model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from os import environ
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack

from antiphon.accel.remote.errors import RemoteError
from antiphon.accel.remote.server import ServedModel, check_url, find_model, is_address, split_address
from antiphon.accel.remote.thinking_tags import ThinkingHabits, UnaskedThinking
from antiphon.accel.text.completion import Completion
from antiphon.accel.text.messages import (
    Conversation,
    CountedPrompt,
    PromptInput,
    ReferenceInput,
    TokenizedPrompt,
    add_variables,
    as_conversation,
    check_references,
    encode_prompt,
)
from antiphon.accel.text.parameters import Parameters, Settings, check, split_batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from antiphon.accel.decoding.prefix_cache import PrefixCache
    from antiphon.accel.remote.client import Client
    from antiphon.accel.remote.stream import RemoteStream

__all__ = ["RemoteError", "RemoteLanguageModel"]

Content = str | Conversation

API_KEY_VARIABLE = "ANTIPHON_API_KEY"
"""Environment variable with the server's API key, used if no key is given."""

BYTES_PER_TOKEN = 3
"""Assumed bytes per token if tokens cannot be counted; below the usual four, to be cautious."""


class RemoteLanguageModel:
    """A language model on a server, with the interface of `LanguageModel`.

    The list of models (``/models``) is requested once, when it is first needed. Antiphon's own server and vLLM with
    Antiphon's plug-in draft from references; references are not sent to other servers. Thread-safe.

    Args:
        base_url: Address of the API, such as "http://localhost:8000/v1"; "/v1" may be left out. Or the short name of a
            local server with its model: "ollama/qwen3", "lmstudio/NAME", "vllm/NAME", "llamacpp/NAME".
        model: Name of the model on the server; None: the model after "#" in the address, or the server's only chat
            model.
        api_key: API key; None: the environment variable ANTIPHON_API_KEY.
        timeout: Maximum seconds to wait for a response, and for each piece of a stream.
        retries: Maximum number of retries before the first piece arrives, with increasing pauses.
        context_window: Maximum number of tokens, if the server does not report it.
        tokenizer: The model's tokenizer, to count tokens if the server cannot.
        prompt_format: Name of the prompt format for which the model was trained.

    Raises:
        ValueError: The address is invalid, or a number is out of range.
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
        self.base_url, named = split_address(base_url) if is_address(base_url) else (base_url, None)
        check_url(self.base_url)
        self._api_key, self._timeout, self._retries = api_key or environ.get(API_KEY_VARIABLE), timeout, retries
        self.tokenizer = tokenizer
        self.prompt_format = prompt_format
        self.takes_messages = True
        self._model = model or named
        self._habits = ThinkingHabits()
        self.num_parameters = None
        self._context_window = context_window
        self._lock = Lock()
        self._can_count = True
        self._takes_references: bool | None = None

    @cached_property
    def server(self) -> ServedModel:
        """The model as the server describes it, requested when first needed.

        Raises:
            RemoteError: The server cannot be reached, rejects the API key, or has no such model.
        """
        return find_model(self.base_url, self._model, api_key=self._api_key, timeout=min(self._timeout, 10.0))

    @cached_property
    def client(self) -> Client:
        """The HTTP client, created when first needed, because importing ``openai`` takes a second."""
        from antiphon.accel.remote.client import Client

        return Client(self.server.base_url, api_key=self._api_key, timeout=self._timeout, retries=self._retries)

    @property
    def name(self) -> str:
        """Name of the model on the server."""
        return self._model or self.server.name

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens of prompt and completion together; None if unknown."""
        return self._context_window or self.server.context_window

    def generate(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> Completion:
        """Return the completion of a prompt; see `stream` for arguments and errors."""
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
        """Return the completion of each prompt, in the order of the prompts.

        Args:
            references: Reference texts for each prompt; empty: no references.
            seeds: Random seed for each prompt; None: the parameter ``seed`` for all.
            batch_size: Maximum number of requests at the same time.
            **parameters: As in `Settings`.

        Raises:
            ValueError, TypeError: As for `stream`; or the number of references or seeds differs
                from the number of prompts.
            RemoteError: A request failed. Running requests are closed, and no more requests are
                sent.
        """
        requests = split_batch(prompts, references, seeds, batch_size, Settings(**parameters))
        streams = [self._stream(*request) for request in requests]
        pool = ThreadPoolExecutor(batch_size, thread_name_prefix="antiphon-remote")
        try:
            return list(pool.map(lambda stream: stream.to_end().completion, streams))
        finally:  # after an error or Ctrl-C, the remaining requests are dropped
            for stream in streams:
                stream.close()
            pool.shutdown(wait=False, cancel_futures=True)

    def stream(
        self,
        prompt: PromptInput,
        *,
        references: Sequence[ReferenceInput] = (),
        prefix: PrefixCache | None = None,
        **parameters: Unpack[Parameters],
    ) -> RemoteStream:
        """Return the completion as a stream of text pieces.

        Args:
            prefix: Ignored, because servers have their own prefix caches.
            **parameters: As in `Settings`.

        Raises:
            ValueError: A parameter is out of range, or only applies to local models.
            TypeError: A reference or stop string is not text, or ``parameters`` has an unknown
                name.
            RemoteError: The request failed; raised when the first piece is requested. If the connection breaks later, a
                `BrokenStreamError` contains the received text.
        """
        return self._stream(prompt, references, Settings(**parameters))

    def tokenize(self, prompt: PromptInput) -> CountedPrompt:
        """Return the prompt with its number of tokens; the result can be passed to `stream`.

        The tokens are counted by the given tokenizer or by a vLLM server; without both, their
        number is estimated.
        """
        content = _content(prompt)
        return prompt if isinstance(prompt, CountedPrompt) else CountedPrompt(content, self._count(content))

    def _count(self, prompt: Content) -> int:
        if self.tokenizer is not None:
            return len(encode_prompt(prompt, self.tokenizer))
        if self.server.kind == "vllm" and self._can_count:
            try:
                return int(self.client.post("/../tokenize", self._count_body(prompt))["count"])
            except (RemoteError, KeyError):
                self._can_count = False
        content = prompt if isinstance(prompt, str) else prompt.messages
        return len(str(content).encode()) // BYTES_PER_TOKEN

    def _count_body(self, prompt: Content) -> dict[str, Any]:
        body = {"model": self.server.name}
        if isinstance(prompt, str):
            return body | {"prompt": prompt}
        tools = {"tools": [dict(tool) for tool in prompt.tools]} if prompt.tools else {}
        return body | {"messages": [dict(message) for message in prompt.messages]} | tools

    def _stream(self, prompt: PromptInput, references: Sequence[ReferenceInput], settings: Settings) -> RemoteStream:
        from antiphon.accel.remote.stream import RemoteStream

        sources = check_references(references)  # spans of a prompt need no sending: servers draft from the prompt
        content, thinking = _content(prompt), None
        if not isinstance(content, str):
            content = add_variables(content, settings.thinking, settings.template_variables)
            limit = settings.max_new_tokens if content.thinking is False else None
            thinking = UnaskedThinking(self._habits, self._model or self.base_url, limit)
        return RemoteStream(
            self.base_url,
            partial(self._send, content, sources, settings, thinking),
            thinking=thinking,
            temperature=settings.temperature,
            repetition_penalty=settings.repetition_penalty,
            response_prefix=settings.response_prefix,
        )

    def _send(
        self, content: Content, references: Sequence[str], settings: Settings, thinking: UnaskedThinking | None
    ) -> Any:
        from antiphon.accel.remote.request_body import THINKING_FIELDS, add_references, build_body

        with self._lock:
            server, client = self.server, self.client
            is_drafted = bool(references) and self._is_drafting()
        path, body = build_body(content, settings, server)
        body = add_references(body, references, server) if is_drafted else body
        if thinking is not None:
            thinking.name = server.name
            body = {name: value for name, value in body.items() if thinking.has_limit or name != "max_tokens"}
        switch = {name: body[name] for name in THINKING_FIELDS if name in body}
        if self._habits.refuses_switch:
            body = {name: value for name, value in body.items() if name not in switch}
        if self._habits.takes_json_object and settings.json_schema is not None:
            schema = body["response_format"]["json_schema"]["schema"]
            body |= {"response_format": {"type": "json_object", "schema": schema}}
        try:
            return client.stream(path, body)
        except RemoteError as error:
            if settings.json_schema is not None and "json_object" in str(error) and not self._habits.takes_json_object:
                self._habits.takes_json_object = True  # the error lists the formats that the server takes
                return self._send(content, references, settings, thinking)
            if self._habits.refuses_switch or not switch or error.status not in (400, 422):
                raise
        stream = client.stream(path, {name: value for name, value in body.items() if name not in switch})
        self._habits.refuses_switch = True
        return stream

    def drafts_from_references(self) -> bool:
        """Return whether the server drafts from references. A vLLM server is asked only once."""
        if self._takes_references is None:
            kind = self.server.kind
            self._takes_references = kind == "antiphon" or (kind == "vllm" and self.client.has_plugin(self.server.name))
        return self._takes_references

    def _is_drafting(self) -> bool:
        """Return whether to send references; warn once if a vLLM server lacks the plug-in."""
        is_new, drafts = self._takes_references is None, self.drafts_from_references()
        if is_new and not drafts and self.server.kind == "vllm":
            warnings.warn(
                f"{self.base_url} does not draft from references, so they are not sent; the answers are the "
                "same, at the speed of that server. Antiphon's plug-in for vLLM makes them faster.",
                stacklevel=2,
            )
        return drafts


def _content(prompt: PromptInput) -> Content:
    """Return the prompt in the form that the server receives: a tokenized prompt becomes its text."""
    if isinstance(prompt, CountedPrompt):
        prompt = prompt.content
    if isinstance(prompt, TokenizedPrompt):
        return prompt.text
    return prompt if isinstance(prompt, str) else as_conversation(prompt)

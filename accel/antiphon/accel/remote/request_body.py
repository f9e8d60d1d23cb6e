"""A prompt and its parameters as the body of a request, in OpenAI's words and the server's own. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.accel.decoding.grammar import JsonSchema
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.text.messages import Conversation, Message
from antiphon.accel.text.parameters import Settings

CHAT, TEXT = "/chat/completions", "/completions"
"""Where messages are answered, and where a text is continued."""

LOCAL = ("drafter", "num_draft_tokens", "recycling")
"""Parameters that say how a model is run here; elsewhere that is its server's business."""


def build_body(
    prompt: str | Sequence[Message] | Conversation, settings: Settings, server: ServedModel
) -> tuple[str, dict[str, Any]]:
    """The path and the body.

    Raises:
        ValueError: a parameter is meant for a model that is run here, or the answer's first words are given to a server
            that takes none.
    """
    for name in LOCAL:
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name} is {getattr(settings, name)!r}; on a server how to draft is the server's business."
            )
    if settings.logprobs is not None:
        raise ValueError(f"logprobs is {settings.logprobs}; they are told of models that run here, not of servers'.")
    if settings.response_prefix:
        raise ValueError(
            f"response_prefix is {settings.response_prefix!r}; that can be told to models that run here, not to servers."
        )
    options: dict[str, Any] = {"include_usage": True}
    if server.kind != "other":
        options["continuous_usage_stats"] = True
    body = {
        "model": server.model,
        "max_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stream_options": options,
        **_only({"seed": settings.seed, "stop": settings.stop_strings or None, "response_format": _form(settings)}),
        **_where_wanted(settings),
        **_of_its_own(settings, server),
    }
    if isinstance(prompt, str):
        return TEXT, body | {"prompt": prompt}
    return CHAT, body | _said(prompt if isinstance(prompt, Conversation) else Conversation(prompt), server)


def add_references(body: dict[str, Any], references: Sequence[str], server: ServedModel) -> dict[str, Any]:
    """The body with references where this server takes them; ``server`` is one that does."""
    if not references:
        return body
    if server.kind == "vllm":
        return body | {"vllm_xargs": {"references": list(references)}}
    return body | {"references": list(references)}


def _form(settings: Settings) -> dict[str, Any] | None:
    """The form of the answer, where it is to follow a JSON schema."""
    wanted = settings.json_schema
    if wanted is None:
        return None
    schema = wanted.schema if isinstance(wanted, JsonSchema) else wanted
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}


def _where_wanted(settings: Settings) -> dict[str, Any]:
    """What is left out where it is off."""
    bias = {str(token): value for token, value in (settings.logit_bias or {}).items()}
    wanted = {"presence_penalty": settings.presence_penalty, "frequency_penalty": settings.frequency_penalty}
    return {name: value for name, value in {**wanted, "logit_bias": bias}.items() if value}


def _of_its_own(settings: Settings, server: ServedModel) -> dict[str, Any]:
    """What OpenAI's protocol has no word for, as vLLM and most others call it; only what was asked for, elsewhere."""
    wanted = {
        "top_k": (settings.top_k, 0),
        "min_p": (settings.min_p, 0.0),
        "repetition_penalty": (settings.repetition_penalty, 1.0),
    }
    if server.kind == "other":
        return {name: value for name, (value, default) in wanted.items() if value != default}
    return {name: value for name, (value, _) in wanted.items()} | {"return_token_ids": True}


def _said(conversation: Conversation, server: ServedModel) -> dict[str, Any]:
    messages = [dict(message) for message in conversation.messages]
    said: dict[str, Any] = {"messages": messages}
    if conversation.tools:
        said["tools"] = [dict(tool) for tool in conversation.tools]
        said |= _only({"tool_choice": conversation.tool_choice or None})
    if conversation.assistant_prefix:
        if server.kind == "other":
            raise ValueError(
                f"The answer is to begin with {conversation.assistant_prefix!r}, which only vLLM and Antiphon's own server "
                "take; ask without an opening."
            )
        messages.append({"role": "assistant", "content": conversation.assistant_prefix})
        said |= {"add_generation_prompt": False, "continue_final_message": True}
    return said


def _only(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}

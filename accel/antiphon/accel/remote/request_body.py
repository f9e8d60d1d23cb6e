"""Build a request's body: prompt and parameters in OpenAI's format and a server's extensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.accel.constraints.json_schema import JsonSchema
from antiphon.accel.remote.client import CHAT_PATH, COMPLETION_PATH
from antiphon.accel.remote.server import ServedModel
from antiphon.accel.text.messages import Conversation
from antiphon.accel.text.parameters import Settings
from antiphon.accel.text.thinking_switch import EFFORT

LOCAL_ONLY = ("drafter", "num_draft_tokens", "recycling")
"""Drafting parameters of local models; a server decides itself how it drafts."""


EXTENDED = ("antiphon", "vllm")
"""Kinds of servers that accept extra parameters, and that continue messages of the assistant."""

THINKING_FIELDS = ("chat_template_kwargs", EFFORT, "think")
"""Fields of a request that a server may reject because it cannot switch thinking on or off."""


def build_body(prompt: str | Conversation, settings: Settings, model: ServedModel) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request.

    Raises:
        ValueError: A parameter only applies to local models, or the server cannot continue an assistant message.
    """
    _check(settings, model)
    is_known, penalty = model.kind in EXTENDED, settings.repetition_penalty
    body = _without_none(
        {
            "model": model.name,
            "max_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "stream_options": {"include_usage": True} | ({"continuous_usage_stats": True} if is_known else {}),
            "seed": settings.seed,
            "response_format": _response_format(settings),
            "max_thinking_tokens": settings.max_thinking_tokens,
            # Left out if they have no effect, because not every server knows them.
            "stop": settings.stop_strings or None,
            "presence_penalty": settings.presence_penalty or None,
            "frequency_penalty": settings.frequency_penalty or None,
            "logit_bias": {str(token): value for token, value in (settings.logit_bias or {}).items()} or None,
            "stop_token_ids": list(settings.stop_token_ids) or None,
            "min_tokens": settings.min_new_tokens or None,
            "ignore_eos": settings.ignore_eos or None,
            # Always given to vLLM and Antiphon, because their defaults may come from the model.
            "top_k": settings.top_k if is_known else settings.top_k or None,
            "min_p": settings.min_p if is_known else settings.min_p or None,
            "repetition_penalty": penalty if is_known or penalty != 1 else None,
            "return_token_ids": True if is_known else None,
        }
    )
    if isinstance(prompt, str):
        return COMPLETION_PATH, body | {"prompt": prompt + settings.response_prefix}
    prefix = prompt.assistant_prefix + settings.response_prefix
    return CHAT_PATH, body | _conversation_fields(prompt, prefix, model)


def add_references(body: dict[str, Any], references: Sequence[str], model: ServedModel) -> dict[str, Any]:
    """Return the body with references."""
    if model.kind == "vllm":
        return body | {"vllm_xargs": {"references": list(references)}}
    return body | {"references": list(references)}


def _check(settings: Settings, model: ServedModel) -> None:
    """Raise an error for parameters that this server does not support."""
    for name in LOCAL_ONLY:
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name} is {getattr(settings, name)!r}, but only local models take it: a server decides how it drafts."
            )
    if settings.logprobs is not None:
        raise ValueError(f"logprobs is {settings.logprobs}, but only local models return log-probabilities.")
    if settings.response_prefix and settings.json_schema is not None:
        raise ValueError(
            f"response_prefix is {settings.response_prefix!r}, and a server would apply the json_schema to the text "
            "after it; give one of the two."
        )
    if settings.max_thinking_tokens is not None and model.kind != "antiphon":
        raise ValueError(
            f"max_thinking_tokens is {settings.max_thinking_tokens}, which only local models and Antiphon's own "
            "server take; leave it out, or turn thinking off."
        )


def _response_format(settings: Settings) -> dict[str, Any] | None:
    schema = settings.json_schema
    if schema is None:
        return None
    schema = schema.schema if isinstance(schema, JsonSchema) else schema
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}


def _conversation_fields(conversation: Conversation, prefix: str, model: ServedModel) -> dict[str, Any]:
    """Return the fields of a request that contain its messages and tools.

    Args:
        prefix: Beginning of the answer, which the server continues.

    Raises:
        ValueError: There is a prefix, and the server cannot continue an assistant message.
    """
    messages = [dict(message) for message in conversation.messages]
    fields: dict[str, Any] = {"messages": messages, **_template_fields(conversation, model)}
    if conversation.tools:
        fields["tools"] = [dict(tool) for tool in conversation.tools]
        fields |= _without_none({"tool_choice": conversation.tool_choice or None})
    if prefix:
        if model.kind not in EXTENDED:
            raise ValueError(
                f"The answer has to continue {prefix!r} (assistant_prefix and response_prefix), which only vLLM and "
                "Antiphon's own server support for messages; leave it out, or give the prompt as one text."
            )
        messages.append({"role": "assistant", "content": prefix})
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    return fields


def _template_fields(conversation: Conversation, model: ServedModel) -> dict[str, Any]:
    """Return template variables and the thinking switch in the format of this kind of server."""
    variables, thinking = dict(conversation.template_variables), conversation.thinking
    effort = variables.get(EFFORT)
    if model.kind == "ollama":
        if thinking is None or model.thinks is False:
            return _without_none({EFFORT: effort})
        return {EFFORT: effort or ("medium" if thinking else "none"), "think": thinking}
    if thinking is not None:
        variables |= dict.fromkeys(("enable_thinking", "thinking"), thinking)
    own = _without_none({EFFORT: effort}) if model.kind in ("lmstudio", "other") else {}
    return ({"chat_template_kwargs": variables} if variables else {}) | own


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}

"""Find the traits of a chat template by rendering short conversations, and adapt messages to them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message that hold its reasoning; the first is the standard one."""


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """Return the text of messages as a chat template writes them.

    Args:
        tools: Tools as JSON schemas.
        variables: Further variables of the template, such as ``add_generation_prompt`` and the special tokens.

    Raises:
        TypeError: A document is not a dictionary.
        jinja2.TemplateError: The template rejects the messages.
    """
    if any(not isinstance(document, dict) for document in documents or ()):
        raise TypeError("Documents should be a list of dicts with 'title' and 'text' keys!")
    given = [{name: value for name, value in message.items() if value is not None} for message in messages]
    chat = []
    for message in _plain(given):
        found = [message[name] for name in _REASONING if message.get(name) is not None]
        chat.append({"thinking": found[0], **message, "reasoning_content": found[0]} if found else message)
    return _compile(template).render(
        messages=chat, tools=_plain(tools), documents=_plain(documents), **_plain(variables)
    )


def _plain(value: Any) -> Any:
    """Return a copy in plain JSON types; any other object is replaced by the name of its type."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return getattr(kind, f"__{kind.__name__}__")(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)):
        return _plain(value.model_dump())
    return f"<{type(value).__name__}>"


class _Generation(Extension):
    """The block ``generation`` of templates, which marks the assistant's text. Here it only renders its contents."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """The function ``dict`` of templates, without access to attributes of Python's ``dict``."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """A namespace of templates without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *others = args
        for name in (values := dict(*others, **kwargs)):
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"Chat templates cannot store underscore-prefixed attributes on a namespace, but got {name!r}. "
            "Please rename the attribute."
        )


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=64)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(template)


Messages = Sequence[Mapping[str, Any]]

_SYSTEM, _FIRST, _ANSWER, _LAST, _LATER = ("PROBE-SYSTEM", "PROBE-FIRST", "PROBE-ANSWER", "PROBE-LAST", "PROBE-LATER")

OMITTED = "(The beginning of the conversation is left out.)"
"""User message that is put before a first assistant message if the template demands one."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """The kinds of messages that a chat template supports.

    Attributes:
        has_system_role: Whether a system message at the start is rendered before the first user message.
        has_later_system: Whether a system message between other messages is rendered at its place.
        alternates: Whether user and assistant must take turns, beginning with the user.
        takes_system_alone: Whether a conversation may consist of a system message only.
        takes_text: Whether the content of a message may be a text; if not, it must be a list of parts.
        takes_no_tools: Whether the tools may be None; if not, an empty list must be given.
    """

    has_system_role: bool
    has_later_system: bool
    alternates: bool
    takes_system_alone: bool = True
    takes_text: bool = True
    takes_no_tools: bool = True


def template_traits(tokenizer: PreTrainedTokenizerBase) -> TemplateTraits:
    """Return the traits of a tokenizer's chat template, found once per template, by rendering probes."""
    return _probe(RenderedTemplate(str(tokenizer.chat_template), tokenizer))


def render(tokenizer: PreTrainedTokenizerBase, messages: Messages, /, **variables: Any) -> str:
    """Return the text of messages as the chat template writes them."""
    options = {"add_generation_prompt": True} | variables
    if (own := getattr(tokenizer, "render", None)) is not None:  # of a `FileTokenizer`
        return str(own(messages, **options))
    options["tokenize"] = False
    return str(tokenizer.apply_chat_template([dict(message) for message in messages], **options))


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    """A template, and a tokenizer that renders the template. Objects with the same template text are equal."""

    text: str
    tokenizer: PreTrainedTokenizerBase = field(compare=False)

    def render(self, messages: Messages, tools: Any = None, **variables: Any) -> str:
        """Return the rendered text; empty if the template rejects the messages."""
        try:
            return render(self.tokenizer, messages, tools=tools, **variables)
        except Exception:  # noqa: BLE001 - a template may raise anything, by itself or in a filter
            return ""


@lru_cache(maxsize=64)
def _probe(template: RenderedTemplate) -> TemplateTraits:
    user, answer = _text("user", _FIRST), _text("assistant", _ANSWER)
    last, system, later = _text("user", _LAST), _text("system", _SYSTEM), _text("system", _LATER)
    takes_no_tools = bool(template.render([user])) or not template.render([user], [])
    tools: Any = None if takes_no_tools else []

    takes_text = _FIRST in template.render([user], tools) or _FIRST not in template.render([_with_parts(user)], tools)

    def write(*messages: dict[str, Any]) -> str:
        return template.render(messages if takes_text else [_with_parts(message) for message in messages], tools)

    return TemplateTraits(
        has_system_role=all(
            _in_order(text, _SYSTEM, _FIRST) for text in (write(system, user), write(system, user, answer, last))
        ),
        has_later_system=_in_order(write(user, answer, later, last), _FIRST, _ANSWER, _LATER, _LAST),
        alternates=not (_in_order(write(user, last), _FIRST, _LAST) and _in_order(write(answer, last), _ANSWER, _LAST)),
        takes_system_alone=_SYSTEM in write(system),
        takes_text=takes_text,
        takes_no_tools=takes_no_tools,
    )


def _text(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _in_order(text: str, *parts: str) -> bool:
    """Return whether each part occurs once in a text, in this order."""
    places = [text.find(part) for part in parts]
    return min(places) >= 0 and places == sorted(places) and all(text.count(part) == 1 for part in parts)


def adapt_messages(messages: Messages, traits: TemplateTraits) -> list[dict[str, Any]]:
    """Adapt messages to a template with these traits, without losing text.

    1. System messages that the template does not support become a part of the next user message.
    2. If user and assistant must take turns, empty assistant messages are removed, adjacent messages of one role are
       merged, and a user message is put before an assistant message at the start.
    3. Text becomes a list of parts if the template requires it.
    """
    adapted = _without_system([dict(message) for message in messages], traits)
    if traits.alternates:
        adapted = _alternating(adapted)
    return adapted if traits.takes_text else [_with_parts(message) for message in adapted]


def _without_system(messages: list[dict[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Move the text of unsupported system messages to the beginning of the next user message."""
    kept: list[dict[str, Any]] = []
    held: list[str] = []
    is_start = traits.takes_system_alone or any(message["role"] != "system" for message in messages)
    for message in messages:
        is_start = is_start and message["role"] == "system"
        if message["role"] == "system" and not (traits.has_system_role if is_start else traits.has_later_system):
            held.append(str(message["content"]))
        elif message["role"] == "user" and held:
            kept.append({**message, "content": _joined([*held, str(message["content"])])})
            held = []
        else:
            kept.append(message)
    if held:
        kept.append({"role": "user", "content": _joined(held)})
    return kept


def _alternating(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
            continue
        is_turn = message["role"] in ("user", "assistant") and not message.get("tool_calls")
        if is_turn and turns and turns[-1]["role"] == message["role"] and not turns[-1].get("tool_calls"):
            turns[-1] = {**turns[-1], "content": _joined([str(turns[-1]["content"]), str(message["content"])])}
        else:
            turns.append(message)
    first = next((place for place, message in enumerate(turns) if message["role"] != "system"), None)
    if first is not None and turns[first]["role"] == "assistant":
        turns.insert(first, {"role": "user", "content": OMITTED})
    return turns


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message

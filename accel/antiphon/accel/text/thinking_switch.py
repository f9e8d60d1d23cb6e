"""Find a chat template's switch of thinking by rendering probes, and set a request's variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from antiphon.accel.text.template_traits import RenderedTemplate, adapt_messages, template_traits
from antiphon.accel.text.thinking import ThinkingFormat, thinking_format

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SWITCHES: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_budget", None, 0),
)
"""Variables that turn thinking on and off, with their values for on and off; None leaves the variable out."""

_NAMES = re.compile(r"(?<![.\w'\"])\w*(?:think|reason)\w*", re.IGNORECASE)
"""Matches words of a template that may be the name of such a variable."""

EFFORT = "reasoning_effort"
NO_EFFORT, LEAST, MOST = ("none", "minimal"), "low", "high"
"""Values of `reasoning_effort`: no thinking, and the least and the most that templates know."""

_SYSTEM, _USER = {"role": "system", "content": "PROBE-SYSTEM"}, {"role": "user", "content": "PROBE-USER"}


@dataclass(frozen=True, slots=True)
class ThinkingTraits:
    """The marks and the switch of a model's thinking.

    Attributes:
        format: The marks of the thinking; None if the model does not think.
        switch: Name of the template variable that turns thinking on and off; empty if there is none.
        on: Variables that turn thinking on.
        off: Variables that turn thinking off, or reduce it if there is no switch.
        has_effort: Whether the template writes ``reasoning_effort``.
        default: By default, the prompt begins the thinking ("always"), ends it ("never"), or leaves
            the choice to the model ("model").
    """

    format: ThinkingFormat | None = None
    switch: str = ""
    on: Mapping[str, Any] | None = None
    off: Mapping[str, Any] | None = None
    has_effort: bool = False
    default: Literal["always", "never", "model"] = "never"

    def __str__(self) -> str:
        if self.format is None:
            return "no thinking"
        marks = "channels" if self.format.has_channels else f"{self.format.start} … {self.format.end}"
        default = {"always": "on", "never": "off", "model": "the model decides"}[self.default]
        switch = f"switch {self.switch}" if self.switch else "no switch"
        return f"{marks}, {switch}{', reasoning_effort' if self.has_effort else ''}, default: {default}"


def thinking_traits(tokenizer: PreTrainedTokenizerBase) -> ThinkingTraits:
    """Return the thinking traits of a tokenizer's chat template, found once per template, by rendering probes."""
    if tokenizer.chat_template is None:
        return ThinkingTraits()
    return _probe(RenderedTemplate(str(tokenizer.chat_template), tokenizer), thinking_format(tokenizer))


@lru_cache(maxsize=64)
def _probe(template: RenderedTemplate, marks: ThinkingFormat | None) -> ThinkingTraits:
    if marks is None:
        return ThinkingTraits()
    traits = template_traits(template.tokenizer)
    conversations = [adapt_messages(each, traits) for each in ([_SYSTEM, _USER], [_USER])]
    tools: Any = None if traits.takes_no_tools else []

    def render(**variables: Any) -> list[str]:
        return [template.render(each, tools, **variables) for each in conversations]

    plain = render()
    state = marks.state_after(plain[-1])
    default: Any = {"thinking": "always", "answer": "never", "before": "model"}[state]
    has_effort = render(**{EFFORT: LEAST}) != render(**{EFFORT: MOST})
    for name, on, off in (*SWITCHES, *_other_switches(template.text)):
        switched = {True: {} if on is None else {name: on}, False: {name: off}}
        if render(**switched[True]) != render(**switched[False]):
            return ThinkingTraits(marks, name, switched[True], switched[False], has_effort, default)
    least = {EFFORT: LEAST} if has_effort else None
    return ThinkingTraits(marks, off=least, has_effort=has_effort, default=default)


def _other_switches(template: str) -> list[tuple[str, Any, Any]]:
    """Return words of a template that may be further switches, with values for on and off."""
    known = {EFFORT, *(name for name, _, _ in SWITCHES)}
    names = [name for name in dict.fromkeys(_NAMES.findall(template)) if name not in known and "effort" not in name]
    return [(name, None, 0) if "budget" in name else (name, True, False) for name in names]


def template_variables(
    tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any], thinking: bool | None
) -> dict[str, Any]:
    """Return the variables for a chat template.

    1. ``thinking`` sets the template's switch. If the template has efforts but no switch, False
       selects the least effort. If ``thinking`` is None and the variables contain a known switch of
       other templates, that switch is used instead.
    2. ``reasoning_effort`` "none" and "minimal" turn thinking off if there is a switch; otherwise they become "low".

    Args:
        thinking: Whether to turn thinking on or off; None: the default of the template.

    Raises:
        ValueError: A variable has the name of an argument of ``apply_chat_template``.
    """
    check_template_variables(given)
    if not given and thinking is None:
        return {}
    traits, variables = thinking_traits(tokenizer), dict(given)
    if thinking is None and traits.switch not in given:
        thinking = _asked(given)
    if traits.has_effort and EFFORT in given:
        known = {**dict.fromkeys(NO_EFFORT, LEAST), "xhigh": MOST, "max": MOST}
        variables[EFFORT] = known.get(str(given[EFFORT]), given[EFFORT])
    if thinking is not None:
        variables |= (traits.on if thinking else traits.off) or {}
    return variables


def asks_about_thinking(given: Mapping[str, Any]) -> bool:
    """Return whether variables of a chat template turn thinking on or off."""
    return _asked(given) is not None


def _asked(given: Mapping[str, Any]) -> bool | None:
    """Return whether variables turn thinking on; None if they do not set it."""
    for name, _, off in SWITCHES:
        if given.get(name) is not None:
            return bool(given[name] != off and given[name] is not False)
    effort = given.get(EFFORT)
    return None if effort is None else effort not in NO_EFFORT


def check_template_variables(given: Mapping[str, Any]) -> None:
    """Raise an error for variables that would change how the template is applied.

    Raises:
        ValueError: A variable has the name of an argument of ``apply_chat_template``.
    """
    if not given:
        return
    reserved = {*_arguments(), "messages", "raise_exception", "strftime_now"} - {"documents", "kwargs"}
    if taken := sorted(reserved & given.keys()):
        raise ValueError(
            f"template_variables has {taken[0]!r}, which is no variable of a chat template; leave it out. "
            "Messages, tools and the beginning of the answer have their own parameters."
        )


@lru_cache(maxsize=1)
def _arguments() -> frozenset[str]:
    from transformers import PreTrainedTokenizerBase

    return frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)

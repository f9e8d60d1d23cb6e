"""The requests of a step as drafters need them, and settings that select this package's proposer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

METHOD = "custom_class"
"""Value of ``method`` in vLLM's ``--speculative-config`` that selects a drafter of this package."""

HEAD_TOKENS = "ANTIPHON_HEAD_TOKENS"
"""Environment variable with the number of tokens that the model's own head drafts. If it is set,
references are used in addition to the head."""

HEAD_METHODS = frozenset({"eagle", "eagle3", "mtp"})
"""Values of ``method`` that draft with a head of the model."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A request that emitted tokens in the step that was just computed.

    Attributes:
        request_id: vLLM's id of the request.
        owner: State of the request in the model runner. If it differs, the same id belongs to
            another request.
        extra_args: Arguments of the request, including its admitted sources; None if the request has no arguments.
        num_prompt_tokens: Number of tokens of the prompt.
        num_tokens: Number of tokens of prompt and answer.
        read: Function that returns the token ids from a start position up to an end position.
        max_draft_tokens: Maximum number of tokens of the request's next draft; None: only the
            drafter's limit applies.
    """

    request_id: str
    owner: Any
    extra_args: Mapping[str, Any] | None
    num_prompt_tokens: int
    num_tokens: int
    read: Callable[[int, int], list[int]]
    max_draft_tokens: int | None = None


def is_proposer(drafter: object) -> bool:
    """Return whether vLLM's drafter, an object or a class, is a `Proposer`."""
    return hasattr(drafter, "prepare_step")


def _names_proposer(speculative_config: Any) -> bool:
    if getattr(speculative_config, "method", None) != METHOD:
        return False
    try:
        return is_proposer(resolve_name(speculative_config.model))
    except (ImportError, AttributeError, ValueError):
        return False


def head_tokens() -> int:
    """Return the value of `HEAD_TOKENS`, or 0 if it is not set.

    Raises:
        ValueError: The value is not a number.
    """
    given = os.environ.get(HEAD_TOKENS, "0")
    if not given.isdecimal():
        raise ValueError(f"{HEAD_TOKENS} is {given!r}; give the number of tokens that the head drafts in a step.")
    return int(given)


def combines_head(speculative_config: Any) -> bool:
    """Return whether this server drafts both with the model's own head and from references."""
    return getattr(speculative_config, "method", None) in HEAD_METHODS and head_tokens() > 0


def reads_references(speculative_config: Any) -> bool:
    """Return whether a server with this speculative configuration uses references in requests."""
    return _names_proposer(speculative_config) or combines_head(speculative_config)

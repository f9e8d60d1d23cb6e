"""Errors of models on a server. This module does not use HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.accel.text.completion import Completion


class RemoteError(OSError):
    """A request to a server failed; the message names the server, the reason and what to do.

    Its ``__cause__`` is the error of ``openai`` or ``httpx``, if there was one.

    Attributes:
        status: HTTP status of the response; None if the server cannot be reached or the connection broke.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BrokenStreamError(RemoteError):
    """A stream ended prematurely.

    Attributes:
        completion: The completion received so far, with the finish reason "cancelled".
    """

    def __init__(self, message: str, completion: Completion) -> None:
        super().__init__(message)
        self.completion = completion


def unreachable(url: str, why: str) -> str:
    """Return the message for a server that cannot be reached."""
    return f"{url} cannot be reached ({why}); is the server running there?"


def rejected_key(url: str, said: str) -> str:
    """Return the message for a server that rejects the API key."""
    return f"{url} rejects the API key ({said}); give a valid api_key."


def wrong_protocol(url: str) -> str:
    """Return the message for an address that is not a server with OpenAI's protocol."""
    return (
        f"{url} answers, but not like an OpenAI-compatible server; give the address that its clients use, which mostly "
        "ends in /v1."
    )

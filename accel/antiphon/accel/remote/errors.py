"""Errors of models on a server. Independent of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.accel.text.completion import Completion


class RemoteError(OSError):
    """A request to a server failed; the message says which server, why and what to do."""


class UnreachableError(RemoteError):
    """There is no server at the address, or it did not answer in time."""


class AddressError(RemoteError):
    """There is a server at the address, but it does not speak OpenAI's protocol."""


class AuthenticationError(RemoteError):
    """The server rejects the API key."""


class ModelNotFoundError(RemoteError):
    """The server has no model of this name."""


class TooManyRequestsError(RemoteError):
    """The server accepts no more requests at the moment, after all retries."""


class RequestRejectedError(RemoteError):
    """The server rejects the request as invalid."""


class ServerFailedError(RemoteError):
    """The server failed internally."""


class BrokenStreamError(RemoteError):
    """A stream broke off.

    Attributes:
        completion: What had been received, with the finish reason "cancelled".
    """

    def __init__(self, message: str, completion: Completion) -> None:
        super().__init__(message)
        self.completion = completion

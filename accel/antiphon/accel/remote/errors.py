"""What can go wrong between here and a model elsewhere, each a type of its own. Knows no HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.accel.text.completion import Completion


class RemoteError(OSError):
    """A server did not do what it was asked; the message is a sentence that says which, why and what helps."""


class UnreachableError(RemoteError):
    """Nobody answered at the address, or not in time."""


class AddressError(RemoteError):
    """Somebody answered, who does not speak OpenAI's protocol there."""


class AuthenticationError(RemoteError):
    """The server wants another key."""


class ModelNotFoundError(RemoteError):
    """The server has no model of that name."""


class TooManyRequestsError(RemoteError):
    """The server takes no further request now, after all retries."""


class RequestRejectedError(RemoteError):
    """The server refuses the request as it is."""


class ServerFailedError(RemoteError):
    """The server failed inside."""


class BrokenStreamError(RemoteError):
    """The answer broke off; ``completion`` is what had been received, with the finish reason "cancelled"."""

    def __init__(self, message: str, completion: Completion) -> None:
        super().__init__(message)
        self.completion = completion

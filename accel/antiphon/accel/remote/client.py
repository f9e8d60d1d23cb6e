"""The client of OpenAI's protocol, and its errors as sentences. Alone knows the packages ``openai`` and ``httpx``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import finalize

from antiphon.accel.remote.errors import (
    AddressError,
    AuthenticationError,
    ModelNotFoundError,
    RequestRejectedError,
    RemoteError,
    ServerFailedError,
    TooManyRequestsError,
    UnreachableError,
)

try:
    import httpx
    import openai
except ImportError as error:
    raise ImportError("A model on a server needs the package openai; run: pip install 'antiphon[remote]'") from error

CONNECT_SECONDS = 10.0
"""How long a connection may take to come about; the answer itself may take longer."""

BROKEN = (httpx.HTTPError, openai.APIError)
"""What reading an answer raises when the connection breaks, or the server reports an error in its midst."""

NO_KEY = "none"
"""Sent where no key was given: the client wants one, and a server without keys does not look."""


class Client:
    """One server's address and how it is asked; any number of threads may ask at once.

    What fails for reasons that pass (no connection, 408, 409, 429, 5xx) is asked again up to ``retries`` times, each
    time after a longer pause, or after the one that the server asks for.

    Raises:
        ValueError: the address is none.
    """

    def __init__(self, base_url: str, *, api_key: str | None, timeout: float, retries: int) -> None:
        place = urlsplit(base_url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"base_url is {base_url!r}; it must be an address such as 'http://localhost:8000/v1'.")
        self.base_url = base_url.rstrip("/")
        self._client = openai.OpenAI(
            base_url=self.base_url,
            api_key=api_key or NO_KEY,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
            max_retries=retries,
        )
        finalize(self, self._client.close)  # kept connections end with whoever kept them

    def models(self) -> list[dict[str, Any]]:
        """The server's models, as it describes them.

        Raises:
            RemoteError: it cannot be asked, or does not say.
        """
        with self._told():
            found = self._client.get("/models", cast_to=object)
        entries = found.get("data") if isinstance(found, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(each, Mapping) and "id" in each for each in entries):
            raise AddressError(self._no_protocol())
        return [dict(each) for each in entries]

    def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON that the server answers, at a path below ``base_url`` or (with a leading "/..") beside it.

        Raises:
            RemoteError: it cannot be asked, or refuses.
        """
        with self._told(body.get("model")):
            answer = self._client.post(self._beside(path), cast_to=object, body=dict(body))
        return answer if isinstance(answer, Mapping) else {}

    def stream(self, path: str, body: Mapping[str, Any]) -> Any:
        """The chunks of an answer, as they come: an iterable with ``close``.

        Raises:
            RemoteError: it cannot be asked, or refuses.
        """
        create: Any = self._client.chat.completions if path == "/chat/completions" else self._client.completions
        known = {name: body[name] for name in body.keys() & KNOWN}
        others = {name: body[name] for name in body.keys() - KNOWN}
        with self._told(body.get("model")):
            return create.create(**known, stream=True, extra_body=others)

    def _beside(self, path: str) -> str:
        return self.base_url.removesuffix("/v1") + path[3:] if path.startswith("/..") else path

    @contextmanager
    def _told(self, model: Any = None) -> Iterator[None]:
        try:
            yield
        except openai.APIError as error:
            raise self.explained(error, model) from error

    def explained(self, error: Exception, model: Any = None) -> RemoteError:
        """The error as one of ours, in a sentence."""
        said = _message(error)
        match error:
            case openai.APITimeoutError() | httpx.TimeoutException():
                return UnreachableError(
                    f"{self.base_url} did not answer in time; is it busy, or the timeout too short?"
                )
            case openai.APIConnectionError():
                cause = error.__cause__ or error
                return UnreachableError(f"{self.base_url} cannot be reached ({cause}); is the server running there?")
            case httpx.HTTPError():
                return UnreachableError(
                    f"The connection to {self.base_url} broke ({said}); is the server still running?"
                )
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                return AuthenticationError(f"{self.base_url} rejects the key ({said}); give its own: api_key=...")
            case openai.NotFoundError() if model is not None and str(model) in said:
                return ModelNotFoundError(f"{self.base_url} has no model {model!r} ({said}).")
            case openai.NotFoundError():
                return AddressError(self._no_protocol())
            case openai.RateLimitError():
                return TooManyRequestsError(f"{self.base_url} takes no more requests now ({said}); try again later.")
            case openai.APIStatusError() if error.status_code < 500:
                return RequestRejectedError(f"{self.base_url} refuses the request ({error.status_code}): {said}")
            case openai.APIStatusError():
                return ServerFailedError(f"{self.base_url} failed ({error.status_code}): {said}")
            case openai.APIError() if _code(error) < 500:  # an event of a stream that had begun already
                return RequestRejectedError(f"{self.base_url} refuses the request ({_code(error)}): {said}")
        return ServerFailedError(f"{self.base_url} failed: {said}")

    def _no_protocol(self) -> str:
        return (
            f"{self.base_url} answers, but not as an OpenAI-compatible server does; give the address that its clients "
            "are given, which mostly ends in /v1."
        )


KNOWN = frozenset(
    (
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "tools",
        "tool_choice",
        "stream_options",
    )
)
"""What the client takes by name; everything else goes beside it, as the server's own."""


def _code(error: openai.APIError) -> int:
    """The status that an error within a stream would have had before it; 500 where the server does not say."""
    body = error.body
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, int) else 500


def _message(error: Exception) -> str:
    """What the server said, without the client's words around it."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        said = inner.get("message") if isinstance(inner, Mapping) else inner
        return str(said or body)
    return str(error)

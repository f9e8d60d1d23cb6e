"""HTTP client for OpenAI's protocol, with readable errors. Only this file uses ``openai``."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from weakref import finalize

import httpx
import openai
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from antiphon.accel.remote.errors import RemoteError, rejected_key, unreachable, wrong_protocol
from antiphon.accel.remote.server import check_url

CONNECT_SECONDS = 10.0
"""Timeout for opening a connection; the timeout for the completion can be longer."""

STREAM_ERRORS = (httpx.HTTPError, openai.APIError)
"""Errors that reading a stream raises if the connection breaks or the server reports an error."""

NO_KEY = "none"
"""Sent if there is no API key: the ``openai`` package needs one, and servers without keys ignore it."""

CHAT_PATH, COMPLETION_PATH = "/chat/completions", "/completions"
"""Endpoints for messages and for a text to continue, below the base URL."""


class Client:
    """Sends requests to one server. Thread-safe.

    Temporary failures (no connection, 408, 409, 429, 5xx) are retried after increasing pauses, or after the pause
    requested by the server.

    Args:
        base_url: Address of the API, such as "http://localhost:8000/v1".
        api_key: API key; None for servers without keys.
        timeout: Maximum seconds to wait for a response, and between two pieces of a stream.
        retries: Maximum number of retries.

    Raises:
        ValueError: ``base_url`` is not an HTTP address.
    """

    def __init__(self, base_url: str, *, api_key: str | None, timeout: float, retries: int) -> None:
        self.base_url = check_url(base_url)
        self._client = openai.OpenAI(
            base_url=self.base_url,
            api_key=api_key or NO_KEY,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
            max_retries=retries,
        )
        finalize(self, self._client.close)  # close kept-alive connections with this object

    def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the JSON of the response.

        Args:
            path: Path below ``base_url``; a leading "/.." removes "/v1" from ``base_url``.

        Raises:
            RemoteError: The request failed.
        """
        url = self.base_url.removesuffix("/v1") + path[3:] if path.startswith("/..") else path
        with self._translated_errors(body.get("model")):
            answer = self._client.post(url, cast_to=object, body=dict(body))
        return answer if isinstance(answer, Mapping) else {}

    def stream(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request. Return a stream that yields each typed event as it arrives, and has ``close()``.

        Args:
            path: `CHAT_PATH` or `COMPLETION_PATH`.

        Raises:
            RemoteError: The request failed.
        """
        event: Any = ChatCompletionChunk if path == CHAT_PATH else Completion
        with self._translated_errors(body.get("model")):
            return self._client.post(
                path, cast_to=event, body={**body, "stream": True}, stream=True, stream_cls=openai.Stream[event]
            )

    def has_plugin(self, model: str) -> bool:
        """Return whether a vLLM server has Antiphon's plug-in.

        The method sends a number in place of references. The plug-in rejects the number; servers
        without the plug-in ignore the field.
        """
        body = {"model": model, "prompt": ".", "max_tokens": 1, "vllm_xargs": {"references": 0}}
        try:
            self.post(COMPLETION_PATH, body)
        except RemoteError as error:
            return error.status in (400, 422)
        return False

    @contextmanager
    def _translated_errors(self, model: Any = None) -> Iterator[None]:
        try:
            yield
        except openai.APIError as error:
            raise translate_error(self.base_url, error, model) from error


def shut_down(stream: Any) -> None:
    """Shut down the connection of a stream that another thread may be reading.

    Closing alone does not wake that thread: it waits for data or the timeout, and the server goes on generating.
    """
    response: httpx.Response = stream.response
    if not response.is_closed:  # else the connection may already serve another request
        with suppress(OSError):  # broken
            response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def translate_error(url: str, error: Exception, model: Any = None) -> RemoteError:
    """Convert an error of ``openai`` or ``httpx`` to a `RemoteError` with an explanation.

    Args:
        model: Name of the requested model; None if unknown.
    """
    said, status = _message(error), _status(error)
    match error:
        case openai.APITimeoutError() | httpx.TimeoutException():
            why = "did not answer in time; is it busy, or the timeout too short?"
        case openai.APIConnectionError():
            return RemoteError(unreachable(url, str(error.__cause__ or error)), status)
        case httpx.HTTPError():
            return RemoteError(f"The connection to {url} broke ({said}); is the server still running?")
        case openai.AuthenticationError() | openai.PermissionDeniedError():
            return RemoteError(rejected_key(url, said), status)
        case openai.NotFoundError() if model is not None and str(model) in said:
            why = f"has no model {model!r} ({said})."
        case openai.NotFoundError():
            return RemoteError(wrong_protocol(url), status)
        case openai.RateLimitError():
            why = f"takes no more requests now ({said}); try again later."
        case _ if status is not None and status < 500:
            why = f"rejects the request ({status}): {said}"
        case _:
            why = f"failed{'' if status is None else f' ({status})'}: {said}"
    return RemoteError(f"{url} {why}", status)


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error, which may be an error event within a stream; None if unknown."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code
    body = getattr(error, "body", None)
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, int) else None


def _message(error: Exception) -> str:
    """Return the server's own message, without the client's additions."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        said = inner.get("message") if isinstance(inner, Mapping) else inner
        return str(said or body)
    return str(error)

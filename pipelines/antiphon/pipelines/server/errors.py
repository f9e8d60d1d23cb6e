"""Errors in OpenAI's format: message, type, parameter and code."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from antiphon.accel.remote.errors import RemoteError
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.pipelines.rendering.sanitize import sanitize_line
from antiphon.retrieval.errors import DatabaseUnavailable, IndexCorrupt, IndexMismatch, IndexNotFound

NOT_FOUND = "This server has no such endpoint; those of OpenAI's protocol begin with /v1."
NOT_AN_OBJECT = "The body must be a JSON object, with the header Content-Type: application/json; that header was: {}."
NO_INDEX = "The index of the documents cannot be read; the log of the server says why."
NO_DATABASE = "The database of the documents does not answer; try again later."
INTERNAL_ERROR = "The server failed internally; its log has the details under this request's id."

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""The code by which clients recognize that they have to shorten their input."""

_SETTINGS = {"min_new_tokens": "min_tokens", "ignore_eos": "ignore_eos", "stop_token_ids": "stop_token_ids"}
"""For settings that are checked after the request is read: the request parameters that set them."""

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

_TYPE_NAME = re.compile(r"str|int|float|bool|dict|list|(?:list|dict|constrained|function|nullable)\W.*|[A-Z]\w*")
"""Names of union members that pydantic inserts into the location of an error."""

logger = logging.getLogger("antiphon.server")


class ErrorDetail(BaseModel):
    """An error in the format that OpenAI's clients expect."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 404, 408, 413, 429, 500, 501, 503)
}
"""The error responses that endpoints declare in the OpenAPI schema."""


class ApiError(Exception):
    """An error that is sent to the client as a response.

    Args:
        param: the request parameter at fault, if there is one.
        code: a machine-readable code; by default the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers


class BodyError(HTTPException):
    """An error while the body is read.

    It derives from HTTPException. If the reading of the body raised any other exception, FastAPI
    would answer with status 400.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, str(error), error.headers)
        self.error = error


def unsupported_parameter(param: str, message: str) -> ApiError:
    """Return the error (400) for an unsupported parameter, or for an unsupported value of a parameter."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def shutdown_error() -> ApiError:
    """Return the error for requests that are unfinished when the server shuts down."""
    message = "The server is shutting down, and this answer is not finished; try again later."
    return ApiError(503, message, code="server_shutting_down")


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error response; characters that JSON cannot encode are replaced."""
    error_type = ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    message = str(error).encode("utf-8", "replace").decode()
    detail = ErrorDetail(message=message, type=error_type, param=error.param, code=error.code or str(error.status))
    return ErrorBody(error=detail).model_dump()


def error_response(error: ApiError) -> JSONResponse:
    """Return the error as an HTTP response."""
    return JSONResponse(error_body(error), error.status, headers=error.headers)


def to_api_error(error: BaseException) -> ApiError:
    """Convert an exception to the error that the client receives.

    Messages of ValueError, TypeError and ImportError are sent to the client. Errors of a model's
    server are sent, too, but without the server's address. A RecursionError means that the body is
    nested too deeply. Any other error is logged and its message is not sent.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BodyError):
        return error.error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), code=CONTEXT_LENGTH_EXCEEDED)
    if isinstance(error, DatabaseUnavailable):
        logger.error("the database of the documents cannot be used: %s", error)
        return ApiError(503, NO_DATABASE, headers={"Retry-After": "5"})
    if isinstance(error, (IndexCorrupt, IndexMismatch, IndexNotFound)):  # their messages name folders of this machine
        logger.error("the index of the documents cannot be used: %s", error)
        return ApiError(503, NO_INDEX)
    if isinstance(error, RemoteError):
        logger.warning("the server of the model failed: %s", error)
        status = error.status if error.status in (400, 422, 429) else 502
        return ApiError(status, re.sub(r"https?://\S+", "The server of the model", str(error)))
    if isinstance(error, (ValueError, TypeError)):
        name, _, rest = str(error).partition(" is ")
        param = _SETTINGS.get(name)
        return ApiError(400, f"{param} is {rest}" if param else str(error), param=param)
    if isinstance(error, RecursionError):
        logger.warning("a request is nested too deeply", exc_info=error)
        return ApiError(400, "A schema or another part of the body is nested too deeply; make it flatter.")
    if isinstance(error, ImportError):
        return ApiError(501, str(error))
    logger.error("a request failed", exc_info=error)
    return ApiError(500, INTERNAL_ERROR)


def _parameter(location: Sequence[str | int]) -> str | None:
    """Return a parameter's dotted name from the location in pydantic's error; names of union members are left out."""
    names = [str(part) for part in location[1:] if isinstance(part, int) or not _TYPE_NAME.fullmatch(part)]
    return ".".join(names) or None


def add_error_handlers(app: FastAPI) -> None:
    """Make the application answer every error in OpenAI's format."""

    @app.exception_handler(ApiError)
    @app.exception_handler(DatabaseUnavailable)
    @app.exception_handler(BodyError)
    async def _known_error(_: Request, error: Exception) -> JSONResponse:
        return error_response(to_api_error(error))

    @app.exception_handler(RequestValidationError)
    async def _validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        if tuple(found[0]["loc"]) == ("body",):
            content_type = request.headers.get("content-type", "")
            return error_response(ApiError(400, NOT_AN_OBJECT.format(sanitize_line(content_type)[:80] or "none")))
        if found[0]["type"] == "json_invalid":
            return error_response(ApiError(400, f"The body is not valid JSON: {found[0]['ctx']['error']}."))
        param = _parameter(found[0]["loc"])
        reasons = [str(each["msg"]) for each in found if _parameter(each["loc"]) == param]
        message = "; or: ".join(dict.fromkeys(reasons))
        return error_response(ApiError(400, f"{param}: {message}" if param else message, param=param))

    @app.exception_handler(HTTPException)
    async def _http_exception(_: Request, error: HTTPException) -> JSONResponse:
        messages = {404: NOT_FOUND, 405: "This endpoint does not support that HTTP method."}
        message = messages.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return error_response(ApiError(error.status_code, message, headers=headers))

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(ApiError(500, INTERNAL_ERROR))

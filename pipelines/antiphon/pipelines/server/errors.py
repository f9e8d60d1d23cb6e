"""Errors in OpenAI's form: a sentence, a type, the parameter at fault and a code. Knows no endpoint."""

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

from antiphon.pipelines.rendering.visible import visible_line

NOTHING = "There is nothing at this address; those of OpenAI's protocol begin with /v1."
NO_OBJECT = "The body has to be a JSON object, with the header Content-Type: application/json; that header was: {}."

_KIND = re.compile(r"str|int|float|bool|dict|list|(?:list|dict|constrained|function|nullable)\W.*|[A-Z]\w*")
"""What pydantic calls the kinds of a union, in the place of an error."""

logger = logging.getLogger("antiphon.server")

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
INVALID = "invalid_request_error"
FAILED = "The server failed inside; its log says more, under this request's id."


class ErrorDetail(BaseModel):
    """What went wrong, as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is none."""

    error: ErrorDetail


class ApiError(Exception):
    """A request is refused: the status, a sentence, and which parameter is at fault, if one is."""

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
    """A body is refused while it is read; of the framework's own kind, since it makes a 400 of any other then."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, str(error), error.headers)
        self.error = error


def refused_error(param: str, reason: str) -> ApiError:
    """The error of a parameter that is not offered, or not with this value."""
    return ApiError(400, reason, param=param, code="unsupported_parameter")


def ending() -> ApiError:
    """The error of what is not ready when the server ends."""
    return ApiError(503, "The server is ending, and this answer is not ready; ask again later.", code="server_ending")


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body; characters that no JSON can hold are replaced."""
    kind = TYPES.get(status, INVALID if status < 500 else "server_error")
    said = message.encode("utf-8", "replace").decode()
    detail = ErrorDetail(message=said, type=kind, param=param, code=code or str(status))
    return ErrorBody(error=detail).model_dump()


def error_response(error: ApiError) -> JSONResponse:
    """The error as an answer."""
    body = error_body(error.status, str(error), error.param, error.code)
    return JSONResponse(body, error.status, headers=error.headers)


def error_of(error: BaseException) -> ApiError:
    """What an error in answering a request tells its client: what was given wrongly in full, what failed inside not."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (ValueError, TypeError)):
        return ApiError(400, str(error))
    if isinstance(error, ImportError):
        return ApiError(501, str(error))
    logger.error("a request failed", exc_info=error)
    return ApiError(500, FAILED)


def _parameter(place: Sequence[str | int]) -> str | None:
    """The name of the parameter at a place of a request; kinds among which a value has to be are no part of it."""
    names = [str(part) for part in place[1:] if isinstance(part, int) or not _KIND.fullmatch(part)]
    return ".".join(names) or None


def add_error_handlers(app: FastAPI) -> None:
    """Give all errors of an application this form."""

    @app.exception_handler(ApiError)
    async def _of_ours(_: Request, error: ApiError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(BodyError)
    async def _of_a_body(_: Request, error: BodyError) -> JSONResponse:
        return error_response(error.error)

    @app.exception_handler(RequestValidationError)
    async def _malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        if tuple(found[0]["loc"]) == ("body",):
            kind = request.headers.get("content-type", "")
            return error_response(ApiError(400, NO_OBJECT.format(visible_line(kind)[:80] or "none")))
        if found[0]["type"] == "json_invalid":
            return error_response(ApiError(400, f"The body is no JSON: {found[0]['ctx']['error']}."))
        place = _parameter(found[0]["loc"])
        told = "; or: ".join(dict.fromkeys(str(each["msg"]) for each in found if _parameter(each["loc"]) == place))
        return error_response(ApiError(400, f"{place}: {told}" if place else told, param=place))

    @app.exception_handler(HTTPException)
    async def _of_the_framework(_: Request, error: HTTPException) -> JSONResponse:
        message = {404: NOTHING, 405: "This address takes another method."}
        said = message.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return error_response(ApiError(error.status_code, said, headers=headers))

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(500, FAILED), 500)

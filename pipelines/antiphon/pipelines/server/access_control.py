"""Access control: API keys and their rights, host names, origins of web pages, and the address to listen at."""

from __future__ import annotations

import ipaddress
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path
from threading import Lock
from urllib.parse import SplitResult, urlsplit

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers

from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.key_file import EVERYTHING, KeyFile, key_digest, read_key_file
from antiphon.pipelines.server.settings import ServerSettings

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of a request, given by its API key.

    Attributes:
        key: the SHA-256 digest of the API key; "" if the server needs no key.
        name: the name of the key, for the server's operator; "" if it has none.
        read: the collections that the key may read; "*" means all.
        write: the collections that the key may change and therefore also read; "*" means all.
        requests_per_minute: maximum requests of the key in a minute; None: the server's setting.
    """

    key: str = field(default="", repr=False)
    name: str = ""
    read: frozenset[str] = frozenset({EVERYTHING})
    write: frozenset[str] = frozenset({EVERYTHING})
    requests_per_minute: int | None = None

    def may_read(self, collection: str) -> bool:
        """Return whether the documents of a collection may be read."""
        return not self.read.isdisjoint((collection, EVERYTHING)) or self.may_write(collection)

    def may_write(self, collection: str) -> bool:
        """Return whether the documents of a collection may be changed."""
        return not self.write.isdisjoint((collection, EVERYTHING))


def check_host_and_origin(headers: Headers, settings: ServerSettings) -> None:
    """Refuse a request that names a host or an origin that is not allowed.

    The check of the host prevents DNS rebinding. The check of the origin refuses requests from web
    pages of other sites. A proxy may change the host. Then the header ``Sec-Fetch-Site``, which no
    script can set, shows that the page's own origin sent the request.

    Raises:
        ApiError: 403, the host or the origin is not allowed.
    """
    host = headers.get("host", "")
    if settings.allowed_hosts and _url(f"//{host}").hostname not in settings.allowed_hosts:
        raise ApiError(403, "This server does not answer to that host name; allow it with --allow-host.")
    origin = headers.get("origin")
    is_own = headers.get("sec-fetch-site") == "same-origin"
    if origin and origin not in settings.allowed_origins and _url(origin).netloc != host and not is_own:
        raise ApiError(403, "Web pages of other origins may not use this server; allow them with --allow-origin.")


def _url(text: str) -> SplitResult:
    """Return the parts of a URL from a header, or refuse the request with 403."""
    try:
        return urlsplit(text)
    except ValueError as error:
        raise ApiError(403, "The header Host or Origin is not valid.") from error


def check_listen_address(host: str, settings: ServerSettings, *, allow_without_key: bool) -> None:
    """If no API key is set, refuse to listen at an address that other machines can reach.

    Raises:
        ValueError: the address is not a loopback address, and there is no key.
    """
    if is_loopback(host) or settings.api_keys or allow_without_key:
        return
    raise ValueError(
        f"{host} can be reached from other machines, and no API key is set, so anyone there could read the documents. "
        "Set one (--api-key, or the environment variable ANTIPHON_API_KEY), or give --allow-without-key."
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


logger = logging.getLogger("antiphon.server")


class AccessKeys:
    """The accepted API keys: given keys, which have every right, and the keys of a file.

    The file is read again when it changes.

    If no keys are given and no file has a table of keys, requests need no key. Once requests have
    needed a key, they need one until the server ends, even if the file changes.

    Raises:
        ValueError: the file is not valid.
        OSError: the file cannot be read.
    """

    def __init__(self, given: Sequence[str] = (), file: Path | None = None) -> None:
        self._given = [Access(key_digest(key)) for key in given]
        self._file = file
        self._version: tuple[int, ...] | None = None
        self._logged: tuple[int, ...] | None = None
        self._accepted = self._given
        self._lock = Lock()
        self.are_needed = bool(given)
        if file is not None:
            self._version = _version(file)
            self._use(read_key_file(file))

    def access(self, authorization: str | None) -> Access:
        """Return the rights of a request.

        The request's key is compared with every accepted key, each in constant time.

        Args:
            authorization: the value of the request's ``Authorization`` header.

        Raises:
            ApiError: 401, the header is missing or its key is not accepted.
        """
        self._read_if_changed()
        if not self.are_needed:
            return Access()
        scheme, _, key = (authorization or "").partition(" ")
        key = key.strip()
        digest = key_digest(key)
        found = [each for each in self._accepted if compare_digest(digest, each.key)]
        if scheme.lower() != "bearer" or not key or not found:
            message = "This server needs an API key that it accepts; send it as: Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return found[0]

    def _read_if_changed(self) -> None:
        if self._file is None or (version := _version(self._file)) == self._version:
            return
        with self._lock:
            if version == self._version:
                return
            try:
                self._use(read_key_file(self._file))
            except (ValueError, OSError) as error:
                if version != self._logged:
                    logger.exception("the file of API keys cannot be read again; the keys from before stay valid")
                self._logged = version
                if isinstance(error, OSError):
                    return  # the next request tries again, because the file may be valid and revoke a key
            else:
                self._logged = None
            self._version = version

    def _use(self, content: KeyFile) -> None:
        keys = (content.keys or {}).items()
        of_file = [
            Access(each.sha256, name, frozenset(each.read), frozenset(each.write), each.requests_per_minute)
            for name, each in keys
        ]
        self._accepted = [*self._given, *of_file]
        self.are_needed = self.are_needed or content.keys is not None


def _version(file: Path) -> tuple[int, ...]:
    """Return inode, size and modification time of a file, to detect changes; empty if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


class RateLimit:
    """Limits how many requests each API key may send in any 60 seconds.

    Args:
        default: the limit of a key for which no limit is set; None: unlimited.
    """

    def __init__(self, default: int | None = None) -> None:
        self._default = default
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def count(self, access: Access) -> None:
        """Count a request, and refuse it if its key has reached the limit.

        Raises:
            ApiError: 429, the key has reached its limit; ``Retry-After`` says when the next request
                is accepted.
        """
        limit = access.requests_per_minute or self._default
        if limit is None:
            return
        window = RateLimitItemPerMinute(limit)
        if self._limiter.hit(window, access.key):
            return
        reset = self._limiter.get_window_stats(window, access.key).reset_time
        wait = max(1, math.ceil(reset - time.time()))
        raise ApiError(
            429,
            f"This API key may send {limit} requests a minute; try again in {wait} s.",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(wait)},
        )

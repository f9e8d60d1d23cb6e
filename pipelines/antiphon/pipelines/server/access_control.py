"""Access control: API keys and their rights, host names, origins of web pages, and the address to listen at."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers

from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.key_file import EVERYTHING
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

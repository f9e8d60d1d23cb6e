"""Find a model on a server. Determine the server's address, kind and models, and the models' context windows.

This module uses only ``httpx``, whose import is fast, so that a wrong address is reported at once.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import urlsplit

from antiphon.accel.remote.errors import RemoteError, rejected_key, unreachable, wrong_protocol

ServerKind = Literal["antiphon", "vllm", "ollama", "lmstudio", "llamacpp", "other"]
"""Kind of a server, from the ``owned_by`` field of its models, or from an endpoint that only this kind has."""

PORTS: Mapping[ServerKind, int] = {"ollama": 11434, "lmstudio": 1234, "vllm": 8000, "llamacpp": 8080}
"""Short names of local servers, as in "ollama/qwen3", and the default ports of these servers."""

CONNECT_SECONDS = 0.9
"""Timeout for the first connection to a server, so that a wrong address is reported within a second."""

PROBE_SECONDS = 0.3
"""Seconds that `local_servers` waits for each server."""

UNLOADED_WINDOW = 4096
"""Default context window of Ollama and LM Studio; they cut longer prompts."""

_OWNERS: Mapping[str, ServerKind] = {
    "antiphon": "antiphon",
    "vllm": "vllm",
    "llamacpp": "llamacpp",
    "organization_owner": "lmstudio",
    "library": "ollama",
}
_NOT_CHAT = re.compile(r"embed|rerank|minilm|nomic-bert|(^|[-_/:])(bge|e5|gte|bert)([-_:.]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on a server.

    Attributes:
        name: Name of the model on the server.
        kind: Kind of the server.
        context_window: Maximum number of tokens; None if the server does not report it.
        base_url: Address of the API at which the server answered.
        thinks: Whether the model can think; None if unknown.
        others: Names of the server's other chat models.
    """

    name: str
    kind: ServerKind
    context_window: int | None
    base_url: str
    thinks: bool | None = None
    others: tuple[str, ...] = ()


def is_address(name: str) -> bool:
    """Return whether a model's name is the address of a server, such as "ollama/qwen3" or "http://localhost:8000"."""
    return name.startswith(("http://", "https://")) or name.partition("/")[0] in PORTS


def split_address(name: str) -> tuple[str, str | None]:
    """Split an address into base URL and model: "http://host:8000/v1#model" or "ollama/model".

    The environment variable OLLAMA_HOST replaces Ollama's default address. The model is None if the
    address names no model.
    """
    kind, _, model = name.partition("/")
    if kind not in PORTS:
        url, _, model = name.partition("#")
        return url, model or None
    host = os.environ.get("OLLAMA_HOST", "") if kind == "ollama" else ""
    host = host.replace("0.0.0.0", "127.0.0.1").removeprefix("http://").rstrip("/") or "127.0.0.1"
    return f"http://{host if ':' in host else f'{host}:{PORTS[kind]}'}/v1", model or None  # type: ignore[index]


def check_url(url: str) -> str:
    """Check an HTTP address, and return it without a trailing slash.

    Raises:
        ValueError: The text is not an HTTP address.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"base_url is {url!r}; it must be an address such as 'http://localhost:8000/v1'.")
    return url.rstrip("/")


class ServerProbe:
    """Asks a server for its models with plain GET requests.

    Args:
        url: Address of the server, with or without "/v1".
        api_key: API key; None for servers without keys.
        timeout: Maximum seconds to wait for a response.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 10.0) -> None:
        import httpx

        self.url = check_url(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS))
        self._http = httpx.Client(headers=headers, timeout=limits, follow_redirects=True)

    def __enter__(self) -> ServerProbe:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def list_models(self) -> tuple[str, list[Mapping[str, Any]]]:
        """Return the API's base URL and the models. The URL ends with "/v1" if that path answers.

        Raises:
            RemoteError: The server cannot be reached, rejects the API key, or does not speak OpenAI's protocol.
        """
        candidates = [self.url] if self.url.endswith("/v1") else [f"{self.url}/v1", self.url]
        for base_url in candidates:
            found = self._get(f"{base_url}/models")
            entries = found.get("data") if isinstance(found, Mapping) else None
            if isinstance(entries, list) and all(isinstance(entry, Mapping) and "id" in entry for entry in entries):
                return base_url, entries
        raise RemoteError(wrong_protocol(self.url))

    def get(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON at a path below the server's root, or None; if there is a body, it is posted to this path."""
        with suppress(RemoteError):
            return self._get(self.url.removesuffix("/v1") + path, body)
        return None

    def _get(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        import httpx

        try:
            response = self._http.get(url) if body is None else self._http.post(url, json=body)
            response.raise_for_status()
            return response.json()
        except httpx.TimeoutException as error:
            raise RemoteError(unreachable(self.url, "it did not answer in time")) from error
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise RemoteError(rejected_key(self.url, error.response.text[:200]), status) from error
            if status in (429, 502, 503, 504):
                raise RemoteError(f"{self.url} takes no requests now ({status}); try again later.", status) from error
            return None
        except httpx.HTTPError as error:
            raise RemoteError(unreachable(self.url, str(error))) from error
        except ValueError:  # not JSON
            return None


def find_model(url: str, name: str | None, *, api_key: str | None = None, timeout: float = 10.0) -> ServedModel:
    """Return a model of a server.

    Args:
        url: Address of the server, with or without "/v1".
        name: Name of the model; None for the server's only chat model.

    Raises:
        ValueError: The address is invalid.
        RemoteError: The server cannot be reached, has no such model, or has several and none is named.
    """
    with ServerProbe(url, api_key, timeout) as probe:
        base_url, entries = probe.list_models()
        kind = _kind(probe, entries)
        names = chat_models(probe, kind, entries)
        chosen = _choose(name, names, [str(entry["id"]) for entry in entries], base_url)
        entry = next((entry for entry in entries if entry["id"] == chosen), {})
        window, thinks = _facts(probe, kind, chosen, entry)
    return ServedModel(chosen, kind, window, base_url, thinks, tuple(other for other in names if other != chosen))


def find_embedder(url: str, name: str | None, *, api_key: str | None = None) -> tuple[str, str]:
    """Return the base URL of a server's API, and the name of an embedding model on the server.

    Args:
        name: Name of the model; None for the server's only embedding model.

    Raises:
        ValueError: The address is invalid.
        RemoteError: The server cannot be reached, has no such model, or has several and none is named.
    """
    with ServerProbe(url, api_key) as probe:
        base_url, entries = probe.list_models()
        chat = chat_models(probe, _kind(probe, entries), entries)
    names = [str(entry["id"]) for entry in entries]
    return base_url, _choose(name, [known for known in names if known not in chat], names, base_url, "embed")


def local_servers() -> dict[ServerKind, list[str]]:
    """Return the chat models of servers on this machine's usual ports, by the short name of the server."""
    found: dict[ServerKind, list[str]] = {}
    for kind in PORTS:
        parts = urlsplit(split_address(kind)[0])
        with socket.socket() as probing:  # most ports are closed, and httpx takes time to import
            probing.settimeout(PROBE_SECONDS)
            if probing.connect_ex((parts.hostname or "127.0.0.1", parts.port or 80)):
                continue
        with suppress(RemoteError, ValueError), ServerProbe(split_address(kind)[0], timeout=PROBE_SECONDS) as probe:
            _, entries = probe.list_models()
            actual = _kind(probe, entries)
            if actual == kind and (names := chat_models(probe, actual, entries)):
                found[actual] = names
    return found


def chat_models(probe: ServerProbe, kind: ServerKind, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of a server's models, without models that only embed or rerank."""
    names = [str(entry["id"]) for entry in entries]
    known: set[str] = set()
    if kind == "lmstudio":
        described = probe.get("/api/v0/models") or {}
        known = {str(entry.get("id")) for entry in described.get("data", ()) if entry.get("type") == "embeddings"}
    elif kind == "ollama":
        described = probe.get("/api/tags") or {}
        families = {entry.get("name"): entry.get("details") or {} for entry in described.get("models", ())}
        known = {str(name) for name, details in families.items() if "bert" in str(details.get("family"))}
    elif kind == "antiphon":  # "model+collection" answers from the server's own documents
        known = {name for name in names if "+" in name} if any("+" not in name for name in names) else set()
    return [name for name in names if name not in known and not _NOT_CHAT.search(name)]


def _choose(name: str | None, fitting: Sequence[str], names: Sequence[str], url: str, task: str = "chat") -> str:
    if name is None:
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise RemoteError(f"{url}: {_listed(names)}, and none that can {task}; load one there.", 404)
        listed = ", ".join(map(repr, fitting))
        raise RemoteError(f"{url} has several models ({listed}); name one, such as {url}#{fitting[0]}.", 404)
    if found := next((known for known in names if known in (name, f"{name}:latest")), None):
        return found
    meant = get_close_matches(name, names, n=1)
    hint = f"; did you mean {meant[0]!r}?" if meant else "."
    raise RemoteError(f"{url} has no model {name!r}; {_listed(names).removesuffix('.')}{hint}", 404)


def _kind(probe: ServerProbe, entries: Sequence[Mapping[str, Any]]) -> ServerKind:
    owners = {str(entry.get("owned_by")) for entry in entries}
    if known := next((kind for owner, kind in _OWNERS.items() if owner in owners), None):
        return known
    if not entries or not owners.isdisjoint({"me", "None", ""}) or _is_local(probe.url):
        if "models" in (probe.get("/api/tags") or {}):
            return "ollama"
        if "data" in (probe.get("/api/v0/models") or {}):
            return "lmstudio"
    return "other"


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host.startswith(("127.", "10.", "192.168.", "::1")) or host.endswith(".local")


def _facts(probe: ServerProbe, kind: ServerKind, name: str, entry: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Return the context window with which the server runs a model, and whether the model can think."""
    if kind == "ollama":
        return _ollama_facts(probe, name)
    if kind == "lmstudio":
        described = (probe.get("/api/v0/models") or {}).get("data", ())
        found: Mapping[str, Any] = next((each for each in described if each.get("id") == name), {})
        return _positive(found.get("loaded_context_length")) or _smaller(found.get("max_context_length")), None
    if kind == "llamacpp":
        settings = (probe.get("/props") or {}).get("default_generation_settings") or {}
        return _positive(settings.get("n_ctx")), None
    return _positive(entry.get("max_model_len", entry.get("context_window"))), None


def _ollama_facts(probe: ServerProbe, name: str) -> tuple[int | None, bool | None]:
    shown = probe.get("/api/show", {"model": name}) or {}
    capabilities = shown.get("capabilities")
    thinks = None if capabilities is None else "thinking" in capabilities
    running = (probe.get("/api/ps") or {}).get("models") or ()
    if loaded := next((_positive(each.get("context_length")) for each in running if each.get("name") == name), None):
        return loaded, thinks
    if given := re.search(r"^num_ctx\s+(\d+)", str(shown.get("parameters") or ""), re.MULTILINE):
        return int(given[1]), thinks
    lengths = [value for key, value in (shown.get("model_info") or {}).items() if key.endswith(".context_length")]
    return _smaller(next(iter(lengths), None)), thinks


def _smaller(window: Any) -> int:
    return min(_positive(window) or UNLOADED_WINDOW, UNLOADED_WINDOW)


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _listed(names: Sequence[str]) -> str:
    return f"it has {', '.join(map(repr, names))}" if names else "it has no model at all"

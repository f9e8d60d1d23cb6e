"""Limits and access rules of a server."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and access rules of one server.

    Attributes:
        api_keys: accepted API keys; if empty, no key is needed.
        requests_per_minute: maximum requests per minute of an API key for which no limit is set;
            None: unlimited.
        max_running: generations that are decoded at the same time.
        max_waiting: further generations that may wait in the queue.
        max_prompt_tokens: longest prompt in tokens; None: the model's context window.
        max_output_tokens: longest completion in tokens.
        max_choices: maximum number of choices (``n``) of one request.
        max_body_bytes: largest request body in bytes.
        max_upload_bytes: largest body of an upload in bytes.
        body_timeout: seconds in which a body must arrive; large bodies get more (see `request_limits.MIN_RATE`).
        prefix_cache_tokens: prompt tokens whose KV cache is kept for later prompts with the same beginning.
        max_tenants: number of most recent tenants whose prefix caches and draft statistics are kept.
        allowed_origins: origins of other web pages that may send requests from a browser.
        allowed_hosts: host names that the server answers to; if empty, any.
        read_only: refuse uploads and deletions of documents.

    Raises:
        ValueError: a key is empty or has white space around it.
    """

    api_keys: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    max_running: int = 16
    max_waiting: int = 64
    max_prompt_tokens: int | None = None
    max_output_tokens: int = 4096
    max_choices: int = 8
    max_body_bytes: int = 8 * MEBIBYTE
    max_upload_bytes: int = 32 * MEBIBYTE
    body_timeout: float = 30.0
    prefix_cache_tokens: int = 16_384
    max_tenants: int = 64
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        if not all(key and key == key.strip() for key in self.api_keys):
            raise ValueError(
                "An API key is empty or has white space around it, so no client can send it; correct it, or give none."
            )

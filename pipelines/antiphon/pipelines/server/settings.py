"""How much a server takes on, and from whom. Knows no endpoint."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and manners of one server.

    ``keys`` are those that clients may show; with none nobody is asked for one. ``parallel`` texts are decoded at a
    time and ``queue`` more may wait. A prompt has ``max_prompt_tokens`` at most (None: what the model reads), an answer
    ``max_output_tokens``. ``prefix_tokens`` are kept of prompts that were read, for the next ones that begin alike, of
    the latest ``tenants`` alone. A body has ``body_seconds`` to arrive, and longer where it is large. ``origins`` are
    the web pages that may ask from a browser, besides the server's own. ``hosts`` are the names that the server answers
    to; none: any. ``read_only`` takes no documents.

    Raises:
        ValueError: a number is out of range, or a key is empty.
    """

    keys: tuple[str, ...] = ()
    parallel: int = 16
    queue: int = 64
    max_prompt_tokens: int | None = None
    max_output_tokens: int = 4096
    max_choices: int = 8
    max_body_bytes: int = 8 * MEBIBYTE
    max_upload_bytes: int = 32 * MEBIBYTE
    body_seconds: float = 30.0
    prefix_tokens: int = 16_384
    tenants: int = 64
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        least = {"parallel": 1, "queue": 0, "max_output_tokens": 1, "max_choices": 1, "tenants": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ValueError(f"{name} is {getattr(self, name)}; a server needs at least {number}.")
        if not all(key.strip() for key in self.keys):
            raise ValueError("A key is empty; give keys of at least one character, or none at all.")

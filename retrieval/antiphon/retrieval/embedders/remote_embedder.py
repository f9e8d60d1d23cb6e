"""An embedding model on a server: Ollama, LM Studio, vLLM, llama.cpp, or any other with OpenAI's protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from weakref import finalize

import httpx
import numpy as np

from antiphon.accel.remote.errors import RemoteError, unreachable
from antiphon.accel.remote.server import find_embedder, split_address
from antiphon.retrieval.embedders.prompts import family_prompts, split_prompts
from antiphon.retrieval.embedders.protocol import check_texts
from antiphon.retrieval.vector_index.flat import Vectors, normalized

_BATCH = 32
_BYTES_PER_TOKEN = 3
_TIMEOUT = 300.0  # seconds for each batch of texts


class RemoteEmbedder:
    """Requests vectors from a server's ``/embeddings``.

    The API key is read from the environment variable ANTIPHON_API_KEY. The server decides how texts
    longer than 512 tokens are truncated.

    Args:
        address: An address such as "ollama/nomic-embed-text" or "http://host:8000/v1#bge-m3".
            Prompts may follow the address; see `with_prompts`.

    Raises:
        ValueError: The address is invalid.
        RemoteError: The server cannot be reached, has no such model, or its model does not embed.
    """

    max_tokens = 512

    def __init__(self, address: str) -> None:
        self.name = address
        plain, given = split_prompts(address)
        key = os.environ.get("ANTIPHON_API_KEY")
        self._url, self._model = find_embedder(*split_address(plain), api_key=key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(headers=headers, timeout=_TIMEOUT)
        finalize(self, self._http.close)  # close kept-alive connections with this object
        query, document = family_prompts(self._model)
        self._prompts = given.get("document", document), given.get("query", query)
        self.dim = len(next(self._embed(["?"])))
        self.fingerprint = f"server:{self._model}:{self.dim}:{self._prompts[0]}:{self._prompts[1]}"

    def count_tokens(self, text: str) -> int:
        """Return an estimate of the number of tokens: one for every three bytes."""
        return len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts to be searched."""
        return self._vectors(texts, self._prompts[0])

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of questions."""
        return self._vectors(texts, self._prompts[1])

    def _vectors(self, texts: Sequence[str], prompt: str) -> Vectors:
        check_texts(texts)
        found = [vector for start in range(0, len(texts), _BATCH) for vector in self._embed(
            [prompt + text for text in texts[start : start + _BATCH]]
        )]  # fmt: skip
        return normalized(np.array(found, np.float32)) if found else np.empty((0, self.dim), np.float32)

    def _embed(self, texts: Sequence[str]) -> Iterator[list[float]]:
        try:
            response = self._http.post(f"{self._url}/embeddings", json={"model": self._model, "input": list(texts)})
        except httpx.HTTPError as error:
            raise RemoteError(unreachable(self._url, str(error) or type(error).__name__)) from error
        try:
            entries = sorted(response.json()["data"], key=lambda entry: int(entry.get("index", 0)))
            vectors = [entry["embedding"] for entry in entries]
        except (ValueError, KeyError, TypeError, AttributeError):
            vectors = []
        if response.is_error or len(vectors) != len(texts):
            said = f"{response.status_code}: {response.text[:200]}"
            raise RemoteError(f"{self._url} does not embed with {self._model!r} ({said}).", response.status_code)
        yield from vectors

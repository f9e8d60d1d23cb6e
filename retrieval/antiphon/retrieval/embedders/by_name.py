"""Load embedders by name."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from antiphon.accel.remote.server import is_address
from antiphon.retrieval.embedders.hash_embedder import HashEmbedder
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.encoder_runtime.device import pick_device

_INSTRUCTION = "Instruct: Given a question, retrieve passages that answer it\nQuery: "

FAMILIES = (
    ("nomic", "search_query: ", "search_document: "),
    ("e5-mistral|e5-large-instruct|qwen3-embedding|qwen2-.*instruct", _INSTRUCTION, ""),
    ("e5-", "query: ", "passage: "),
    ("embeddinggemma", "task: search result | query: ", "title: none | text: "),
    ("bge-.*-en|mxbai|arctic-embed", "Represent this sentence for searching relevant passages: ", ""),
)
"""For each family of models: a pattern for names, the query prompt, and the document prompt."""

NO_PROMPTS = ("", "")


def family_prompts(model: str) -> tuple[str, str]:
    """Return the query prompt and document prompt of a model's family; empty if it is unknown."""
    found = ((query, document) for part, query, document in FAMILIES if re.search(part, model.lower()))
    return next(found, NO_PROMPTS)


def with_prompts(name: str, query: str | None, document: str | None) -> str:
    """Append prompts to the name of an embedder: ``NAME?query=...&document=...``.

    An index stores this name, and loads the embedder with it.

    Args:
        query: The prompt for questions. None: the prompt of the model or of its family.
        document: The prompt for documents. None: as for ``query``.
    """
    given = {"query": query, "document": document}
    own = {kind: prompt for kind, prompt in given.items() if prompt is not None}
    return f"{name}?{urlencode(own, quote_via=quote)}" if own else name


def split_prompts(name: str) -> tuple[str, dict[str, str]]:
    """Split an embedder's name into the name without prompts, and its prompts by kind."""
    plain, _, text = name.rpartition("?")
    prompts = dict(parse_qsl(text, keep_blank_values=True)) if plain else {}
    return (plain, prompts) if prompts and prompts.keys() <= {"query", "document"} else (name, {})


KNOWN = ("auto", "minilm", "bge-m3", "hash")
"""The names of embedders. Other models are named by their folders or as ``owner/model``."""


def chosen_embedder(name: str, device: str | None = None) -> str:
    """Replace ``auto`` by the name of the default embedder; return other names unchanged.

    Args:
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.
    """
    if name != "auto":
        return name
    return "minilm" if pick_device(device) == "cpu" else "bge-m3"


def load_embedder(name: str, device: str | None = None) -> Embedder:
    """Load the embedder with a name.

    Args:
        name: ``auto`` (BGE-M3 on a GPU, the bundled MiniLM on a CPU), ``minilm``, ``bge-m3``, ``hash``, a folder,
            ``owner/model`` on the hub, or a model on a server: ``ollama/nomic-embed-text`` or an
            address. Prompts may follow any name but auto, minilm and hash; see `with_prompts`.
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.

    Raises:
        ValueError: The name is unknown, or the model is damaged or cannot be downloaded.
        ImportError: A package is missing; the message has the command.
        RemoteError: The server cannot be reached, or has no such model.
    """
    name = chosen_embedder(name, device)
    plain, prompts = (name, {}) if Path(name).is_dir() else split_prompts(name)
    if name == "hash":
        return HashEmbedder()
    if name == "minilm":
        from antiphon.retrieval.embedders.minilm import MiniLMEmbedder

        return MiniLMEmbedder(device)
    if is_address(plain):
        from antiphon.retrieval.embedders.remote_embedder import RemoteEmbedder

        return RemoteEmbedder(name)
    if plain == "bge-m3" or (plain and Path(plain).is_dir()) or re.fullmatch(r"[\w.-]+/[\w.-]+", plain):
        from antiphon.retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder

        query, document = prompts.get("query"), prompts.get("document")
        return SentenceTransformerEmbedder(plain, device=device, query_prompt=query, document_prompt=document)
    if prompts and plain in KNOWN:
        raise ValueError(f"The embedder {plain!r} takes no prompts; name a model of the hub, a folder or a server's.")
    raise ValueError(
        f"No embedder is named {name!r}; known are {', '.join(KNOWN)}, a folder, or a model of the hub as owner/model."
    )

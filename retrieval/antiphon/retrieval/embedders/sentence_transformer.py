"""Any embedding model of sentence-transformers, from the hub or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.retrieval.embedders.prompts import NO_PROMPTS, family_prompts, with_prompts
from antiphon.retrieval.embedders.protocol import check_texts
from antiphon.retrieval.encoder_runtime.device import batch_size, pick_device
from antiphon.retrieval.encoder_runtime.engine_selection import (
    COMPARISON_TEXTS,
    Engine,
    EngineChoice,
    choose_module_engine,
    torch_choice,
)
from antiphon.retrieval.encoder_runtime.hub import (
    HUB_NAMES,
    cached_file,
    load_model,
    loading_options,
    weights_fingerprint,
)
from antiphon.retrieval.vector_index.flat import Vectors, normalized

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LENGTHS = {"BAAI/bge-m3": 512}  # tokens; BGE-M3 supports 8,192, but texts this long are rarely worth the cost
_LONGEST = 8192
_PLAIN = {"method": "forward", "method_output_name": "last_hidden_state"}


class SentenceTransformerEmbedder:
    """A sentence-transformers model with its own pooling and prompts, in half precision if that is faster.

    A cached model is used even if the hub has a newer version. Texts are truncated to the model's
    limit or 8,192 tokens, whichever is less, and for BGE-M3 to 512. Special tokens are included.

    Args:
        model: ``bge-m3``, a name on the hub, or a folder.
        device: The torch device, such as ``cuda`` or ``cpu``. None: a GPU if there is one.
        engine: The engine to use; see `Engine`. The attribute ``engine`` has the chosen engine and the reason.
        query_prompt: The text before each question. None: the model's own prompt. If the model has
            no prompts, the prompt of its family is used, such as "query: " for E5.
        document_prompt: The text before each document. None: as for ``query_prompt``.

    Raises:
        ValueError: The model cannot be loaded or has no fixed dimension, or OpenVINO is requested
            and cannot run the model.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        engine: Engine = "auto",
        query_prompt: str | None = None,
        document_prompt: str | None = None,
    ) -> None:
        source = HUB_NAMES.get(str(model), str(model))
        folder = Path(source).resolve() if Path(source).is_dir() else None
        self._device = pick_device(device)
        self._model = _load(source, self._device)
        prompts = self._set_prompts(source, query_prompt, document_prompt)
        self.name = with_prompts(str(folder or model), prompts.get("query"), prompts.get("document"))
        own, longest = self._model.max_seq_length, _LENGTHS.get(source, _LONGEST)
        self._max_length = int(own) if own is not None and own < longest else longest  # some have no limit
        if source in _LENGTHS:
            self._model.max_seq_length = self._max_length
        self.dim = self._dimension()
        weights = weights_fingerprint(source)
        modes = [getattr(module, "pooling_mode", None) for module in self._model]
        pooling = "+".join(str(mode) for mode in modes if mode) or "own"
        self.fingerprint = ":".join([with_prompts(weights, **prompts), pooling, str(self._max_length)])
        self.engine = self._choose_engine(engine, weights)

    @property
    def max_tokens(self) -> int:
        """The number of a document's tokens that fit together with the special tokens and the model's prompt."""
        prompt = self._model.prompts.get("document") or ""
        return (
            self._max_length - int(self._model.tokenizer.num_special_tokens_to_add(False)) - self.count_tokens(prompt)
        )

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens."""
        tokenizer: Any = self._model.tokenizer
        if callable(tokenizer):
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the model's vectors for documents, computed in batches of similar length."""
        return self._encode(self._model.encode_document, texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the model's vectors for questions."""
        return self._encode(self._model.encode_query, texts)

    def _set_prompts(self, source: str, query: str | None, document: str | None) -> dict[str, str | None]:
        """Set the prompts that were given or that the model's family needs.

        Returns, for each kind of prompt, the prompt that was set; None if the model's own prompt is
        used.
        """
        of_family = NO_PROMPTS if any(self._model.prompts.values()) else family_prompts(source)
        given = {"query": query, "document": document}
        needed = dict(zip(given, of_family, strict=True))
        found = {kind: needed[kind] or None if prompt is None else prompt for kind, prompt in given.items()}
        self._model.prompts.update({kind: prompt for kind, prompt in found.items() if prompt is not None})
        return found

    def _choose_engine(self, wanted: Engine, weights: str) -> EngineChoice:
        """Choose the engine for the first module, which is the transformer."""
        transformer: Any = self._model[0]
        if getattr(transformer, "modality_config", {}).get("text") != _PLAIN:
            return torch_choice(wanted, "its first module is not a transformer whose last layer is pooled")

        return choose_module_engine(
            wanted,
            transformer,
            "last_hidden_state",
            key=weights,
            device=self._device,
            vectors=lambda: self.embed_documents(COMPARISON_TEXTS),
        )

    def _encode(self, encode: Any, texts: Sequence[str]) -> Vectors:
        if not check_texts(texts):
            return np.empty((0, self.dim), np.float32)  # encode([]) has shape (0,)
        options = {"show_progress_bar": False, "convert_to_tensor": True, "batch_size": batch_size(self._device)}
        return normalized(encode(list(texts), **options).float().cpu().numpy())

    def _dimension(self) -> int:
        dim = self._model.get_embedding_dimension()
        if dim is None:
            raise ValueError(f"{self.name} has no fixed dimension; a model with pooling is needed.")
        return dim


def _load(source: str, device: str) -> SentenceTransformer:
    def load(local: bool) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer

        options = loading_options(device, local)
        return SentenceTransformer(source, device=device, local_files_only=local, model_kwargs=options)

    # The cache must contain modules.json: without it the weights would silently be loaded with the wrong pooling.
    return load_model("embedder", source, load, is_cached=cached_file(source, "modules.json") is not None)

"""Many documents embedded by many processes or machines: an embedder over Ray Data. Knows no models itself."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.retrieval.embed import checked_texts
from antiphon.retrieval.embedders import resolve
from antiphon.retrieval.vectors import Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray


_CORES = 0.5  # of a core that a worker asks Ray for: on few cores, whole ones would leave none for Ray's own tasks


class RayEmbedder:
    """The embedder of a name (see `resolve`), with documents spread over the workers of a Ray cluster.

    Each of ``workers`` loads the model once and takes ``batch`` texts at a time; ``gpus`` is how much of a GPU each
    one gets. Without one it computes with one thread, so have about as many workers as cores. Ray is started on this
    machine unless the process is connected to a cluster (``ray.init(address=...)``), whose machines then need antiphon
    and the model. Questions, and fewer than two batches, are embedded here: vectors and fingerprint are the embedder's
    own, so an index made with one is searched with the other. ``block`` is how many texts an index hands over at once.

    Raises:
        ImportError: Ray is not installed; says the command.
        ValueError: there is no such embedder, or a number is out of range.
    """

    block = 65_536

    def __init__(self, name: str, *, workers: int = 2, batch: int = 256, gpus: float = 0.0) -> None:
        if workers < 1 or batch < 1 or gpus < 0:
            raise ValueError(f"workers is {workers}, batch {batch} and gpus {gpus}; 1, 1 and 0 are the least.")
        _import()
        self._here = resolve(name)
        self.name, self.dim = self._here.name, self._here.dim
        self.fingerprint, self.max_tokens = self._here.fingerprint, self._here.max_tokens
        self._workers, self._batch, self._gpus = workers, batch, gpus

    def count_tokens(self, text: str) -> int:
        """How many tokens the embedder sees in the text."""
        return self._here.count_tokens(text)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The embedder's vectors, in the order of the texts."""
        checked_texts(texts)
        if len(texts) < 2 * self._batch:
            return self._here.embed_documents(texts)
        rows = _import().from_items([{"place": place, "text": text} for place, text in enumerate(texts)])
        rows = rows.repartition(target_num_rows_per_block=self._batch)
        embedded = rows.map_batches(
            _Worker,
            fn_constructor_args=(self.name,),
            batch_size=self._batch,
            concurrency=self._workers,
            num_cpus=_CORES,
            num_gpus=self._gpus,
        )
        vectors = np.empty((len(texts), self.dim), np.float32)
        for block in embedded.iter_batches(batch_format="numpy", batch_size=None):
            vectors[block["place"]] = np.stack(list(block["vector"]))
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The embedder's vectors, made here."""
        return self._here.embed_queries(texts)


class _Worker:
    """One process of Ray with the model in it."""

    def __init__(self, name: str) -> None:
        self._embedder = resolve(name)

    def __call__(self, block: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        vectors = self._embedder.embed_documents([str(text) for text in block["text"]])
        return {"place": block["place"], "vector": vectors}


def _import() -> Any:
    try:
        return import_module("ray.data")
    except ImportError as error:
        raise ImportError("Ray Data is not installed: pip install 'antiphon[ray]'") from error

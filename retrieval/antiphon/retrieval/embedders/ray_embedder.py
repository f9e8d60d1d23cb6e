"""Embed many documents on many processes or machines with Ray Data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.retrieval.embedders.by_name import load_embedder
from antiphon.retrieval.embedders.protocol import check_texts
from antiphon.retrieval.vector_index.flat import Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray


_CORES = 0.5  # cores per worker; if workers requested whole cores, Ray's own tasks would get none on small machines


class RayEmbedder:
    """An embedder that distributes documents over the workers of a Ray cluster.

    Questions, and fewer than two batches of documents, are embedded in this process. Vectors and fingerprint are those
    of the plain embedder, so an index made with one is searched with the other. Ray is started on this machine unless
    the process is connected to a cluster (``ray.init(address=...)``), whose machines then need Antiphon and the model.

    Args:
        name: The name of the embedder; see `load_embedder`.
        workers: The number of workers, each of which loads the model once. Without a GPU a worker uses one thread, so
            take about as many workers as there are cores.
        batch: The number of texts that a worker embeds at a time.
        gpus: The share of a GPU for each worker.

    Attributes:
        block: The number of texts that `build_index` passes at once.

    Raises:
        ImportError: Ray is not installed; the message has the command.
        ValueError: The name is unknown, or a number is out of range.
    """

    block = 65_536

    def __init__(self, name: str, *, workers: int = 2, batch: int = 256, gpus: float = 0.0) -> None:
        if workers < 1 or batch < 1 or gpus < 0:
            raise ValueError(f"workers is {workers}, batch {batch} and gpus {gpus}; 1, 1 and 0 are the least.")
        _import()
        self._local = load_embedder(name)
        self.name, self.dim = self._local.name, self._local.dim
        self.fingerprint, self.max_tokens = self._local.fingerprint, self._local.max_tokens
        self._workers, self._batch, self._gpus = workers, batch, gpus

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return self._local.count_tokens(text)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the embedder's vectors, in the order of the texts."""
        check_texts(texts)
        if len(texts) < 2 * self._batch:
            return self._local.embed_documents(texts)
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
        """Return the embedder's vectors, computed in this process."""
        return self._local.embed_queries(texts)


class _Worker:
    """A process of Ray that has loaded the model."""

    def __init__(self, name: str) -> None:
        self._embedder = load_embedder(name)

    def __call__(self, block: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        vectors = self._embedder.embed_documents([str(text) for text in block["text"]])
        return {"place": block["place"], "vector": vectors}


def _import() -> Any:
    try:
        return import_module("ray.data")
    except ImportError as error:
        raise ImportError("Ray Data is not installed: pip install 'antiphon[ray]'") from error

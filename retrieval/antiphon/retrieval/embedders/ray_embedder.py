"""Embed many documents on many processes or machines with Ray Data."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.retrieval.embedders.by_name import load_embedder
from antiphon.retrieval.embedders.protocol import check_texts
from antiphon.retrieval.vector_index.flat import Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CORES = 0.5  # cores per worker; if workers requested whole cores, Ray's own tasks would get none on small machines
_PROBE_SECONDS = 5.0
_CONNECT_SECONDS = 60.0


class RayEmbedder:
    """An embedder that distributes documents over the workers of a Ray cluster.

    Questions, and fewer than two batches of documents, are embedded in this process. The vectors
    and the fingerprint are the same as without Ray, so an index made with Ray can be searched
    without Ray, and vice versa. If ``ray.init`` has already connected the process to a cluster,
    that cluster is used. All machines of the cluster need Antiphon and the model.

    Args:
        address: On a machine of the cluster, ``HOST:PORT`` of the head node, or ``auto``. On other
            machines, ``ray://HOST:PORT`` of the Ray Client server. ``local`` starts Ray here.
        workers: The number of workers, each of which loads the model once. None: one worker for
            each GPU of the cluster; without GPUs, one for each core.
        batch: The number of texts that a worker embeds at a time.

    Attributes:
        block: The number of texts that `build_index` passes at once.
        plain: The embedder in this process.

    Raises:
        ImportError: Ray is not installed; the message has the command.
        ConnectionError: The cluster cannot be reached.
        ValueError: The name is unknown, or ``workers`` or ``batch`` is below 1.
    """

    block = 65_536

    def __init__(self, name: str, address: str = "local", *, workers: int | None = None, batch: int = 256) -> None:
        if batch < 1 or (workers is not None and workers < 1):
            raise ValueError(f"workers is {workers} and batch {batch}; 1 is the least.")
        self._data = _import()
        resources = _connect(address)
        gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        self._workers, self._batch = workers or gpus or cores, batch
        self._gpus = min(1.0, gpus / self._workers)
        self.plain = load_embedder(name)
        self.name, self.dim = self.plain.name, self.plain.dim
        self.fingerprint, self.max_tokens = self.plain.fingerprint, self.plain.max_tokens

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return self.plain.count_tokens(text)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed the texts on the workers; return the vectors in the order of the texts."""
        check_texts(texts)
        if len(texts) < 2 * self._batch:
            return self.plain.embed_documents(texts)
        rows = [{"place": place, "text": text} for place, text in enumerate(texts)]
        embedded = self._data.from_items(rows, override_num_blocks=math.ceil(len(rows) / self._batch)).map_batches(
            _Worker,
            fn_constructor_args=(self.name,),
            batch_size=self._batch,
            compute=self._data.ActorPoolStrategy(size=self._workers),
            num_cpus=_CORES,
            num_gpus=self._gpus,
        )
        vectors = np.empty((len(texts), self.dim), np.float32)
        for block in embedded.iter_batches(batch_format="numpy", batch_size=None):
            vectors[block["place"]] = np.stack(list(block["vector"]))
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Embed the texts in this process."""
        return self.plain.embed_queries(texts)


class _Worker:
    """A Ray worker process that has loaded the model."""

    def __init__(self, name: str) -> None:
        self._embedder = load_embedder(name)

    def __call__(self, block: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        vectors = self._embedder.embed_documents([str(text) for text in block["text"]])
        return {"place": block["place"], "vector": vectors}


def _connect(address: str) -> dict[str, float]:
    """Connect this process to a cluster if it is not connected; return the resources of the cluster.

    Raises:
        ConnectionError: The cluster cannot be reached, or does not answer in time.
    """
    ray = import_module("ray")
    options = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if ray.is_initialized():
            pass
        elif address == "local":
            ray.init(**options, include_dashboard=False)
        else:
            _join(partial(ray.init, **options), address)
    except Exception as error:  # Ray raises plain exceptions, too
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConnectionError(
            f"The Ray cluster {address!r} cannot be reached: {reason}. Give HOST:PORT of its head node (6379 by "
            "default) or auto on one of its machines, ray://HOST:10001 on any other, or local to start Ray on this "
            "machine."
        ) from error
    resources: dict[str, float] = ray.cluster_resources()
    return resources


def _join(init: Callable[[], object], address: str) -> None:
    """Connect to a running cluster with a time limit, because Ray itself would retry for minutes."""
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
    results: Queue[Exception | None] = Queue()

    def connect() -> None:
        try:
            init()
            results.put(None)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            results.put(error)

    Thread(target=connect, daemon=True).start()
    try:
        error = results.get(timeout=_CONNECT_SECONDS)
    except Empty:
        error = TimeoutError(f"it does not answer within {_CONNECT_SECONDS:.0f} seconds")
    if error is not None:
        raise error


def _import() -> Any:
    try:
        data = import_module("ray.data")
    except ImportError as error:
        raise ImportError("Ray Data is not installed: pip install 'antiphon[ray]'") from error
    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return data

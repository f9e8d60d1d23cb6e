"""The rotation before a product quantiser: fewer dimensions, and all of them alike. Knows nothing of indexes."""

from __future__ import annotations

import numpy as np

from antiphon.retrieval.vectors import Vectors


def principal_rotation(vectors: Vectors, dims: int, *, seed: int = 0) -> Vectors:
    """The map of shape (dims, dim) onto the principal axes of the vectors, turned at random behind them.

    The axes are the eigenvectors of the *uncentred* second moment: to remove a mean would change the order of inner
    products. The random rotation spreads the variance over all dimensions, so that the pieces that a product quantiser
    cuts a vector into matter alike. Rows are orthonormal.
    """
    moment = vectors.T @ vectors / np.float32(len(vectors))
    _, axes = np.linalg.eigh(moment.astype(np.float64))  # by rising eigenvalue
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((dims, dims)))
    rotation: Vectors = (turn @ axes[:, ::-1][:, :dims].T).astype(np.float32)
    return np.ascontiguousarray(rotation)

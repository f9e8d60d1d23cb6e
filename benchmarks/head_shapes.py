"""Graphs that cost what a pass of a draft head costs: products of its shapes in 8 bits, with random weights.

A draft may be wrong without changing the text, so the weights of a head may have 8 bits on every model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from antiphon.accel.engines.openvino.quantized_head import GROUP_SIZES, LARGEST, compile_head

PASSES = 100
"""Number of timed passes; the fastest one counts."""


class HeadShape(NamedTuple):
    """The shape of a kind of heads. All other sizes are the sizes of the model.

    Attributes:
        states: Number of hidden states that are combined into the input of the first layer.
        layers: Number of layers.
        inputs: Number of hidden states that attention reads for each token.
        block: Number of rows that a pass guesses.
        vocabulary: Size of the vocabulary; None: the model's.
    """

    states: int
    layers: int
    inputs: int
    block: int
    vocabulary: int | None


SHAPES: Mapping[str, HeadShape] = {
    "eagle3": HeadShape(3, 1, 2, 1, 32_000),
    "mtp": HeadShape(2, 1, 1, 1, None),
    "dflash": HeadShape(5, 5, 1, 15, None),
}
"""Usual shapes: an EAGLE-3 head with a reduced vocabulary, one MTP layer, and a DFlash model with blocks of 16."""


def head_of_shape(config: Any, kind: str, threads: int) -> Callable[[int], object]:
    """Return a function that computes a pass of a head over a number of tokens.

    It computes all products of the head, and logits of the last rows only. Attention over the
    context, which is a small part of a layer, is left out.

    Args:
        config: Configuration of the model.
        kind: A kind of `SHAPES`.
    """
    from openvino import Model, opset13

    shape, random = SHAPES[kind], np.random.default_rng(0)
    size, inner, vocab = config.hidden_size, config.intermediate_size, shape.vocabulary or config.vocab_size
    keys = 2 * config.num_key_value_heads * size // config.num_attention_heads

    def product(node: Any, rows: int, columns: int) -> Any:
        weights = random.integers(-LARGEST, LARGEST, (rows, columns), dtype=np.int8, endpoint=True)
        scales = np.full((rows, 1), 1 / LARGEST / columns, dtype=np.float32)
        unpacked = opset13.multiply(opset13.convert(opset13.constant(weights), "f32"), opset13.constant(scales))
        return opset13.matmul(node, unpacked, False, True)

    def last_rows(node: Any) -> Any:
        return opset13.gather(node, np.full(shape.block, -1), 0)

    states = opset13.parameter([-1, shape.states * size], np.float32)
    hidden = product(states, size, shape.states * size)
    hidden = last_rows(hidden) if shape.block > 1 else hidden
    for _ in range(shape.layers):
        read = opset13.concat([hidden] * shape.inputs, 1)
        attended = opset13.gather(product(read, size + keys, shape.inputs * size), np.arange(size), 1)
        hidden = product(attended, size, size)
        gated = opset13.multiply(opset13.swish(product(hidden, inner, size)), product(hidden, inner, size))
        hidden = product(gated, size, inner)
    logits = product(hidden if shape.block > 1 else last_rows(hidden), vocab, size)
    request = compile_head(Model([logits], [states], "head"), "f32", threads, group=GROUP_SIZES[0])
    return lambda tokens: request.infer([np.ones((tokens, shape.states * size), dtype=np.float32)])


def pass_milliseconds(config: Any, threads: int) -> dict[str, float]:
    """Return the milliseconds of a pass over one token, for each kind of head."""
    found: dict[str, float] = {}
    for kind in SHAPES:
        run, seconds = head_of_shape(config, kind, threads), list[float]()
        for _ in range(PASSES):
            started = perf_counter()
            run(1)
            seconds.append(perf_counter() - started)
        found[kind] = 1000 * min(seconds)
    return found

"""Sessions of draft heads with their own KV cache: heads of one layer, and heads of several MTP layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import Cache

from antiphon.accel.drafting.draft import Tokens
from antiphon.accel.drafting.drafters.head import Guesses, HiddenStates
from antiphon.accel.engines.torch.assistants import plain_pass, stacked


class HeadModule(Protocol):
    """A layer with its own cache. From hidden states and the tokens after them, it computes the next hidden states."""

    name: str
    layers: tuple[int, ...]
    num_bytes: int
    weight: Tensor
    """Weights of the LM head, shape (vocab, hidden). Inputs are moved to their device and dtype."""

    def combine(self, states: Tensor) -> Tensor:
        """Map hidden states (1, tokens, layers * hidden) to layer input (1, tokens, hidden)."""

    def forward(self, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Return the input of the next pass and the input of the LM head, each (1, tokens, hidden).

        Args:
            hidden: Result of `combine`, or the last pass's first result; (1, tokens, hidden).
            tokens: The token after each hidden state, shape (1, tokens).
            positions: Positions of ``tokens``, shape (1, tokens).
        """

    def guesses(self, output: Tensor, width: int) -> Guesses:
        """Return the guesses for one input of the LM head, shape (1, hidden)."""

    def new_cache(self) -> Cache:
        """Return an empty cache."""


class TorchHeadSession:
    """The `HeadSession` of a `TorchHead`: its cache has one entry for each token that it has read or guessed."""

    def __init__(self, module: HeadModule) -> None:
        self._module = module
        self._cache = module.new_cache()
        self._guessed = self._position = 0
        self._hidden = module.weight  # of the last token, (1, 1, hidden), after the first pass

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """See `HeadSession.read`."""
        if self._cache.is_initialized:
            self._cache.crop(-self._guessed)
        self._guessed, self._position = 0, states[0].start
        return self._pass(stacked(states, self._module.weight), tokens, width, is_read=True)

    def guess(self, token: int, width: int) -> Guesses:
        """See `HeadSession.guess`."""
        self._guessed += 1
        return self._pass(self._hidden, (token,), width)

    def _pass(self, hidden: Tensor, tokens: Tokens, width: int, *, is_read: bool = False) -> Guesses:
        module, device = self._module, self._module.weight.device
        positions = torch.arange(self._position + 1, self._position + 1 + len(tokens), device=device)[None]
        self._position += len(tokens)
        with plain_pass(device):
            hidden = module.combine(hidden) if is_read else hidden
            hidden, output = module.forward(hidden, torch.tensor([tokens], device=device), positions, self._cache)
            guesses = module.guesses(output[:, -1], width)
        self._hidden = hidden[:, -1:]
        return guesses


class MtpLayers(HeadModule, Protocol):
    """Several MTP layers, ``count`` of them."""

    count: int

    def forward_layer(self, layer: int, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """Return the output of a layer, (1, tokens, hidden). The other arguments are as for `forward`."""


class MtpLayersSession:
    """The `HeadSession` of several MTP layers: layer k guesses the token at depth k.

    At position i, layer k reads the token at position i + k + 1 and the output of layer k - 1 at
    position i. Layer 0 reads the model's hidden state instead. After a guess, the last k cache entries
    of layer k come from guessed tokens. The next call of ``read`` drops these entries; the layer's
    next run computes them again from confirmed tokens.
    """

    def __init__(self, module: MtpLayers) -> None:
        self._module = module
        self._cache = module.new_cache()
        self._inputs = [module.weight[None, :0]] * module.count  # of each layer, (1, unread tokens, hidden)
        self._guessed = [0] * module.count  # cache entries of each layer that come from guessed tokens
        self._text: list[int] = []  # confirmed tokens, each after one of the hidden states
        self._chain: list[int] = []
        self._position = 0  # of the last confirmed token

    def read(self, states: Sequence[HiddenStates], tokens: Tokens, width: int) -> Guesses:
        """See `HeadSession.read`."""
        layers: list[Any] = self._cache.layers
        for layer, count in enumerate(self._guessed):
            if layers[layer].is_initialized:
                layers[layer].crop(-count)
            if count and layer + 1 < self._module.count:
                self._inputs[layer + 1] = self._inputs[layer + 1][:, :-count]
        self._guessed, self._chain = [0] * self._module.count, []
        self._inputs[0] = stacked(states, self._module.weight)
        self._text += tokens
        self._position = states[0].start + len(tokens)
        return self._pass(0, width)

    def guess(self, token: int, width: int) -> Guesses:
        """See `HeadSession.guess`."""
        self._chain.append(token)
        return self._pass(len(self._chain), width)

    def _pass(self, layer: int, width: int) -> Guesses:
        module, inputs = self._module, self._inputs[layer]
        count, end, device = inputs.shape[1], self._position + layer + 1, inputs.device
        tokens = [*self._text[-count:], *self._chain][-count:]
        positions = torch.arange(end - count, end, device=device)[None]
        with plain_pass(device):
            output = module.forward_layer(layer, inputs, torch.tensor([tokens], device=device), positions, self._cache)
            guesses = module.guesses(output[:, -1], width)
        self._guessed[layer] = min(layer, count)
        self._inputs[layer] = inputs[:, count - self._guessed[layer] :]
        if layer + 1 < module.count:
            self._inputs[layer + 1] = torch.cat([self._inputs[layer + 1], output], dim=1)
        return guesses

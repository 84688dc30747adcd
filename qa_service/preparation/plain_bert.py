"""BERT's encoder in NumPy: what a shipped model's graph is compared with.

J. Devlin et al., "BERT", 2019, and A. Vaswani et al., "Attention Is All You Need", 2017, with the
GELU of D. Hendrycks and K. Gimpel, 2016. It is written from the papers and shares nothing with the
engines, so that a wrong graph, weight or kernel shows. It takes about as long as PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qa_service.instance.arrays import FloatArray, Int64Array

_HIDDEN = np.float32(-1e30)
"""Added to the attention score of a padding token: its share of a softmax is 0."""


class PlainBert:
    """An encoder of BERT's architecture.

    Args:
        weights: float32, by the names that transformers gives them, after a prefix.
        epsilon: What a normalization adds to the variance.
    """

    def __init__(
        self, weights: Mapping[str, FloatArray], prefix: str, num_heads: int, epsilon: float
    ) -> None:
        self._weights = weights
        self._prefix = prefix
        self._num_heads = num_heads
        self._epsilon = np.float32(epsilon)
        self._num_layers = len({n for n in weights if n.endswith("intermediate.dense.weight")})

    def states(self, ids: Int64Array, mask: Int64Array) -> FloatArray:
        """The last layer's states, float32 [batch, seq, hidden], of tokens of the first type.

        Args:
            ids: int64 [batch, seq].
            mask: int64 [batch, seq], 0 for padding.
        """
        table = {
            kind: self._weights[f"{self._prefix}embeddings.{kind}_embeddings.weight"]
            for kind in ("word", "position", "token_type")
        }
        summed = table["word"][ids] + table["position"][: ids.shape[1]] + table["token_type"][0]
        states = self._normalized(summed, "embeddings.LayerNorm")
        hidden = np.where(mask[:, None, None, :] == 1, np.float32(0), _HIDDEN)
        for number in range(self._num_layers):
            layer = f"encoder.layer.{number}"
            read = self._attention(states, hidden, f"{layer}.attention.self")
            read = self._product(read, f"{layer}.attention.output.dense")
            states = self._normalized(states + read, f"{layer}.attention.output.LayerNorm")
            inner = _gelu(self._product(states, f"{layer}.intermediate.dense"))
            outer = self._product(inner, f"{layer}.output.dense")
            states = self._normalized(states + outer, f"{layer}.output.LayerNorm")
        return states

    def _attention(self, states: FloatArray, hidden: FloatArray, name: str) -> FloatArray:
        """What each token reads: the values, weighted by how its query fits their keys."""
        batch, tokens, width = states.shape

        def heads(part: str) -> FloatArray:
            product = self._product(states, f"{name}.{part}")
            return product.reshape(batch, tokens, self._num_heads, -1).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(query.shape[-1])) + hidden
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        read: FloatArray = (shares @ value).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
        return read

    def _of(self, name: str) -> tuple[FloatArray, FloatArray]:
        path = f"{self._prefix}{name}"
        return self._weights[f"{path}.weight"], self._weights[f"{path}.bias"]

    def _product(self, states: FloatArray, name: str) -> FloatArray:
        weight, bias = self._of(name)
        product: FloatArray = states @ weight.T + bias
        return product

    def _normalized(self, states: FloatArray, name: str) -> FloatArray:
        weight, bias = self._of(name)
        centred = states - states.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normalized: FloatArray = centred / np.sqrt(variance + self._epsilon) * weight + bias
        return normalized


def _gelu(states: FloatArray) -> FloatArray:
    """With the error function to 1.5e-7: Abramowitz and Stegun, 1964, formula 7.1.26."""
    values = states / np.float32(np.sqrt(2))
    size = np.abs(values)
    t = 1 / (1 + np.float32(0.3275911) * size)
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    total = np.zeros_like(t)
    for factor in factors:
        total = (total + np.float32(factor)) * t
    error = np.copysign(1 - total * np.exp(-size * size), values)
    scaled: FloatArray = states * np.float32(0.5) * (1 + error)
    return scaled

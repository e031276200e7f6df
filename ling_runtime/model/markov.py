"""The two small heads of a DSpark draft: the Markov bias that ties a draft to the one before, and the confidence.

A block's base logits know nothing of the tokens chosen inside it; the Markov head adds what the previous token says.
It runs once per draft, one after the other, so whatever does not depend on the previous choice is computed before the
loop, for all rows and, where the vocabulary is small, for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ling_runtime.ops.activation import sigmoid
from ling_runtime.ops.linear import pad_rows

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.model.packing import Packer
    from ling_runtime.ops.registry import Kernels

Chain = Callable[[int, "Tensor"], "Tensor"]
"""step(k, previous tokens [B]) -> bias [B, V]; called for k = 0, 1, ... in order."""

TABLE_BYTES = 1 << 26
"""Up to this size the vanilla head is a table over all previous tokens."""


class VanillaHead:
    """B = W2 e, e = W1[previous]."""

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        self.linear = kernels["linear"]
        self.embedding, self.up = weights("markov_w1.weight"), weights("markov_w2.weight")
        small = self.up.shape[0] ** 2 * self.up.element_size() <= TABLE_BYTES
        self._table = self.product(self.embedding) if small else None

    def chain(self, hidden: Tensor) -> Chain:  # noqa: ARG002 - the other heads read it
        """For the rows hidden [B, g, D] of one block each."""
        table = self._table
        if table is None:
            return lambda _, previous: self.product(self.embedding[previous])
        return lambda _, previous: table.index_select(0, previous)

    def product(self, factor: Tensor) -> Tensor:
        """factor [n, r] -> W2 factor [n, V], with the same bits for any n."""
        return self.linear(pad_rows(factor), self.up)[: factor.shape[0]]  # type: ignore[no-any-return]

    def per_row(self, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The part of a joint projection that hidden rows [B, g, D] decide: [B, g, n]."""
        batch, rows, _ = hidden.shape
        flat: Tensor = self.linear(pad_rows(hidden.flatten(0, 1)), weight) + bias
        return flat[: batch * rows].view(batch, rows, -1)


class GatedHead(VanillaHead):
    """B = W2 (sigmoid(Wg [h ; e] + b) * e)."""

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        gate, rank = weights("gate_proj.weight"), self.embedding.shape[1]
        self._hidden, self._bias = gate[:, :-rank].contiguous(), weights("gate_proj.bias")
        tokens = self.embedding.shape[0]
        self._tokens = self.linear(pad_rows(self.embedding), gate[:, -rank:].contiguous())[:tokens]

    def chain(self, hidden: Tensor) -> Chain:
        rows = self.per_row(hidden, self._hidden, self._bias)

        def step(k: int, previous: Tensor) -> Tensor:
            gate = sigmoid(rows[:, k] + self._tokens[previous])
            return self.product(gate * self.embedding[previous])

        return step


class RnnHead(VanillaHead):
    """[u ; c ; o] = Wj [s ; e ; h] + b, B = W2 tanh(o), s' = sigmoid(u) s + (1 - sigmoid(u)) tanh(c), s = 0 at first.

    The output is read from the state before its update.
    """

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        joint, rank = weights("joint_proj.weight"), self.embedding.shape[1]
        self._hidden, self._bias = joint[:, 2 * rank :].contiguous(), weights("joint_proj.bias")
        self._state = joint[:, :rank].contiguous()
        tokens = self.embedding.shape[0]
        self._tokens = self.linear(pad_rows(self.embedding), joint[:, rank : 2 * rank].contiguous())[:tokens]

    def chain(self, hidden: Tensor) -> Chain:
        rows = self.per_row(hidden, self._hidden, self._bias)
        state = hidden.new_zeros(hidden.shape[0], self.embedding.shape[1])

        def step(k: int, previous: Tensor) -> Tensor:
            nonlocal state
            carried = self.linear(pad_rows(state), self._state)[: state.shape[0]]
            update, candidate, output = (rows[:, k] + self._tokens[previous] + carried).chunk(3, dim=-1)
            keep = sigmoid(update)
            state = keep * state + (1 - keep) * candidate.tanh()
            return self.product(output.tanh())

        return step


HEADS = {"vanilla": VanillaHead, "gated": GatedHead, "rnn": RnnHead}


def markov_head(config: DraftConfig, weights: Packer, kernels: Kernels) -> VanillaHead:
    return HEADS[config.markov_head_type](weights, kernels)


class ConfidenceHead:
    """Logit of the chance that a draft is accepted if those before it are, from its row and the token before it.

    In fp32 whatever the run's precision. It never sees the token it speaks about.
    """

    def __init__(self, config: DraftConfig, weights: Packer, embedding: Tensor) -> None:
        projection = weights.wide("proj.weight")[0]
        self._bias = weights.wide("proj.bias")
        self._hidden, token = projection[: config.hidden_size], projection[config.hidden_size :]
        wide = embedding.to(projection.dtype)
        self._tokens = (wide * token).sum(-1) if config.confidence_head_with_markov else wide.new_zeros(len(wide))

    def __call__(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Rows [B, g, D] and the token before each draft [B, g] -> logits [B, g]."""
        return (hidden.to(self._hidden.dtype) * self._hidden).sum(-1) + self._tokens[previous] + self._bias

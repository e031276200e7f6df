"""The two small heads of a DSpark draft: the Markov bias that ties a draft to the one before, and the confidence.

A block's base logits know nothing of the tokens chosen inside it; the Markov head adds what the previous token says.
It runs once per draft, one after the other, so whatever does not depend on the previous choice is computed before the
loop, for all rows and, where the vocabulary is small, for all tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
"""Up to this size, what a previous token decides is a table over all tokens."""


class MarkovHead(ABC):
    """The factors of the bias: `embedding` [V, r] of the previous token, `up` [V, r] back to the vocabulary."""

    factors: tuple[Tensor, Tensor] | None = None
    """(embedding, up) where the bias is their product for the previous token and depends on nothing else."""

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        self.embedding, self._up = weights("markov_w1.weight"), weights("markov_w2.weight")
        self._linear = kernels["linear"]

    @abstractmethod
    def chain(self, hidden: Tensor) -> Chain:
        """For the rows hidden [B, g, D], one block of each request."""

    def bias(self, factor: Tensor) -> Tensor:
        """factor [B, r] -> [B, V]."""
        return self._project(factor, self._up)

    def by_token(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """previous [B] -> weight W1[previous] [B, n], from a table where that is small; the bits are the same."""
        if len(self.embedding) * len(weight) * weight.element_size() > TABLE_BYTES:
            return lambda previous: self._project(self.embedding[previous], weight)
        table = self._project(self.embedding, weight)
        return lambda previous: table.index_select(0, previous)

    def by_row(self, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """hidden [B, g, D] -> weight h + bias [B, g, n]."""
        return self._project(hidden.flatten(0, 1), weight).add_(bias).view(*hidden.shape[:2], -1)

    def _project(self, rows: Tensor, weight: Tensor) -> Tensor:
        """rows [n, k] -> [n, m], with the same bits for a row whatever n."""
        return self._linear(pad_rows(rows), weight)[: len(rows)]  # type: ignore[no-any-return]


class VanillaHead(MarkovHead):
    """B = W2 e, e = W1[previous]."""

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        self.factors = (self.embedding, self._up)
        self._bias = self.by_token(self._up)

    def chain(self, hidden: Tensor) -> Chain:  # noqa: ARG002 - the other heads read it
        return lambda _, previous: self._bias(previous)


class GatedHead(MarkovHead):
    """B = W2 (sigmoid(Wg [h ; e] + b) * e)."""

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        gate, rank = weights("gate_proj.weight"), self.embedding.shape[1]
        self._hidden, self._offset = gate[:, :-rank].contiguous(), weights("gate_proj.bias")
        self._token = self.by_token(gate[:, -rank:].contiguous())

    def chain(self, hidden: Tensor) -> Chain:
        rows = self.by_row(hidden, self._hidden, self._offset)

        def step(k: int, previous: Tensor) -> Tensor:
            return self.bias(sigmoid(rows[:, k] + self._token(previous)) * self.embedding[previous])

        return step


class RnnHead(MarkovHead):
    """[u ; c ; o] = Wj [s ; e ; h] + b, B = W2 tanh(o), s' = sigmoid(u) s + (1 - sigmoid(u)) tanh(c), s = 0 at first.

    The output is read from the state before its update.
    """

    def __init__(self, weights: Packer, kernels: Kernels) -> None:
        super().__init__(weights, kernels)
        joint, rank = weights("joint_proj.weight"), self.embedding.shape[1]
        self._hidden, self._offset = joint[:, 2 * rank :].contiguous(), weights("joint_proj.bias")
        self._state, self._token = joint[:, :rank].contiguous(), self.by_token(joint[:, rank : 2 * rank].contiguous())

    def chain(self, hidden: Tensor) -> Chain:
        rows = self.by_row(hidden, self._hidden, self._offset)
        state = hidden.new_zeros(hidden.shape[0], self.embedding.shape[1])

        def step(k: int, previous: Tensor) -> Tensor:
            nonlocal state
            joint = rows[:, k] + self._token(previous) + self._project(state, self._state)
            update, candidate, output = joint.chunk(3, dim=-1)
            keep = sigmoid(update)
            state = keep * state + (1 - keep) * candidate.tanh()
            return self.bias(output.tanh())

        return step


HEADS: dict[str, Callable[[Packer, Kernels], MarkovHead]] = {"vanilla": VanillaHead, "gated": GatedHead, "rnn": RnnHead}


def markov_head(config: DraftConfig, weights: Packer, kernels: Kernels) -> MarkovHead:
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

"""Kernels of linear + cross-entropy: logits and their gradient exist a chunk of rows, or of classes, at a time.

Every kernel begins with the same arguments: logits, or None and what they are the product of; targets, class weights,
reduction, ignored target, dtype of the log-softmax, rows that have targets, and how many chunks. In a backward the
loss's gradient follows, the sum of weights, and a second gradient of the logits or None; then what is wanted.

Over rows, chunks change nothing but the sizes of matrix products. The weight's gradient is a sum over rows: in chunks
of classes every element keeps its order of summation, and two numbers per row, the largest logit and the logarithm of
the sum, stand for the row's softmax. In chunks of rows it is summed in another order, with less arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide.ops.cross_entropy import Rows, log_softmax, spans
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as Dtype


FEW = 8
CLASSES = 64
"""A chunk of classes begins at a multiple of it: sums over rows are taken for so many columns at once."""


@dataclass(frozen=True, slots=True)
class Logits:
    """[N, V], there or made in parts: hidden states [N, H] times a matrix [H, V], plus a bias [V] if there is one."""

    whole: Tensor | None
    hidden: Tensor | None
    matrix: Tensor | None
    bias: Tensor | None

    def rows(self, a: int, b: int) -> Tensor:
        """Rows a to b; in bytes of their own if they are made."""
        if self.whole is not None:
            return self.whole[a:b]
        hidden, matrix = self.factors
        return self._product(hidden[a:b], matrix, self.bias, None)

    def block(self, a: int, b: int) -> Tensor:
        """Classes a to b of every row, with a column for one class more, which is 0."""
        if self.whole is not None:
            padded = self.whole.new_empty((self.whole.shape[0], b - a + 1))
            padded[:, :-1] = self.whole[:, a:b]
        else:
            hidden, matrix = self.factors
            padded = hidden.new_empty((hidden.shape[0], b - a + 1))
            self._product(hidden, matrix[:, a:b], None if self.bias is None else self.bias[a:b], padded[:, :-1])
        padded[:, -1] = 0
        return padded

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Hidden states and matrix."""
        assert self.hidden is not None
        assert self.matrix is not None
        return self.hidden, self.matrix

    def _product(self, hidden: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        if bias is None:
            return torch.mm(hidden, matrix, out=out)
        return torch.addmm(bias, hidden, matrix, out=out)


@dataclass(frozen=True, slots=True)
class Head:
    """A loss on logits.

    Arguments:
        dtype: of the log-softmax.
        extra: a gradient of the logits that comes from elsewhere, [N, V], or None.
        largest, log_sum: of every row, as `linear_cross_entropy` returns them; None where they are not known.
    """

    logits: Logits
    rows: Rows
    dtype: Dtype
    extra: Tensor | None = None
    largest: Tensor | None = None
    log_sum: Tensor | None = None

    def few(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """Rows a to b, a few at a time: what is made of them in the log-softmax's dtype is small against them."""
        return ((a + c, a + d) for c, d in spans(b - a, min(FEW, b - a), 1))

    def in_bytes(self, logits: Tensor) -> bool:
        """Whether some rows may be overwritten, and have the log-softmax's dtype."""
        return self.logits.whole is None and logits.dtype == self.dtype

    def log_p(self, logits: Tensor, a: int, b: int) -> Tensor:
        """Log-probabilities of rows a to b, over their logits where those may be overwritten."""
        own = logits if self.in_bytes(logits) else logits.to(self.dtype, copy=True)
        if self.largest is None or self.log_sum is None:
            return log_softmax(own)
        return own.sub_(self.largest[a:b, None]).sub_(self.log_sum[a:b, None])

    def gradient(self, a: int, b: int, picked: Tensor | None = None) -> Tensor:
        """The logits' gradient in rows a to b, over them if they are made; `picked` notes what the targets pick."""
        logits = self.logits.rows(a, b)
        found = logits if self.logits.whole is None else torch.empty_like(logits)
        for c, d in self.few(a, b):
            log_p = self.log_p(logits[c - a : d - a], c, d)
            if picked is not None:
                picked[c:d] = self.rows.picked(log_p, c, d)
            gradient = self.rows.gradient(log_p, c, d)
            if not self.in_bytes(logits):
                found[c - a : d - a] = gradient
        return found if self.extra is None else found.add_(self.extra[a:b])

    def slopes(self) -> Tensor:
        """Per row, the gradient of its target's log-probability; [N, 1]."""
        rows = self.rows
        nothing = torch.zeros((len(rows.targets), 1), dtype=self.dtype, device=rows.targets.device)
        slope = rows.slope(nothing, rows.single(), None, -100)
        return slope if rows.weight is None else slope.mul_(rows.weights().unsqueeze(1))

    def block_gradient(self, a: int, b: int, slopes: Tensor) -> Tensor:
        """The logits' gradient for classes a to b; `largest` and `log_sum` are known.

        The softmax's gradient takes the sum of a row's slopes, and there is one that is not 0. Where its class is not
        among these, it stands in the column for one more.
        """
        block = self.logits.block(a, b)
        own = block.dtype == self.dtype
        targets = self.rows.targets
        places = torch.where((targets >= a) & (targets < b), targets - a, b - a).unsqueeze(1)
        assert self.largest is not None
        assert self.log_sum is not None
        for c, d in self.few(0, len(targets)):
            log_p = block[c:d] if own else block[c:d].to(self.dtype)
            log_p.sub_(self.largest[c:d, None]).sub_(self.log_sum[c:d, None])
            log_p[:, -1] = 0
            gradient = torch.zeros_like(log_p).scatter_(1, places[c:d], slopes[c:d])
            torch.ops.aten._log_softmax_backward_data.out(gradient, log_p, 1, self.dtype, out=log_p)
            if not own:
                block[c:d] = log_p
        found = block[:, :-1]
        return found if self.extra is None else found.add_(self.extra[:, a:b])


def linear_cross_entropy(
    logits: Tensor | None,
    hidden: Tensor | None,
    matrix: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, sum of weights, and per row the largest logit and the logarithm of the sum of exponentials below it."""
    rows = Rows.of(targets, weight, reduction, ignore_index, kept)
    head = Head(Logits(logits, hidden, matrix, bias), rows, dtype)
    picked, largest, log_sum = (torch.empty(len(rows.targets), dtype=dtype, device=targets.device) for _ in range(3))
    for a, b in spans(len(rows.targets), chunks):
        logits = head.logits.rows(a, b)
        largest[a:b] = logits.amax(1)
        for c, d in head.few(a, b):
            log_p = head.log_p(logits[c - a : d - a], c, d)
            log_sum[c:d] = -log_p.amax(1)
            picked[c:d] = rows.picked(log_p, c, d)
        del logits, log_p
    return (*rows.reduced(picked), largest, log_sum)


def input_gradient(
    logits: Tensor | None,
    hidden: Tensor | None,
    matrix: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
    upstream: Tensor,
    total: Tensor,
    extra: Tensor | None,
    largest: Tensor | None = None,
    log_sum: Tensor | None = None,
) -> Tensor:
    """The gradient of the hidden states, [N, H]; sooner with `largest` and `log_sum` of `linear_cross_entropy`."""
    rows = Rows.of(targets, weight, reduction, ignore_index, kept, upstream, total)
    head = Head(Logits(logits, hidden, matrix, bias), rows, dtype, extra, largest, log_sum)
    found = matrix.new_empty((len(rows.targets), matrix.shape[0]))
    for a, b in spans(len(rows.targets), chunks):
        torch.mm(head.gradient(a, b), matrix.t(), out=found[a:b])
    return found


def weight_gradient(
    logits: Tensor | None,
    hidden: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
    upstream: Tensor,
    total: Tensor,
    extra: Tensor | None,
    largest: Tensor,
    log_sum: Tensor,
    turned: bool,
    matrix_too: bool,
    bias_shape: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """The gradients of matrix and bias, each element summed over all rows at once.

    Arguments:
        largest, log_sum: as from `linear_cross_entropy`.
        turned: whether the matrix's gradient is [H, V] rather than [V, H].
        matrix_too: whether it is wanted.
        bias_shape: of the bias's gradient; None if that is not wanted.

    Returns: empty tensors for what is not wanted.
    """
    rows = Rows.of(targets, weight, reduction, ignore_index, kept, upstream, total)
    head = Head(Logits(logits, hidden, matrix, bias), rows, dtype, extra, largest, log_sum)
    found = _empty_gradient(matrix, turned, matrix_too, matrix.dtype)
    summed = matrix.new_empty((0,) if bias_shape is None else (matrix.shape[1],))
    slopes = head.slopes()
    for a, b in spans(matrix.shape[1], chunks, CLASSES):
        gradient = head.block_gradient(a, b, slopes)
        if bias_shape is not None:
            summed[a:b] = gradient.sum(0)
        if matrix_too and turned:
            torch.mm(hidden.t(), gradient, out=found[:, a:b])
        elif matrix_too:
            torch.mm(gradient.t(), hidden, out=found[a:b])
        del gradient
    return found, summed if bias_shape is None else summed.view(bias_shape)


def linear_cross_entropy_backward(
    logits: None,
    hidden: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
    upstream: Tensor,
    total: Tensor,
    extra: Tensor | None,
    hidden_too: bool,
    turned: bool,
    matrix_too: bool,
    bias_shape: Sequence[int] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of hidden states, matrix and bias in one pass over the rows; see `weight_gradient`."""
    rows = Rows.of(targets, weight, reduction, ignore_index, kept, upstream, total)
    head = Head(Logits(logits, hidden, matrix, bias), rows, dtype, extra)
    sums = Sums.of(hidden, matrix, hidden_too, turned, matrix_too, bias_shape)
    for a, b in spans(len(rows.targets), chunks):
        sums.add(head.gradient(a, b), a, b)
    return sums.input.to(matrix.dtype), sums.weight.to(matrix.dtype), sums.bias.to(matrix.dtype)


def linear_cross_entropy_with_gradients(
    logits: None,
    hidden: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    dtype: Dtype,
    kept: Sequence[int] | None,
    chunks: int,
    hidden_too: bool,
    turned: bool,
    matrix_too: bool,
    bias_shape: Sequence[int] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss and sum of weights, and the gradients that belong to a loss's gradient of 1, in one pass over the rows.

    Returns: gradients in float32 where the matrix has fewer bits; see `weight_gradient`.
    """
    rows = Rows.of(targets, weight, reduction, ignore_index, kept)
    picked = torch.zeros(len(rows.targets), dtype=dtype, device=targets.device)
    total = rows.reduced(picked)[1]  # of the weights alone, before there are losses
    rows = Rows.of(targets, weight, reduction, ignore_index, kept, total.new_ones(()), total)
    head = Head(Logits(logits, hidden, matrix, bias), rows, dtype)
    sums = Sums.of(hidden, matrix, hidden_too, turned, matrix_too, bias_shape)
    for a, b in spans(len(rows.targets), chunks):
        sums.add(head.gradient(a, b, picked), a, b)
    return (*rows.reduced(picked), sums.input, sums.weight, sums.bias)


def scaled(saved: Tensor, upstream: Tensor, dtype: Dtype) -> Tensor:
    """A gradient that belongs to a loss's gradient of 1, for another one."""
    return torch.mul(saved, upstream).to(dtype)


@dataclass(frozen=True, slots=True)
class Sums:
    """Gradients to which chunks of rows add; in float32 at least, for a sum of many rounded parts would drift."""

    hidden: Tensor
    matrix: Tensor
    turned: bool
    input: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def of(
        cls,
        hidden: Tensor,
        matrix: Tensor,
        hidden_too: bool,
        turned: bool,
        matrix_too: bool,
        bias_shape: Sequence[int] | None,
    ) -> Sums:
        """Sums of nothing; empty for what is not wanted."""
        wide = torch.float32 if matrix.dtype.itemsize < torch.float32.itemsize else matrix.dtype
        return cls(
            hidden,
            matrix,
            turned,
            matrix.new_empty((len(hidden), matrix.shape[0]) if hidden_too else (0,), dtype=wide),
            _empty_gradient(matrix, turned, matrix_too, wide).zero_(),
            matrix.new_zeros((0,) if bias_shape is None else bias_shape, dtype=wide),
        )

    def add(self, gradient: Tensor, a: int, b: int) -> None:
        """Adds what the logits' gradient in rows a to b gives."""
        if self.input.numel():
            self.input[a:b] = torch.mm(gradient, self.matrix.t())
        if self.bias.numel():
            self.bias.add_(gradient.sum(0))
        if not self.weight.numel():
            return
        rows = self.hidden[a:b]
        left, right = (rows.t(), gradient) if self.turned else (gradient.t(), rows)
        if self.weight.dtype == gradient.dtype:
            self.weight.addmm_(left, right)
        else:
            self.weight.add_(torch.mm(left, right))


def _empty_gradient(matrix: Tensor, turned: bool, wanted: bool, dtype: Dtype) -> Tensor:
    size, classes = matrix.shape
    shape = (size, classes) if turned else (classes, size)
    return matrix.new_empty(shape if wanted else (0,), dtype=dtype)

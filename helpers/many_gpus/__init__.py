"""Softmax, cross-entropy, top-k and attention over several GPUs: what each rank does, and the merge of their states.

Every function here runs on all ranks at once, as `function(comm, ...)` with a `Comm` of group.py, on that rank's part of
the data: tensors on `comm.device`.  Columns and tokens may be split unevenly, and a part may be empty.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import gradients, topk
from ..attention import attention
from ..gradients import _array, _current_stream, _tensor
from .group import Comm

NEG_INF = float("-inf")
ALL = slice(None)
NOTHING = torch.iinfo(torch.int64).min  # the key of a candidate that does not exist: it comes after all others
IGNORED = gradients.IGNORED  # -100, torch's default for targets that do not count


class State(NamedTuple):
    """m and d of some rows, float32 tensors [M]."""

    m: torch.Tensor
    d: torch.Tensor


def shard(n: int, size: int, rank: int) -> slice:
    """The part of `n` columns or tokens that `rank` of `size` holds: the first n % size ranks have one more."""
    first = rank * (n // size) + min(rank, n % size)
    return slice(first, first + n // size + (rank < n % size))


# ---------------------------------------------------------------------------------------------------- the merge


def merge_by_all_reduce(comm: Comm, own: State) -> State:
    """The state of whole rows from every rank's `own`: two all-reduces of a number a row."""
    m = comm.all_reduce(own.m.clone(), "max")
    d = comm.all_reduce(own.d * torch.exp(own.m - origin(m)), "sum")
    return State(m, d)


def merge_by_all_gather(comm: Comm, own: State) -> State:
    """The same from one all-gather of (m, d); every rank adds up by itself."""
    m_all, d_all = comm.all_gather(torch.stack(own)).unbind(1)  # [size, M] each
    m = m_all.amax(0)
    return State(m, (d_all * torch.exp(m_all - origin(m))).sum(0))


MERGES = {"all_reduce": merge_by_all_reduce, "all_gather": merge_by_all_gather}


def origin(m: torch.Tensor) -> torch.Tensor:
    """What exponents are measured from: m, but 0 instead of -inf, because -inf - (-inf) would be NaN."""
    return torch.where(m == NEG_INF, 0, m)


# ------------------------------------------------------------------------------------- columns over ranks: softmax


def state_of(x: torch.Tensor) -> State:
    """The state of this rank's columns x [M, n]; (-inf, 0) where n = 0.  On a GPU by the course's kernel, in one read."""
    if x.is_cuda and x.numel():
        no_target = torch.full((len(x),), IGNORED, device=x.device)
        with _current_stream(x):
            _, states = gradients.cross_entropy_forward(_array(x), _array(no_target))
            return State(*_tensor(states, x).unbind(1))
    x = torch.cat([x.float(), x.new_full((len(x), 1), NEG_INF, dtype=torch.float32)], 1)  # one column that counts for nothing
    m = x.amax(1)
    return State(m, torch.exp(x - origin(m)[:, None]).sum(1))


def probabilities(x: torch.Tensor, state: State) -> torch.Tensor:
    """exp(x - m) / d for columns x [M, n] of rows with the state (m, d), in x's dtype; NaN for a row of only -inf."""
    if x.is_cuda and x.shape[1] > 64:  # many columns: as a gradient without a target, in one read and one write
        nowhere = torch.full_like(state.m, -1, dtype=torch.int64)
        return _p_minus_onehot(x, nowhere, State(state.m, torch.where(state.d == 0, torch.nan, state.d)), torch.ones_like(state.m))
    return (torch.exp(x.float() - state.m[:, None]) / state.d[:, None]).to(x.dtype)


def softmax(comm: Comm, x: torch.Tensor, merge: str = "all_reduce") -> torch.Tensor:
    """This rank's columns [M, n] of the softmax of whole rows, from its columns x [M, n] of the logits."""
    return probabilities(x, MERGES[merge](comm, state_of(x)))


# ------------------------------------------------------------------------------- columns over ranks: cross-entropy


def cross_entropy(comm: Comm, x: torch.Tensor, targets: torch.Tensor, first: int, total: int) -> tuple[torch.Tensor, State]:
    """(loss [M], state) of whole rows, the same on every rank: loss = LSE - x[target], float32.

    x [M, n] holds the columns `first` to first + n - 1 of `total`; targets [M], int64, count all columns.  The loss of a
    target -100 is 0, of any other outside of 0 to total - 1 NaN.
    """
    own = state_of(x)
    m = comm.all_reduce(own.m.clone(), "max")
    both = torch.stack([own.d * torch.exp(own.m - origin(m)), _logit(x, targets - first)])
    d, logit = comm.all_reduce(both, "sum")  # one all-reduce for both sums
    loss = (m - logit) + torch.log(d)
    loss = torch.where(_counts(targets, total), loss, torch.nan)
    return torch.where(targets == IGNORED, 0, loss), State(m, d)


def cross_entropy_gradient(x: torch.Tensor, targets: torch.Tensor, state: State, scales: torch.Tensor, first: int,
                           total: int) -> torch.Tensor:
    """This rank's columns of (p - onehot) * scale, from the state that the forward pass kept: nothing is sent.

    scales [M], float32, are the gradients of the losses.  Ignored rows and rows of only -inf get 0.
    """
    scales = torch.where(_counts(targets, total), scales, torch.nan)
    scales = torch.where((targets == IGNORED) | ((state.m == NEG_INF) & (state.d == 0)), 0, scales)
    return _p_minus_onehot(x, targets - first, state, scales)


def _p_minus_onehot(x: torch.Tensor, column: torch.Tensor, state: State, scales: torch.Tensor) -> torch.Tensor:
    """(p - onehot) * scale for this rank's columns x [M, n]; `column` is where the onehot is, if it is one of them."""
    if not x.numel():
        return torch.empty_like(x)
    column, here = _own(column, x.shape[1])
    if not x.is_cuda:
        dx = _times_scale(x, State(*(t[:, None] for t in state)), scales[:, None])
        dx[torch.arange(len(x)), column] -= torch.where(here, scales, 0)
        return dx.to(x.dtype)
    with _current_stream(x):
        dx = _tensor(gradients.cross_entropy_backward(*map(_array, (x, torch.stack(state, 1), column, scales))), x)
    zeroth = _times_scale(x[:, 0], state, scales).to(x.dtype)  # the kernel took column 0 for a target that is elsewhere
    dx[:, 0] = torch.where(here, dx[:, 0], zeroth)
    return dx


def _times_scale(x: torch.Tensor, state: State, scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales == 0, 0, torch.exp(x.float() - origin(state.m)) / state.d * scales)


def _counts(targets: torch.Tensor, total: int) -> torch.Tensor:
    return (0 <= targets) & (targets < total)


def _own(column: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(column, or 0 where it is not one of this rank's n; whether it is)."""
    here = (0 <= column) & (column < n)
    return torch.where(here, column, 0), here


def _logit(x: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """x[column] of each row on the rank that holds it, and 0 on all others."""
    column, here = _own(column, x.shape[1])
    if not x.numel():
        return torch.zeros(len(x), device=x.device)
    return torch.where(here, x.gather(1, column[:, None])[:, 0].float(), 0)


# --------------------------------------------------------------------------------------- columns over ranks: top-k


def softmax_topk(comm: Comm, x: torch.Tensor, k: int, first: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(p, columns), each [M, k]: the k most probable entries of whole rows, the same on every rank, from one all-gather.

    x [M, n] holds the columns `first` to first + n - 1 of `total`.  Descending; among equal logits the lowest column comes
    first, and a NaN counts as the largest.  Raises ValueError for k > total.
    """
    if not 1 <= k <= total:
        raise ValueError(f"k = {k} is outside 1 to {total}, the columns of a row")
    keys, d = candidates(x, k, first)
    gathered = comm.all_gather(torch.cat([keys.view(torch.int32), d[:, None].view(torch.int32)], 1))  # [size, M, 2k + 1]
    keys, d = gathered[..., :-1].contiguous().view(torch.int64), gathered[..., -1].view(torch.float32)
    m = logits_of(keys[..., 0])  # the best candidate of a rank is its maximum
    m_all = m.amax(0)
    d_all = (d * torch.exp(m - origin(m_all))).sum(0)
    best = torch.topk(keys.transpose(0, 1).flatten(1), k)[0]
    return probabilities(logits_of(best), State(m_all, d_all)), columns_of(best)


def candidates(x: torch.Tensor, k: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(keys [M, k], d [M]) of this rank: its k largest logits in descending order, and its normalizer; NOTHING where there are fewer."""
    M, n = x.shape
    keys = torch.full((M, k), NOTHING, device=x.device)
    taken = min(k, n)
    if taken and x.is_cuda:
        with _current_stream(x):
            p, best = (_tensor(a, x) for a in topk.softmax_topk(_array(x), taken))
        keys[:, :taken] = keys_of(x.gather(1, best.long()).float(), best + first)
        return keys, torch.where(logits_of(keys[:, 0]) == NEG_INF, 0, 1 / p[:, 0])  # the best has p = exp(0) / d
    if taken:
        keys[:, :taken] = torch.topk(keys_of(x.float(), torch.arange(first, first + n)), taken)[0]
    return keys, state_of(x).d


def keys_of(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """One int64 for a logit (float32) and its column: larger for a larger logit, NaN above all; of two alike for the lower column."""
    bits = (torch.where(logits.isnan(), torch.nan, logits) + 0.0).view(torch.int32).long()  # one NaN, and no -0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32 | 0x7FFFFFFF - columns


def logits_of(keys: torch.Tensor) -> torch.Tensor:
    """The logits in keys; -inf for NOTHING."""
    bits = keys >> 32
    logits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int32).view(torch.float32)
    return torch.where(keys == NOTHING, NEG_INF, logits)


def columns_of(keys: torch.Tensor) -> torch.Tensor:
    """The columns in keys."""
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF)


# ------------------------------------------------------------------------------------- tokens over ranks: attention


def tokens(n: int, size: int, rank: int, zigzag: bool = False) -> list[slice]:
    """The tokens of `rank`: one stretch, or in zig-zag order two of 2 * size, the `rank`-th from the front and from the back."""
    if not zigzag:
        return [shard(n, size, rank)]
    return [shard(n, 2 * size, rank), shard(n, 2 * size, 2 * size - 1 - rank)]


def visible_part(rank: int, source: int, queries: list[int], keys: list[int]) -> tuple[slice, slice] | None:
    """(queries of `rank`, keys of another rank `source`) that all see each other under the causal mask; None if none do.

    `queries` and `keys` are the lengths of their stretches, one each or, in zig-zag order, two.
    """
    if len(keys) == 1:
        return (ALL, ALL) if source < rank else None
    if source < rank:
        return ALL, slice(0, keys[0])  # their first stretch lies before both of ours, their second behind
    return slice(queries[0], None), ALL  # our second stretch lies behind both of theirs, our first before


def ring_attention(comm: Comm, q, k, v, lengths: list[list[int]], causal: bool = False, overlap: bool = True):
    """(o, lse) for this rank's queries over the keys of all ranks: K and V go round, and partial results merge.

    q, k and v [B, H, n, D] hold this rank's tokens, in the order of `tokens`; `lengths` are those of every rank's stretches.
    o [B, H, n, D] has the dtype of q, lse [B, H, n] is float32.  A query that sees no key gets o = 0 and lse = -inf.  With
    `overlap` the next keys travel while this rank works on those it has.
    """
    kv = torch.stack([k, v])
    for step in range(comm.size):
        source = (comm.rank - step) % comm.size  # whose keys these are
        if step < comm.size - 1:
            n = sum(lengths[(source - 1) % comm.size])
            arrived = comm.pass_on(kv, kv.new_empty((*kv.shape[:3], n, kv.shape[4])))
            if not overlap:
                arrived()
        met = visible_part(comm.rank, source, lengths[comm.rank], lengths[source]) if causal else (ALL, ALL)
        if step == 0:  # our own keys, the only ones that need the mask
            o, lse = attend(q, *kv, causal)
            o = o.float()
        elif met:
            queries, keys = met
            merge_into(o[:, :, queries], lse[:, :, queries], *attend(q[:, :, queries], *kv[:, :, :, keys]))
        if step < comm.size - 1:
            kv = arrived()
    return o.to(q.dtype), lse


def gathered_attention(comm: Comm, q, k, v, first: int = 0, causal: bool = False):
    """(o, lse) for all queries on every rank, from one all-gather of each rank's (O, LSE) over its own keys.

    q [B, H, S, D] is the same everywhere; k and v [B, H, n, D] are this rank's tokens, from `first` on.
    """
    o, lse = torch.zeros_like(q), q.new_full(q.shape[:3], NEG_INF, dtype=torch.float32)
    if not causal:
        o, lse = attend(q, k, v)
    else:  # earlier queries see none of these keys, later ones all
        for part, inside in ((slice(first, first + k.shape[2]), True), (slice(first + k.shape[2], None), False)):
            o[:, :, part], lse[:, :, part] = attend(q[:, :, part], k, v, inside)
    lses = comm.all_gather(lse)
    outputs = comm.all_gather(o)
    weights = torch.exp(lses - origin(lses.amax(0)))
    d = weights.sum(0)
    o = (weights[..., None] * outputs.float()).sum(0) / torch.where(d == 0, 1, d)[..., None]
    return o.to(q.dtype), origin(lses.amax(0)) + torch.log(d)


def merge_into(o: torch.Tensor, lse: torch.Tensor, o_new: torch.Tensor, lse_new: torch.Tensor) -> None:
    """Merge the result over more keys into (o, lse), in place: the operator of notebook 12, for finished outputs."""
    both = torch.logaddexp(lse, lse_new)
    zero = origin(both)
    o.mul_(torch.exp(lse - zero)[..., None]).add_(o_new * torch.exp(lse_new - zero)[..., None])
    lse.copy_(both)


def attend(q, k, v, causal: bool = False):
    """(o, lse) of one rank alone, by the course's attention kernel on this device; causal as there, bottom-right aligned."""
    if q.shape[2] == 0 or k.shape[2] == 0:
        return torch.zeros_like(q), q.new_full(q.shape[:3], NEG_INF, dtype=torch.float32)
    with _current_stream(q):
        o, lse = attention(_array(q), _array(k), _array(v), causal=causal)
        return _tensor(o, q), _tensor(lse, q)

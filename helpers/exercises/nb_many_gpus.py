"""Exercises of beyond/many_gpus."""

from __future__ import annotations

import math

import numpy as np

from helpers import reference
from helpers.exercises import Wrong, call, exercise

INF, NAN = math.inf, math.nan


# -------------------------------------------------------------------------------------------------- many-finish


def _finish(x, states):
    m, d = states[:, :, 0], states[:, :, 1]
    m_all = m.max(axis=0)
    origin = np.where(m_all == -np.inf, 0.0, m_all)  # a row of only -inf: no NaN from -inf - (-inf)
    d_all = (d * np.exp(m - origin)).sum(axis=0)
    return np.exp(x - m_all[:, None]) / d_all[:, None], m_all + np.log(d_all)


def _variant(factor=lambda m, top: np.exp(m - top), top=lambda m: m.max(axis=0), own=False, guard=True, lse=None, clean=lambda y: y):
    def finish(x, states):
        m, d = states[:, :, 0], states[:, :, 1]
        m_all = top(m)
        origin = np.where(m_all == -np.inf, 0.0, m_all) if guard else m_all
        d_all = (d * factor(m, origin)).sum(axis=0)
        y_m, y_d = (x.max(axis=1), np.exp(x - x.max(axis=1)[:, None]).sum(axis=1)) if own else (m_all, d_all)
        return clean(np.exp(x - y_m[:, None]) / y_d[:, None]), (m_all + np.log(d_all) if lse is None else lse(m, d))

    return finish


@exercise(
    "many-finish", "What a rank does with everyone's states",
    hints=(
        "m = states[:, :, 0] and d = states[:, :, 1] have one line for each rank and one column for each row of logits.",
        "m_all = m.max(axis=0); d_all = the sum over ranks, axis 0, of every d rescaled by exp(m - m_all).",
        "The rank's slice of the softmax is exp(x - m_all[:, None]) / d_all[:, None], and the LSE is m_all + log(d_all).",
        "Where m_all is -inf, put 0 in its place inside exp(m - m_all): d_all is then 0, the LSE -inf, and the softmax NaN.",
    ),
    solution=_finish,
    wrong={
        "d not rescaled": (_variant(factor=lambda m, top: 1.0), "rescaled"),
        "factor upside down": (_variant(factor=lambda m, top: np.where(m == -np.inf, 0, np.exp(np.minimum(top - m, 50)))), "upside down"),
        "own softmax": (_variant(own=True), "its own columns"),
        "one maximum for all rows": (_variant(top=lambda m: np.full(m.shape[1], m.max())), "its own maximum"),
        "maximum from 0": (_variant(top=lambda m: np.maximum(m.max(axis=0), 0)), "no logit is that large"),
        "LSEs added": (_variant(lse=lambda m, d: np.where(d > 0, m + np.log(np.where(d > 0, d, 1)), 0).sum(axis=0)), "added the LSEs"),
        "no guard": (_variant(guard=False), "-inf - (-inf)"),
        "NaN hidden": (_variant(clean=np.nan_to_num), "hides"),
    },
)
def _judge_finish(answer):
    rng = np.random.default_rng(8)

    def states_of(parts):
        states = np.empty((len(parts), len(parts[0]), 2))
        for rank, part in enumerate(parts):
            for row in range(len(part)):
                states[rank, row] = reference.state_of(part[row])
        return states

    def run(parts, rank):
        states = states_of(parts)
        with np.errstate(all="ignore"):
            value = call(answer, parts[rank].copy(), states.copy())
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise Wrong("return two arrays: this rank's columns of the softmax, and the LSE of every row")
        try:
            y, lse = (np.asarray(v, dtype=np.float64) for v in value)
        except (TypeError, ValueError):
            raise Wrong("return two arrays of numbers") from None
        if y.shape != parts[rank].shape or lse.shape != (len(parts[rank]),):
            raise Wrong(f"the softmax must have the shape of x, {parts[rank].shape}, and the LSE one number a row, "
                        f"({len(parts[rank])},); yours are {y.shape} and {lse.shape}")
        return y, lse, states

    def near(got, want):
        return bool(np.allclose(got, want, rtol=1e-9, atol=1e-13, equal_nan=True))

    def split(x, cuts):
        return [x[:, a:b] for a, b in zip(cuts, cuts[1:], strict=False)]

    for name, scale, shift, cuts in (("four ranks", 2, -9, (0, 5, 7, 12, 16)), ("an empty rank", 2, -9, (0, 6, 6, 16)),
                                     ("logits near 2,000", 3, 2000, (0, 9, 16)), ("logits near -2,000", 3, -2000, (0, 9, 16)),
                                     ("rows far apart", 3, np.array([[0], [-2000], [900]]), (0, 9, 16))):
        x = scale * rng.normal(size=(3, 16)) + shift
        parts = split(x, cuts)
        want_y, want_lse = reference.softmax(x), reference.lse(x)
        for rank, part in enumerate(parts):
            y, lse, states = run(parts, rank)
            if near(y, want_y[:, cuts[rank]:cuts[rank + 1]]) and near(lse, want_lse):
                continue
            _explain_finish(name, part, y, lse, states, near)
    x = rng.normal(size=(4, 9))
    x[1], x[2, :4] = -INF, -INF
    parts = split(x, (0, 4, 9))
    for rank, part in enumerate(parts):
        y, lse, _ = run(parts, rank)
        if np.isnan(lse[1]):
            raise Wrong("a row of only -inf has the LSE -inf; yours is NaN, from an exponent -inf - (-inf)")
        if not np.isnan(y[1]).all():
            raise Wrong("the softmax of a row of only -inf is NaN, here as in torch: a number there hides it")
        if not (near(y, reference.softmax(x)[:, (0, 4)[rank]:(4, 9)[rank]]) and near(lse, reference.lse(x))):
            raise Wrong("a row whose -inf fill one rank and not the other is wrong: that rank's state is (-inf, 0), and counts for nothing")
    x = rng.normal(size=(3, 8))
    x[1, 2] = NAN
    y, lse, _ = run(split(x, (0, 4, 8)), 1)
    if not (np.isnan(y[1]).all() and np.isnan(lse[1]) and np.isfinite(np.delete(y, 1, axis=0)).all()):
        raise Wrong("a NaN on one rank must make its row NaN on every rank, and no other row")


def _explain_finish(name, x, y, lse, states, near):
    m, d = states[:, :, 0], states[:, :, 1]
    top = m.max(axis=0)
    with np.errstate(all="ignore"):
        own = np.exp(x - (x.max(axis=1, initial=-INF))[:, None])
        if x.shape[1] and near(y, own / own.sum(axis=1, keepdims=True)) and not near(y, np.exp(x - lse[:, None])):
            raise Wrong(f"{name}: this is the softmax of its own columns; the row goes on on the other ranks")
        each = np.where(d > 0, m + np.log(np.where(d > 0, d, 1)), 0)
        if near(lse, each.sum(axis=0)):
            raise Wrong(f"{name}: you added the LSEs of the ranks; their sums of exponentials add up, not the logarithms")
        if near(lse, top + np.log(d.sum(axis=0))):
            raise Wrong(f"{name}: the d of each rank is measured against its own m: it must be rescaled to m_all before the sum")
        if near(lse, top + np.log((d * np.where(m == -INF, 0, np.exp(np.minimum(top - m, 50)))).sum(axis=0))):
            raise Wrong(f"{name}: the factor is upside down: exp(m - m_all) is at most 1")
        if not np.isfinite(lse).all() and np.ptp(top) > 700:
            raise Wrong(f"{name}: each row needs its own maximum, m.max(axis=0): against another one all its exponentials vanish")
        if not np.isfinite(lse).all() and (top < -1000).all():
            raise Wrong(f"{name}: all exponentials vanished: a maximum of 0 is wrong here, no logit is that large")
        if not np.isfinite(lse).all():
            raise Wrong(f"{name}: not finite: exponents must be measured against m_all, the maximum of the row")
    want = top + np.log((d * np.exp(m - top)).sum(axis=0))
    if near(lse, want):
        raise Wrong(f"{name}: the LSEs are right, and the softmax is not: it is exp(x - m_all) / d_all, row by row")
    raise Wrong(f"{name}: the LSE of the first row should be {want[0]:.6f}, yours is {lse[0]:.6f}")


# -------------------------------------------------------------------------------------------------- many-zigzag


def _zigzag(rank, source):
    if source < rank:
        return (0, 1), (0,)
    return (1,), (0, 1)


@exercise(
    "many-zigzag", "Which halves meet in zig-zag order",
    hints=(
        "Number the stretches of all ranks from 0 to 2R - 1. Rank r has stretch r, its half 0, and stretch 2R - 1 - r, its half 1.",
        "A query sees a whole stretch of keys if it belongs to a later stretch. Compare r and 2R - 1 - r with s and 2R - 1 - s.",
        "For s < r: s < r < 2R - 1 - r < 2R - 1 - s. So both halves of r come after half 0 of s, and neither after its half 1.",
    ),
    solution=_zigzag,
    wrong={
        "as with one stretch": (lambda rank, source: ((0, 1), (0, 1)) if source < rank else ((), ()), "half of the work"),
        "ranks exchanged": (lambda rank, source: _zigzag(source, rank), "from the future"),
        "keys before queries": (lambda rank, source: _zigzag(rank, source)[::-1], "half 0 of the queries would see half 1"),
        "half against half": (lambda rank, source: ((0, 1), (0,)) if source < rank else ((1,), (0,)), "does not meet"),
        "the same for all": (lambda rank, source: ((0, 1), (0,)), "source > rank"),
    },
)
def _judge_zigzag(answer):
    for R in (2, 3, 4):
        for rank in reversed(range(R)):
            for source in sorted(set(range(R)) - {rank}):
                got = _halves(call(answer, rank, source))
                mine, theirs = (rank, 2 * R - 1 - rank), (source, 2 * R - 1 - source)
                want = {(a, b) for a in (0, 1) for b in (0, 1) if theirs[b] < mine[a]}
                if got != want:
                    _explain_zigzag(f"R = {R}, rank {rank}, source {source}", got, want, rank, source)


def _halves(value) -> set[tuple[int, int]]:
    """The pairs (half of the queries, half of the keys) that an answer names."""
    try:
        queries, keys = (tuple(part) for part in value)
        pairs = {(int(a), int(b)) for a in queries for b in keys}
    except (TypeError, ValueError):
        raise Wrong("return two tuples of halves, such as ((0, 1), (0,)): queries, then keys") from None
    if not pairs <= {(a, b) for a in (0, 1) for b in (0, 1)}:
        raise Wrong("a half is 0 or 1")
    return pairs


def _explain_zigzag(where, got, want, rank, source):
    if not got:
        raise Wrong(f"{where}: nothing meets; with one stretch a rank that would be right, in zig-zag order every two ranks have work")
    if len(got) == 4:
        text = "with one stretch a rank all meets" if source < rank else "queries would see keys from behind them"
        raise Wrong(f"{where}: four pairs of halves meet; two are right, that is half of the work ({text})")
    if source > rank and got == {(0, 0), (1, 0)}:
        raise Wrong(f"{where}: right for source < rank; for source > rank both halves of the keys lie between ours")
    if got - want:
        a, b = min(got - want)
        raise Wrong(f"{where}: half {a} of the queries would see half {b} of the keys, which comes from the future")
    a, b = min(want - got)
    raise Wrong(f"{where}: half {a} of the queries does not meet half {b} of the keys, which it sees")


# ---------------------------------------------------------------------------------------------------- many-wire


def _wire(R, S, Sq, H, D):
    ring = (R - 1) * 2 * (S // R) * H * D * 2
    gather = (R - 1) * Sq * H * (D * 2 + 4)
    return ring, gather


@exercise(
    "many-wire", "Bytes that a rank sends",
    hints=(
        "Ring: R - 1 times a rank passes on K and V of S / R tokens, H heads of D numbers each, two bytes a number.",
        "Gather: a rank gives its partial O (Sq x H x D numbers of two bytes) and LSE (Sq x H of four) to R - 1 others.",
    ),
    solution=_wire,
    wrong={
        "a step too many": (lambda R, S, Sq, H, D: (R * 4 * (S // R) * H * D, _wire(R, S, Sq, H, D)[1]), "R - 1 times"),
        "K alone": (lambda R, S, Sq, H, D: (_wire(R, S, Sq, H, D)[0] // 2, _wire(R, S, Sq, H, D)[1]), "V travels too"),
        "the whole sequence": (lambda R, S, Sq, H, D: (_wire(R, S, Sq, H, D)[0] * R, _wire(R, S, Sq, H, D)[1]), "S / R tokens"),
        "no LSE": (lambda R, S, Sq, H, D: (_wire(R, S, Sq, H, D)[0], (R - 1) * Sq * H * D * 2), "weights"),
        "LSE of two bytes": (lambda R, S, Sq, H, D: (_wire(R, S, Sq, H, D)[0], (R - 1) * Sq * H * (D * 2 + 2)), "four bytes"),
        "a share of the queries": (lambda R, S, Sq, H, D: (_wire(R, S, Sq, H, D)[0], (R - 1) * Sq * H * (D * 2 + 4) // R), "all queries"),
        "to one rank": (lambda R, S, Sq, H, D: (_wire(R, S, Sq, H, D)[0], Sq * H * (D * 2 + 4)), "R - 1 other ranks"),
    },
)
def _judge_wire(answer):
    for R, S, Sq, H, D in ((4, 65_536, 65_536, 16, 128), (8, 1 << 20, 8, 32, 128), (2, 4096, 512, 8, 64), (1, 1024, 1024, 4, 64)):
        value = call(answer, R, S, Sq, H, D)
        try:
            ring, gather = (float(v) for v in value)
        except (TypeError, ValueError):
            raise Wrong("return two numbers: bytes of the ring, bytes of the gather") from None
        right = _wire(R, S, Sq, H, D)
        where = f"R = {R}, S = {S:,}, Sq = {Sq:,}, H = {H}, D = {D}"
        for got, want, told in (
                (ring, right[0], ((R * 4 * (S // R) * H * D, "keys move R - 1 times, not R: the last ones are used and stay"),
                                  (right[0] / 2, "K is not all: V travels too"), (right[0] * R, "a rank passes on S / R tokens, not S"))),
                (gather, right[1], (((R - 1) * Sq * H * D * 2, "O alone cannot be merged: the LSEs are the weights, four bytes each"),
                                    ((R - 1) * Sq * H * (D * 2 + 2), "an LSE is float32: four bytes"),
                                    (right[1] / R, "each rank has a partial O for all queries"),
                                    (Sq * H * (D * 2 + 4), "the partial result goes to all R - 1 other ranks")))):
            if got == want:
                continue
            for wrong, text in told:
                if got == wrong:
                    raise Wrong(f"{where}: {text}")
            raise Wrong(f"{where}: {want:,} bytes are right, you have {got:,.0f}")

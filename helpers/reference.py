"""Float64 truth and NumPy versions of every recurrence in the course; what each kernel is held against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NEG_INF = float("-inf")


class State(NamedTuple):
    """What one pass over a row keeps: `row_max` m and `normalizer` d = sum of exp(x - m)."""

    row_max: float
    normalizer: float


EMPTY = State(NEG_INF, 0.0)
"""The state of no elements at all, and the identity of `merge`."""


def _floating(x) -> np.ndarray:
    """`x` as an array in its own floating dtype; float64 for integers and lists of them."""
    x = np.asarray(x)
    return x if x.dtype.kind == "f" else x.astype(np.float64)


# ---------------------------------------------------------------------------------------------- softmax


def softmax(x, axis: int = -1) -> np.ndarray:
    """Softmax in float64 along `axis`; any shape.  Masked (-inf) entries give 0, an all -inf row gives NaN.

    A NaN or a +inf makes its whole row NaN, as in torch.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.size == 0:
        return np.empty_like(x)
    with np.errstate(over="ignore", invalid="ignore"):  # x - m may overflow to -inf, and exp(-inf) = 0 is right
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


def log_softmax(x, axis: int = -1) -> np.ndarray:
    """log softmax in float64 along `axis`, as (x - m) - log d; any shape."""
    x = np.asarray(x, dtype=np.float64)
    if x.size == 0:
        return np.empty_like(x)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def lse(x, axis: int = -1) -> np.ndarray:
    """log of the sum of exp(x) along `axis` in float64; -inf where every entry is -inf."""
    x = np.asarray(x, dtype=np.float64)
    m = x.max(axis=axis, keepdims=True, initial=NEG_INF)
    safe_m = np.where(np.isfinite(m), m, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.squeeze(safe_m + np.log(np.exp(x - safe_m).sum(axis=axis, keepdims=True)), axis=axis)


def naive_softmax(row: np.ndarray) -> np.ndarray:
    """exp(x) / sum(exp(x)) in the row's own dtype: the formula as written, overflow and all."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        e = np.exp(row)
        return e / e.sum(axis=-1, keepdims=True, dtype=e.dtype)


def safe_softmax(row: np.ndarray) -> np.ndarray:
    """Three passes (maximum, sum, quotient) over the last axis, in the row's own dtype."""
    row = _floating(row)
    if row.size == 0:
        return np.empty_like(row)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        e = np.exp(row - row.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True, dtype=e.dtype)


# --------------------------------------------------------------------------------------- the state (m, d)


def merge(a: State, b: State) -> State:
    """The state of two pieces of a row together: the one formula this course is about.

    Associative and commutative up to rounding, with identity `EMPTY`.  The guard matters: two empty states have
    m = -inf, and -inf - (-inf) is NaN.
    """
    m = np.maximum(a.row_max, b.row_max)
    if m == NEG_INF:
        return EMPTY
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return State(m, a.normalizer * np.exp(a.row_max - m) + b.normalizer * np.exp(b.row_max - m))


def state_of(chunk) -> State:
    """The state (m, d) of a non-streaming chunk, in the chunk's own floating dtype; `EMPTY` for no elements."""
    chunk = _floating(chunk)
    if chunk.size == 0 or chunk.max() == NEG_INF:
        return EMPTY
    m = chunk.max()
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return State(m, np.exp(chunk - m).sum(dtype=chunk.dtype))


def online_trace(row) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run the online recurrence over one row (shape [N]) in its own dtype, element by element.

    Returns m_k, d_k and the correction factor exp(m_{k-1} - m_k) after each element, each of shape [N].  The factor of
    an element that follows only -inf entries is 0: nothing was accumulated yet.
    """
    row = _floating(row)
    ms, ds, factors = np.empty_like(row), np.empty_like(row), np.empty_like(row)
    zero = row.dtype.type(0)
    m, d = row.dtype.type(NEG_INF), zero
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for k, x in enumerate(row):
            m_new = np.maximum(m, x)
            factor = np.exp(m - m_new) if m != NEG_INF else zero
            d = d * factor + (np.exp(x - m_new) if x != NEG_INF else zero)
            m = m_new
            ms[k], ds[k], factors[k] = m, d, factor
    return ms, ds, factors


def online_state(row) -> State:
    """The final (m, d) of `online_trace`; `EMPTY` for an empty row."""
    if len(row) == 0:
        return EMPTY
    ms, ds, _ = online_trace(row)
    return State(ms[-1], ds[-1])


def online_softmax(row: np.ndarray) -> np.ndarray:
    """Two passes over one row (shape [N]) in its own dtype: the online recurrence, then exp(x - m) / d."""
    row = _floating(row)
    m, d = online_state(row)
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        return np.exp(row - m) / d


def expected_maxima(n: int) -> float:
    """How many new maxima a random order of n distinct values brings on average: the harmonic number H_n."""
    return float((1.0 / np.arange(1, n + 1)).sum())


# --------------------------------------------------------------------------------------------- attention


def visible(sq: int, sk: int) -> np.ndarray:
    """Causal mask [sq, sk], bottom-right aligned: query i sees key j if and only if j <= i + sk - sq."""
    return np.arange(sk)[None, :] <= np.arange(sq)[:, None] + sk - sq


def attention(
    q, k, v, causal: bool = False, scale: float | None = None, window: int | None = None, bias=0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Dense attention in float64: q [..., sq, D], k and v [..., sk, D] -> (O [..., sq, D], LSE [..., sq]).

    `scale` defaults to 1/sqrt(D).  A query that sees no key gets O = 0 and LSE = -inf.  With `window`, query i sees only keys
    less than `window` away from key i + sk - sq.  `bias`, which broadcasts to [..., sq, sk], is added to the scaled scores.
    Where q has more heads (axis -3) than k and v, neighbouring heads of q share one.
    """
    q, k, v = (np.asarray(t, dtype=np.float64) for t in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (np.repeat(t, q.shape[-3] // t.shape[-3], axis=-3) for t in (k, v))
    with np.errstate(invalid="ignore"):
        scores = scale * (q @ np.swapaxes(k, -1, -2)) + bias
    if causal:
        scores = np.where(visible(q.shape[-2], k.shape[-2]), scores, NEG_INF)
    if window is not None:
        diagonal = np.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
        scores = np.where(np.abs(diagonal - np.arange(k.shape[-2])) < window, scores, NEG_INF)
    row_lse = lse(scores, axis=-1)
    finite = np.where(row_lse == NEG_INF, 0.0, row_lse)
    with np.errstate(invalid="ignore"):
        return np.exp(scores - finite[..., None]) @ v, row_lse


def attention_by_tiles(
    q, k, v, tile: int, causal: bool = False, deferred: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """One head of attention over key tiles with the state (m, d, O), in q's dtype: q [sq, D], k, v [sk, D].

    `deferred=True` keeps O unnormalised and divides once at the end; `False` is the articles' update, which keeps O
    normalised after every tile.  Returns (O [sq, D], LSE [sq]).
    """
    dtype, (sq, head_dim), sk = q.dtype, q.shape, k.shape[0]
    scale = dtype.type(head_dim ** -0.5)
    m = np.full((sq, 1), NEG_INF, dtype)
    d = np.zeros((sq, 1), dtype)
    out = np.zeros((sq, head_dim), dtype)
    for start in range(0, sk, tile):
        keys = slice(start, start + tile)
        scores = scale * (q @ k[keys].T)
        if causal:
            scores = np.where(visible(sq, sk)[:, keys], scores, dtype.type(NEG_INF))
        m_new = np.maximum(m, scores.max(axis=1, keepdims=True))
        m_finite = np.where(m_new == NEG_INF, dtype.type(0), m_new)  # a query that has seen nothing yet
        p = np.exp(scores - m_finite)
        factor = np.exp(m - m_finite)
        d_new = d * factor + p.sum(axis=1, keepdims=True, dtype=dtype)
        if deferred:
            out = out * factor + p @ v[keys]
        else:
            divisor = np.where(d_new == 0, dtype.type(1), d_new)
            out = out * (d * factor / divisor) + (p / divisor) @ v[keys]
        m, d = m_new, d_new
    if deferred:
        out = out / np.where(d == 0, dtype.type(1), d)
    with np.errstate(divide="ignore"):
        return out, (np.where(m == NEG_INF, dtype.type(0), m) + np.log(d))[:, 0]


# -------------------------------------------------------------------------------------------- comparing


def ulp_distance(a, b) -> np.ndarray:
    """How many steps of one representable number lead from a to b (one floating dtype, finite); int64 array.

    Raises TypeError for two dtypes or a dtype that is not floating.  A distance beyond int64, possible between float64
    numbers of opposite sign, is reported as the largest int64.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.dtype.kind != "f" or a.dtype.itemsize > 8:
        raise TypeError(f"ulp_distance compares two arrays of one floating dtype, not {a.dtype} and {b.dtype}")
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    steps_a, steps_b = (np.abs(v).view(bits).astype(np.uint64) for v in (a, b))  # steps away from zero
    same_side = np.signbit(a) == np.signbit(b)
    apart = np.maximum(steps_a, steps_b) - np.minimum(steps_a, steps_b)
    distance = np.where(same_side, apart, steps_a + steps_b)
    return np.minimum(distance, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)


def agrees(got, expected, atol: float = 1e-6, rtol: float = 1e-5) -> bool:
    """True if `got` equals the float64 truth within the course's fp32 tolerances, NaN exactly where the truth is NaN.

    Absolute everywhere, relative where |expected| > 1e-30.  Written so that a NaN in `got` can never pass.
    """
    got = np.asarray(got, dtype=np.float64)
    expected = np.asarray(expected, dtype=np.float64)
    if got.shape != expected.shape or not np.array_equal(np.isnan(got), np.isnan(expected)):
        return False
    special = ~np.isfinite(expected)
    if not np.array_equal(got[special], expected[special], equal_nan=True):
        return False
    err = np.abs(got[~special] - expected[~special])
    size = np.abs(expected[~special])
    relevant = size > 1e-30
    return bool(np.all(err <= atol) and np.all(err[relevant] <= rtol * size[relevant]))

"""Exercises of notebook 12: a tile of attention, which tiles to visit, joining halves, and a test that only right merges pass."""
# ruff: noqa: E741 - O is what the course calls the output

from __future__ import annotations

import math

import numpy as np

from helpers import reference
from helpers.exercises import Wrong, call, exercise

INF, NAN = math.inf, math.nan


def _arrays(value, names: str, shapes) -> list[np.ndarray]:
    """The arrays of an answer as float64, of the shapes they must have; `Wrong` says what is missing."""
    if not isinstance(value, (tuple, list)) or len(value) != len(shapes) or any(v is None for v in value):
        raise Wrong(f"return {names}")
    try:
        arrays = [np.asarray(v, dtype=np.float64) for v in value]
    except (TypeError, ValueError):
        raise Wrong(f"return {names}, all of them arrays of numbers") from None
    for array, shape in zip(arrays, shapes, strict=True):
        if array.shape != shape:
            raise Wrong(f"return {names} with shapes {', '.join(map(str, shapes))}: "
                        f"yours are {', '.join(str(a.shape) for a in arrays)}")
    return arrays


def _near(got, want, rtol: float = 1e-9) -> bool:
    """Equal within rounding; NaN and infinities only where `want` has them."""
    return bool(np.allclose(got, want, rtol=rtol, atol=1e-12, equal_nan=True))


# -------------------------------------------------------------------------------------------------- 12-tile


def _tile_step(m, d, O, scores, v):
    m_new = np.maximum(m, scores.max(axis=1))
    safe = np.where(m_new == -np.inf, 0.0, m_new)  # a query that has seen no key yet: exp(-inf - 0) is 0
    factor = np.exp(m - safe)
    P = np.exp(scores - safe[:, None])
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _parts(m, scores, guard: bool = True):
    m_new = np.maximum(m, scores.max(axis=1))
    safe = np.where(m_new == -np.inf, 0.0, m_new) if guard else m_new
    return m_new, np.exp(m - safe), np.exp(scores - safe[:, None])


def _old_o_kept(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores)
    return m_new, d * factor + P.sum(axis=1), O + P @ v


def _old_d_kept(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores)
    return m_new, d + P.sum(axis=1), O * factor[:, None] + P @ v


def _factor_upside_down(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores)
    factor = np.where(factor == 0, 0, 1 / np.where(factor == 0, 1, factor))
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _against_the_tile(m, d, O, scores, v):
    m_new, factor, _ = _parts(m, scores)
    _, _, P = _parts(np.full_like(m, -np.inf), scores)
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _factor_twice(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores)
    block = scores.max(axis=1)
    safe = np.where(m_new == -np.inf, 0.0, m_new)
    P = P * np.exp(block - safe)[:, None]
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _normalised(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores)
    d_new = d * factor + P.sum(axis=1)
    divisor = np.where(d_new == 0, 1, d_new)
    return m_new, d_new, (O * factor[:, None] + P @ v) / divisor[:, None]


def _one_maximum(m, d, O, scores, v):
    m_new = np.full_like(m, max(m.max(), scores.max()))
    safe = np.where(m_new == -np.inf, 0.0, m_new)
    factor, P = np.exp(m - safe), np.exp(scores - safe[:, None])
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _maximum_from_zero(m, d, O, scores, v):
    m_new = np.maximum(np.maximum(m, scores.max(axis=1)), 0.0)
    factor, P = np.exp(m - m_new), np.exp(scores - m_new[:, None])
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _no_guard(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores, guard=False)
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _nan_to_zero(m, d, O, scores, v):
    m_new, factor, P = _parts(m, scores, guard=False)
    factor, P = np.nan_to_num(factor), np.nan_to_num(P)
    return m_new, d * factor + P.sum(axis=1), O * factor[:, None] + P @ v


def _leaves_if_any_is_empty(m, d, O, scores, v):
    if (np.maximum(m, scores.max(axis=1)) == -np.inf).any():
        return m, d, O
    return _tile_step(m, d, O, scores, v)


@exercise(
    "12-tile", "One tile of attention",
    hints=(
        "Every query has its own maximum: scores.max(axis=1) has shape [Sq], and m_new = np.maximum(m, ...) too.",
        "factor = np.exp(m - m_new) rescales the old d and the old O; [:, None] turns [Sq] into a column.",
        "P = np.exp(scores - m_new[:, None]); its row sums go to d, and P @ v goes to O. No division here.",
        "Where m_new is -inf, put 0 in its place inside the exponents: np.where(m_new == -np.inf, 0.0, m_new).",
    ),
    solution=_tile_step,
    wrong={
        "O not rescaled": (_old_o_kept, "old O was not rescaled"),
        "d not rescaled": (_old_d_kept, "old d was not rescaled"),
        "factor upside down": (_factor_upside_down, "upside down"),
        "P against the maximum of the tile": (_against_the_tile, "maximum of the tile alone"),
        "P against m_new, and the factor of the articles": (_factor_twice, "twice"),
        "O normalised": (_normalised, "divided O"),
        "one maximum for all queries": (_one_maximum, "its own maximum"),
        "maximum started at 0": (_maximum_from_zero, "no score is that large"),
        "no guard": (_no_guard, "-inf - (-inf)"),
        "NaN turned into 0": (_nan_to_zero, "hides"),
        "all queries wait for the last": (_leaves_if_any_is_empty, "other queries"),
    },
)
def _judge_tile(answer):
    def step(state, scores, v):
        sq, head_dim = state[2].shape
        given = [np.array(a, dtype=np.float64) for a in (*state, scores, v)]
        with np.errstate(all="ignore"):
            value = call(answer, *given)
        return _arrays(value, "m, d and O", [(sq,), (sq,), (sq, head_dim)])

    def right(state, scores, v):
        with np.errstate(all="ignore"):
            return _tile_step(*state, scores, v)

    rng = np.random.default_rng(12)

    def values(keys):
        return rng.normal(size=(keys, 3))

    # Two queries: the second tile raises the maximum of the first query and not that of the second; all below 0.
    state = (np.array([-6.0, -3.0]), np.array([1.5, 2.5]), rng.normal(size=(2, 3)))
    scores, v = np.array([[-5.0, -7.0, -5.5, -6.5], [-4.0, -5.0, -6.0, -4.5]]), values(4)
    m, d, o = step(state, scores, v)
    m_right, d_right, o_right = right(state, scores, v)
    _, factor, P = _parts(state[0], scores)
    if not _near(m, m_right):
        if (m >= 0).all():
            raise Wrong("all scores are below 0, and your m is not: no score is that large, so m must not start at 0")
        if m[0] == m[1]:
            raise Wrong("every query has its own maximum: take the maximum along the keys, axis=1")
        raise Wrong("m must become the larger of the old m and the largest score of the tile, query by query")
    block = np.exp(scores - scores.max(axis=1)[:, None])
    if not _near(d, d_right):
        told = (
            (state[1] + P.sum(axis=1), "the old d was not rescaled, although the maximum of one query rose"),
            (state[1] / factor + P.sum(axis=1), "the correction factor is upside down: exp(m - m_new) is at most 1"),
            (state[1] * factor + block.sum(axis=1),
             "you measure P against the maximum of the tile alone; here it must be m_new, the maximum so far"),
            (state[1] * factor + (P * np.exp(scores.max(axis=1) - m_right)[:, None]).sum(axis=1),
             "P against m_new is complete; the factor exp(m_block - m_new) on top of it counts the shift twice"),
        )
        for wrong, text in told:
            if _near(d, wrong):
                raise Wrong(text)
        raise Wrong("d must be the old d times exp(m - m_new), plus the row sums of P = exp(scores - m_new)")
    if not _near(o, o_right):
        if _near(o, state[2] + P @ v):
            raise Wrong("the old O was not rescaled: O is a sum measured against the old maximum, exactly as d is")
        if _near(o, o_right / d_right[:, None]):
            raise Wrong("you divided O by d; with deferred normalisation that happens once, after the last tile")
        raise Wrong("O must be the old O times the same factor as d, plus P @ v")

    # Queries that have seen no key, next to one that has.
    start = (np.full(3, -INF), np.zeros(3), np.zeros((3, 3)))
    masked = np.array([[-INF, -INF], [1.0, -INF], [-INF, -INF]])
    v = values(2)
    got = step(start, masked, v)
    if np.isnan(got[0]).any() or np.isnan(got[1]).any() or np.isnan(got[2]).any():
        raise Wrong("a query that has seen no key yet got NaN: its exponents are -inf - (-inf). It must stay (-inf, 0, 0)")
    if not (got[0][0] == got[0][2] == -INF and got[1][0] == got[1][2] == 0 and (got[2][[0, 2]] == 0).all()):
        raise Wrong("a query that has seen no key yet must stay at m = -inf, d = 0, O = 0")
    if not all(_near(g, r) for g, r in zip(got, right(start, masked, v), strict=True)):
        raise Wrong("one query still sees no key, but the other queries of the tile must be updated all the same")
    later, v = rng.normal(size=(3, 4)), values(4)
    if not all(_near(g, r) for g, r in zip(step(got, later, v), right(got, later, v), strict=True)):
        raise Wrong("a query whose first tile was fully masked is wrong after its second tile")

    # A NaN or +inf spoils its own query and no other.
    for bad in (NAN, INF):
        scores = rng.normal(size=(3, 4))
        scores[1, 2] = bad
        got = step((rng.normal(size=3), 1 + rng.random(3), rng.normal(size=(3, 3))), scores, values(4))
        if not (np.isnan(got[1][1]) and np.isnan(got[2][1]).all()):
            raise Wrong(f"a score of {bad} must make d and O of its query NaN; turning NaN into a number hides it")
        if not np.isfinite(np.delete(got[2], 1, axis=0)).all():
            raise Wrong(f"a score of {bad} spoiled other queries than its own")

    # Many tiles, large and small scores, one key, one query: against the whole computation.
    for size in (0.1, 3.0, 1000.0):
        for sq, sk, tile in ((5, 24, 4), (1, 7, 1), (6, 3, 3)):
            scores, v = size * rng.normal(size=(sq, sk)) - size, values(sk)
            state = (np.full(sq, -INF), np.zeros(sq), np.zeros((sq, 3)))
            for at in range(0, sk, tile):
                state = step(state, scores[:, at:at + tile], v[at:at + tile])
            if not _near(state[2] / state[1][:, None], reference.softmax(scores) @ v, rtol=1e-7):
                raise Wrong(f"after all tiles O / d is not the attention of the whole row ({sq} queries, {sk} keys, "
                            f"tiles of {tile}, scores of size {size:g})")


# ------------------------------------------------------------------------------------------------- 12-visit


def _tiles_to_visit(first, rows, Sq, Sk, tile):
    last = min(first + rows, Sq) - 1              # the last query of the block sees the most keys
    keys = max(0, min(Sk, last + Sk - Sq + 1))
    return -(-keys // tile)


def _top_left(first, rows, Sq, Sk, tile):
    last = min(first + rows, Sq) - 1
    return -(-min(Sk, last + 1) // tile)


def _first_query(first, rows, Sq, Sk, tile):
    return -(-max(0, first + Sk - Sq + 1) // tile)


def _rounded_down(first, rows, Sq, Sk, tile):
    last = min(first + rows, Sq) - 1
    return max(0, last + Sk - Sq + 1) // tile


def _one_key_short(first, rows, Sq, Sk, tile):
    last = min(first + rows, Sq) - 1
    return -(-max(0, last + Sk - Sq) // tile)


def _negative(first, rows, Sq, Sk, tile):
    last = min(first + rows, Sq) - 1
    return -(-(last + Sk - Sq + 1) // tile)


def _past_the_end(first, rows, Sq, Sk, tile):
    return -(-max(0, first + rows + Sk - Sq) // tile)


def _all_tiles(first, rows, Sq, Sk, tile):
    return -(-Sk // tile)


@exercise(
    "12-visit", "Which tiles of keys a block of queries needs",
    hints=(
        "The last query of the block sees the most keys. Which query is it? Mind the end of the queries.",
        "Query i sees the keys j <= i + Sk - Sq. How many are that, if none is negative and none above Sk?",
        "Round up: -(-keys // tile).",
    ),
    solution=_tiles_to_visit,
    wrong={
        "top-left": (_top_left, "top-left"),
        "first query": (_first_query, "last query"),
        "rounded down": (_rounded_down, "round up"),
        "one key short": (_one_key_short, "one key"),
        "negative": (_negative, "negative"),
        "past the last query": (_past_the_end, "beyond Sq"),
        "all tiles": (_all_tiles, "all tiles"),
    },
)
def _judge_visit(answer):
    shapes = [(128, 128, 32, 32), (8, 8, 4, 4), (16, 16, 4, 3), (4, 20, 4, 8), (20, 4, 4, 2), (1, 9, 1, 4), (7, 7, 4, 4),
              (7, 12, 3, 5), (12, 7, 5, 3), (5, 5, 16, 2), (6, 6, 1, 1)]
    cases = [(first, rows, Sq, Sk, tile) for Sq, Sk, rows, tile in shapes for first in range(0, Sq, rows)]
    answers = [call(answer, *case) for case in cases]
    if any(isinstance(n, bool) or not isinstance(n, (int, float, np.integer, np.floating)) for n in answers):
        raise Wrong("return one number, how many tiles the block visits")
    expected = [-(-int(reference.visible(Sq, Sk)[first:first + rows].any(axis=0).sum()) // tile)
                for first, rows, Sq, Sk, tile in cases]
    if answers == expected:
        return
    told = (
        (_top_left, "this is the top-left mask; the course's mask is aligned at the bottom right"),
        (_first_query, "the last query of the block decides, since it sees the most"),
        (_rounded_down, "the last tile may be seen in part: round up"),
        (_one_key_short, "one key is missing: query i also sees the key i + Sk - Sq itself"),
        (_negative, "a block that sees nothing visits 0 tiles, never a negative number"),
        (_past_the_end, "the last block may reach beyond Sq: its last query is min(first + rows, Sq) - 1"),
        (_all_tiles, "these are all tiles; what lies behind the last visible key need not be visited"),
    )
    for wrong, text in told:
        if answers == [wrong(*case) for case in cases]:
            raise Wrong(text)
    for (first, rows, Sq, Sk, tile), got, want in zip(cases, answers, expected, strict=True):
        if not got == want:
            raise Wrong(f"Sq = {Sq}, Sk = {Sk}, tiles of {tile}, queries {first} to {min(first + rows, Sq) - 1}: "
                        f"{want} tiles hold a visible key, you return {got:g}")


# ----------------------------------------------------------------------------------------------- 12-combine


def _combine(o_a, lse_a, o_b, lse_b):
    m = np.maximum(lse_a, lse_b)
    safe = np.where(m == -np.inf, 0.0, m)  # neither part saw a key
    w_a, w_b = np.exp(lse_a - safe), np.exp(lse_b - safe)
    w = w_a + w_b
    o = (w_a[:, None] * o_a + w_b[:, None] * o_b) / np.where(w == 0, 1.0, w)[:, None]
    with np.errstate(divide="ignore"):
        return o, safe + np.log(w)


def _average(o_a, lse_a, o_b, lse_b):
    return (o_a + o_b) / 2, np.logaddexp(lse_a, lse_b)


def _sum(o_a, lse_a, o_b, lse_b):
    return o_a + o_b, np.logaddexp(lse_a, lse_b)


def _not_divided(o_a, lse_a, o_b, lse_b):
    m = np.maximum(lse_a, lse_b)
    safe = np.where(m == -np.inf, 0.0, m)
    w_a, w_b = np.exp(lse_a - safe), np.exp(lse_b - safe)
    return w_a[:, None] * o_a + w_b[:, None] * o_b, np.logaddexp(lse_a, lse_b)


def _swapped(o_a, lse_a, o_b, lse_b):
    o, lse = _combine(o_b, lse_a, o_a, lse_b)
    return o, lse


def _no_shift(o_a, lse_a, o_b, lse_b):
    w_a, w_b = np.exp(lse_a), np.exp(lse_b)
    w = w_a + w_b
    with np.errstate(all="ignore"):
        return (w_a[:, None] * o_a + w_b[:, None] * o_b) / np.where(w == 0, 1.0, w)[:, None], np.log(w)


def _lse_added(o_a, lse_a, o_b, lse_b):
    return _combine(o_a, lse_a, o_b, lse_b)[0], lse_a + lse_b


def _lse_maximum(o_a, lse_a, o_b, lse_b):
    return _combine(o_a, lse_a, o_b, lse_b)[0], np.maximum(lse_a, lse_b)


def _combine_no_guard(o_a, lse_a, o_b, lse_b):
    m = np.maximum(lse_a, lse_b)
    w_a, w_b = np.exp(lse_a - m), np.exp(lse_b - m)
    return (w_a[:, None] * o_a + w_b[:, None] * o_b) / (w_a + w_b)[:, None], m + np.log(w_a + w_b)


def _nothing_if_one_is_empty(o_a, lse_a, o_b, lse_b):
    o, lse = _combine(o_a, lse_a, o_b, lse_b)
    empty = (lse_a == -np.inf) | (lse_b == -np.inf)
    return np.where(empty[:, None], 0.0, o), np.where(empty, -np.inf, lse)


def _combine_hides_nan(o_a, lse_a, o_b, lse_b):
    return tuple(np.nan_to_num(v, neginf=-np.inf) for v in _combine(o_a, lse_a, o_b, lse_b))


@exercise(
    "12-combine", "Two halves of the keys, from O and LSE alone",
    hints=(
        "exp(LSE) is d·exp(m), the whole sum of exponentials of a part: its weight. Weigh the two outputs with it.",
        "exp(LSE) overflows, so subtract the larger LSE from both first; the quotient does not change.",
        "LSE of both: the larger one, plus log of the sum of the two weights.",
        "If both are -inf, put 0 in the place of the maximum; then both weights are 0, and the output must be 0.",
    ),
    solution=_combine,
    wrong={
        "average": (_average, "average"),
        "sum": (_sum, "add up"),
        "not divided": (_not_divided, "divide by the sum"),
        "weights swapped": (_swapped, "swapped"),
        "no shift": (_no_shift, "overflow"),
        "LSE added": (_lse_added, "LSE of both is not the sum"),
        "LSE maximum": (_lse_maximum, "LSE of both is more than the larger"),
        "no guard": (_combine_no_guard, "neither part"),
        "an empty part empties both": (_nothing_if_one_is_empty, "only one part"),
        "NaN hidden": (_combine_hides_nan, "NaN"),
    },
)
def _judge_combine(answer):
    rng = np.random.default_rng(13)

    def run(a, b):
        with np.errstate(all="ignore"):
            value = call(answer, *(np.array(t, dtype=np.float64) for t in (*a, *b)))
        return _arrays(value, "o and lse", [a[0].shape, a[1].shape])

    def case(size, shift=0.0, sq=4, split=9, sk=20):
        scores, v = size * rng.normal(size=(sq, sk)) + shift, rng.normal(size=(sk, 3))
        parts = [(reference.softmax(scores[:, s]) @ v[s], reference.lse(scores[:, s]))
                 for s in (slice(0, split), slice(split, sk))]
        return *parts, reference.softmax(scores) @ v, reference.lse(scores)

    a, b, o_right, lse_right = case(1.0)
    o, lse = run(a, b)
    if not _near(o, o_right):
        w_a, w_b = (np.exp(part[1] - np.maximum(a[1], b[1]))[:, None] for part in (a, b))
        told = (
            ((a[0] + b[0]) / 2, "the plain average is wrong: the part with the larger LSE holds more of the weight"),
            (a[0] + b[0], "the outputs do not add up: each is already divided by its own d"),
            (w_a * a[0] + w_b * b[0], "weighted, but then you must divide by the sum of the two weights"),
            ((w_a * b[0] + w_b * a[0]) / (w_a + w_b), "the weights are swapped: exp(lse_a) belongs to o_a"),
        )
        for wrong, text in told:
            if _near(o, wrong):
                raise Wrong(text)
        raise Wrong("o must be the average of o_a and o_b with the weights exp(lse_a) and exp(lse_b)")
    if not _near(lse, lse_right):
        if _near(lse, a[1] + b[1]):
            raise Wrong("the LSE of both is not the sum of the two: add the exponentials, then take the log")
        if _near(lse, np.maximum(a[1], b[1])):
            raise Wrong("the LSE of both is more than the larger of the two: add log of the sum of the weights")
        raise Wrong("lse must be log(exp(lse_a) + exp(lse_b))")
    for size, shift in ((1.0, 900.0), (1.0, -900.0), (300.0, 0.0)):
        a, b, o_right, lse_right = case(size, shift)
        o, lse = run(a, b)
        if not (_near(o, o_right, 1e-7) and _near(lse, lse_right)):
            raise Wrong("wrong for scores far from 0: exp(lse) will overflow or vanish; subtract the larger lse first")
    none = (np.zeros((4, 3)), np.full(4, -INF))
    o, lse = run(none, none)
    if not ((o == 0).all() and (lse == -INF).all()):
        raise Wrong("where neither part has a visible key, o must be 0 and lse -inf, without NaN")
    for first, second in ((a, none), (none, a)):
        o, lse = run(first, second)
        if not (_near(o, a[0]) and _near(lse, a[1])):
            raise Wrong("where only one part has visible keys, the result must be that part, unchanged")
    mixed = (np.where([[True], [False], [True], [False]], a[0], 0.0), np.where([True, False, True, False], a[1], -INF))
    o, lse = run(mixed, b)
    if not all(_near(g, w) for g, w in zip((o, lse), _combine(*mixed, *b), strict=True)):
        raise Wrong("queries with and without visible keys in the same array are not kept apart")
    spoiled = (a[0].copy(), a[1].copy())
    spoiled[0][1], spoiled[1][1] = NAN, NAN
    o, lse = run(spoiled, b)
    if not (np.isnan(o[1]).all() and np.isnan(lse[1]) and np.isfinite(np.delete(o, 1, axis=0)).all()):
        raise Wrong("a query that is NaN in one part must be NaN in the result, and no other query")


# ------------------------------------------------------------------------------------------------- 12-prove


def state(scores, v):
    """(m, d, O) of some keys: scores [n], v [n, D]."""
    m = scores.max(initial=-np.inf)
    p = np.exp(scores - (0.0 if m == -np.inf else m))
    return m, p.sum(), p @ v


def _holds(merge):
    rng = np.random.default_rng(0)
    for size in (1, 10, 1000):
        for n in (0, 1, 5, 9):
            scores, v = size * rng.standard_normal(9), rng.standard_normal((9, 4))
            for masked in (np.zeros(9, bool), rng.random(9) < 0.5, np.arange(9) < n, np.arange(9) >= n, np.ones(9, bool)):
                x = np.where(masked, -np.inf, scores)
                with np.errstate(all="ignore"):
                    got = merge(state(x[:n], v[:n]), state(x[n:], v[n:]))
                for a, b in zip(got, state(x, v), strict=True):
                    if not np.allclose(a, b, rtol=1e-9, atol=1e-9):  # a NaN is not close to anything
                        return False
    nan = (np.nan, np.nan, np.full(4, np.nan))
    other = state(scores, v)
    return bool(np.isnan(merge(nan, other)[1]) and np.isnan(merge(other, nan)[1]))


def _merged(a, b, guard=True):
    m = np.maximum(a[0], b[0])
    zero = 0.0 if guard and m == -np.inf else m
    f_a, f_b = np.exp(a[0] - zero), np.exp(b[0] - zero)
    return m, a[1] * f_a + b[1] * f_b, a[2] * f_a + b[2] * f_b


def _through_logarithms(a, b):
    m, d, O = _merged(a, b)
    if m == -np.inf:
        return m, d, O
    return m, np.exp(np.logaddexp(*(s[0] + np.log(s[1]) if s[1] else -np.inf for s in (a, b))) - m), O


def _first_m(a, b):
    m, d, O = _merged(a, b)
    return (m if a[0] >= b[0] else a[0]), d, O


def _empty_wins(a, b):
    return a if a[0] == -np.inf else b if b[0] == -np.inf else _merged(a, b)


def _from_zero(a, b):
    m, d, O = _merged(a, b)
    top = max(m, 0.0)
    return top, d * np.exp(m - top), O * np.exp(m - top)


def _factors_swapped(a, b):
    if min(a[0], b[0]) == -np.inf:
        return _merged(a, b)
    return _merged((b[0], *a[1:]), (a[0], *b[1:]))


def _forgets_low(a, b):
    return a if a[0] > b[0] + 10 else b if b[0] > a[0] + 10 else _merged(a, b)


def _merge_without_shift(a, b):
    m = max(a[0], b[0])
    if m == -np.inf:
        return a
    return m, *((s * np.exp(a[0]) + t * np.exp(b[0])) / np.exp(m) for s, t in zip(a[1:], b[1:], strict=True))


def _hides_nan(a, b):
    return b if np.isnan(a[1]) else a if np.isnan(b[1]) else _merged(a, b)


_RIGHT_MERGES = {
    "the formula": _merged,
    "d through logarithms": _through_logarithms,
    "the other order of terms": lambda a, b: _merged(b, a),
}
_WRONG_MERGES = {  # what a merge does -> (the merge, what would show it)
    "adds d and O as they are": (lambda a, b: (np.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]),
                                 "It is commutative and associative, and still wrong: compare with the state of all keys."),
    "rescales d, but not O": (lambda a, b: (*_merged(a, b)[:2], a[2] + b[2]), "Compare all three members."),
    "keeps the m of the first state": (_first_m, "Try the larger maximum on either side."),
    "averages O": (lambda a, b: (*_merged(a, b)[:2], _merged(a, b)[2] / 2), "Compare all three members."),
    "has no guard": (lambda a, b: _merged(a, b, guard=False), "Merge two states that have seen no key."),
    "returns the empty state if one of the two is empty": (_empty_wins, "The empty state must change nothing, from either side."),
    "starts the maximum at 0": (_from_zero, "Try scores that are all below 0."),
    "swaps the factors": (_factors_swapped, "The two states need different maxima."),
    "forgets a state more than 10 below": (_forgets_low, "exp(-10) is 5e-5 and not 0: try scores of size 10, and ask how close the "
                                                         "results must be."),
    "computes exp(m) without a shift": (_merge_without_shift, "Try scores in the hundreds."),
    "drops a NaN": (_hides_nan, "One state may hold a NaN, on either side."),
}


def _holds_close(a, b, tolerance=1e-9):
    return all(np.allclose(s, t, rtol=tolerance, atol=tolerance, equal_nan=True) for s, t in zip(a, b, strict=True))


def _only_algebra(merge):
    rng = np.random.default_rng(1)
    a, b, c = (state(rng.standard_normal(3), rng.standard_normal((3, 4))) for _ in range(3))
    return _holds_close(merge(a, b), merge(b, a)) and _holds_close(merge(merge(a, b), c), merge(a, merge(b, c)))


def _only_random(merge):
    rng = np.random.default_rng(1)
    x, v = rng.standard_normal(8), rng.standard_normal((8, 4))
    return _holds_close(merge(state(x[:3], v[:3]), state(x[3:], v[3:])), state(x, v))


def _exactly_equal(merge):
    rng = np.random.default_rng(1)
    x, v = rng.standard_normal(8), rng.standard_normal((8, 4))
    got, want = merge(state(x[:3], v[:3]), state(x[3:], v[3:])), state(x, v)
    return all(np.array_equal(s, t) for s, t in zip(got, want, strict=True))


def _only_d(merge):
    rng = np.random.default_rng(1)
    for _ in range(50):
        x, v = 5 * rng.standard_normal(8), rng.standard_normal((8, 4))
        if abs(merge(state(x[:3], v[:3]), state(x[3:], v[3:]))[1] - state(x, v)[1]) > 1e-9:
            return False
    return True


def _no_nan(merge):
    def quiet(a, b):
        return _merged(a, b) if np.isnan(a[1]) or np.isnan(b[1]) else merge(a, b)
    return _holds(quiet)


def _loose(merge):
    def rounded(a, b):
        got, want = merge(a, b), _merged(a, b)
        return want if _holds_close(got, want, 1e-2) else got
    return _holds(rounded)


@exercise(
    "12-prove", "A test that only right merges pass",
    hints=(
        "Cut the same scores and values in two, merge the two states, and compare with state(...) of the whole: m, d and O, within "
        "rounding.",
        "One random row is not enough. Cut it everywhere, also at its ends; take scores of size 1 and of size 1000, above and below 0.",
        "Mask some keys with -inf, all keys of one side, all keys of both. A NaN in one state must reach the result. np.allclose says "
        "False to a NaN, and that is what you want everywhere else.",
    ),
    solution=_holds,
    wrong={
        "nothing is tested": (lambda merge: True, "every merge pass"),
        "algebra alone": (_only_algebra, "with the state of all keys"),
        "one random row": (_only_random, "no guard"),
        "equal bit for bit": (_exactly_equal, "rejects a right merge"),
        "d alone": (_only_d, "all three members"),
        "NaN forgotten": (_no_nan, "may hold a NaN"),
        "loose": (_loose, "how close"),
        "returns nothing": (lambda merge: None, "True or False"),
    },
)
def _judge_prove(answer):
    def ask(merge):
        with np.errstate(all="ignore"):
            value = call(answer, merge)
        if not isinstance(value, (bool, np.bool_)):
            raise Wrong(f"return True or False, not {value!r}")
        return bool(value)

    found = [ask(merge) for merge, _ in _WRONG_MERGES.values()]
    for name, merge in _RIGHT_MERGES.items():
        if not ask(merge):
            raise Wrong(f"your test rejects a right merge ({name}): results agree within rounding, not bit for bit, and two empty states "
                        "give the empty state")
    if all(found):
        raise Wrong("your test lets every merge pass, also one that adds d and O as they are")
    for passed, (name, (_, help)) in zip(found, _WRONG_MERGES.items(), strict=True):
        if passed:
            raise Wrong(f"your test lets a merge pass that {name}. {help}")

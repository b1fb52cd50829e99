"""Exercises of notebook 10: merging candidates, a sampling step, checking a fused kernel, argmax beside (m, d) in a kernel."""

from __future__ import annotations

import math

import numpy as np

from helpers import cpu_device, reference
from helpers.exercises import Wrong, call, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

INF, NAN = math.inf, math.nan


def _sorted_part(x, k: int, start: int = 0):
    """(m, d, candidates) of a part of a row that begins at column `start`."""
    x = np.asarray(x, np.float64)
    state = reference.state_of(x)
    candidates = sorted(((float(v), start + j) for j, v in enumerate(x)), key=lambda c: (-c[0], c[1]))[:k]
    return float(state.row_max), float(state.normalizer), candidates


# ------------------------------------------------------------------------------------------------- 10-merge


def _merge(a, b, k):
    (m_a, d_a, best_a), (m_b, d_b, best_b) = a, b
    m = max(m_a, m_b)
    d = 0.0 if m == -math.inf else d_a * math.exp(m_a - m) + d_b * math.exp(m_b - m)
    return m, d, sorted(best_a + best_b, key=lambda c: (-c[0], c[1]))[:k]


def _merge_d(a, b, k):
    return max(a[0], b[0]), a[1] + b[1], _merge(a, b, k)[2]


def _merge_no_guard(a, b, k):
    with np.errstate(invalid="ignore"):
        m = np.maximum(a[0], b[0])
        d = a[1] * np.exp(np.float64(a[0]) - m) + b[1] * np.exp(np.float64(b[0]) - m)
    return m, d, _merge(a, b, k)[2]


@exercise(
    "10-merge", "Merge two parts of a row",
    hints=(
        "m and d merge as in notebook 04: the larger maximum, and both sums measured against it. Two empty parts need the guard.",
        "The k best of both lists together: put the lists together, sort, keep k. Lists may be shorter than k.",
        "The sort needs two keys: the logit, falling, and among equal logits the column, rising: key=lambda c: (-c[0], c[1]).",
    ),
    solution=_merge,
    wrong={
        "sums added": (_merge_d, "larger maximum"),
        "no guard": (_merge_no_guard, "two empty parts"),
        "not cut": (lambda a, b, k: (*_merge(a, b, k)[:2], sorted(a[2] + b[2], key=lambda c: (-c[0], c[1]))), "keep only k"),
        "half of each": (lambda a, b, k: (*_merge(a, b, k)[:2],
                                          sorted(a[2][: k // 2] + b[2][: k - k // 2], key=lambda c: (-c[0], c[1]))), "more than its share"),
        "ties by order of arrival": (lambda a, b, k: (*_merge(a, b, k)[:2], sorted(a[2] + b[2], key=lambda c: -c[0])[:k]), "lower column"),
        "ties by highest column": (lambda a, b, k: (*_merge(a, b, k)[:2], sorted(a[2] + b[2], reverse=True)[:k]), "lowest column first"),
        "not sorted": (lambda a, b, k: (*_merge(a, b, k)[:2], (a[2] + b[2])[:k]), "falling order"),
        "smallest": (lambda a, b, k: (*_merge(a, b, k)[:2], sorted(a[2] + b[2])[:k]), "smallest"),
        "a set": (lambda a, b, k: (*_merge(a, b, k)[:2], sorted(dict(a[2] + b[2]).items(), reverse=True)[:k]), "are different"),
        "columns lost": (lambda a, b, k: (*_merge(a, b, k)[:2], [v for v, _ in _merge(a, b, k)[2]]), "pairs"),
        "wrong maximum": (lambda a, b, k: (a[0], *_merge(a, b, k)[1:]), "m is"),
    },
)
def _judge_merge(answer):
    rng = np.random.default_rng(10)
    ties = [3.0, 1.0, 3.0, 2.0, 3.0]
    cases = [
        ("[5, 1] and [4, 3]", [5.0, 1.0], [4.0, 3.0], 2), ("[1, 2] and [9, 8, 7]", [1.0, 2.0], [9.0, 8.0, 7.0], 3),
        ("the same three numbers twice", ties[:3], ties[:3], 4), ("ties", ties, [3.0, 3.0, 0.0], 5),
        ("fewer logits than k", [1.0], [2.0], 8), ("one part masked", [-INF, -INF], [0.5, -0.5], 3),
        ("both parts masked", [-INF], [-INF, -INF], 2), ("an empty part", [], [1.0, 2.0], 2), ("two empty parts", [], [], 4),
        ("logits near -1000", [-1000.0, -1001.0], [-999.0], 2), ("logits near 1000", [1000.0], [998.0, 1001.0], 2),
        *((f"random, k = {k}", rng.integers(-9, 9, size=40) / 2, rng.integers(-9, 9, size=25) / 2, k) for k in (1, 5, 8, 64)),
    ]
    for name, left, right, k in cases:
        parts = _sorted_part(left, k), _sorted_part(right, k, len(left))
        m, d, best = _sorted_part([*left, *right], k)
        for order in (0, 1):
            a, b = parts if order == 0 else parts[::-1]
            got = call(answer, (a[0], a[1], list(a[2])), (b[0], b[1], list(b[2])), k)
            if not isinstance(got, (tuple, list)) or len(got) != 3 or any(v is None for v in got):
                raise Wrong("return three things: m, d and the list of candidates")
            _compare_merge(name + (", the right part first" if order else ""), got, m, d, best, parts, k)


def _compare_merge(name, got, m, d, best, parts, k):
    try:
        m_got, d_got = float(got[0]), float(got[1])
    except (TypeError, ValueError):
        raise Wrong("m and d must be numbers") from None
    if m_got != m:
        raise Wrong(f"{name}: m is {m:g}, you return {m_got:g}")
    if math.isnan(d_got):
        raise Wrong(f"{name}: d is NaN; two empty parts have m = -inf, and -inf - (-inf) is NaN")
    if abs(d_got - d) > 1e-12 * max(1.0, d):
        raise Wrong(f"{name}: d is {d:.6g}, you return {d_got:.6g}; each sum is measured against its own m, "
                    "the result against the larger maximum")
    try:
        candidates = [(float(v), int(j)) for v, j in got[2]]
    except (TypeError, ValueError):
        raise Wrong("the candidates are pairs (logit, column)") from None
    if candidates == best:
        return
    if len(candidates) > k:
        raise Wrong(f"{name}: {len(candidates)} candidates; keep only k = {k}")
    if len(set(candidates)) < len(candidates):
        raise Wrong(f"{name}: a candidate occurs twice")
    values, wanted = [v for v, _ in candidates], [v for v, _ in best]
    if len(candidates) < len(best) and len(set(wanted)) < len(wanted):
        raise Wrong(f"{name}: {len(candidates)} candidates instead of {len(best)}; "
                    "equal logits are different candidates if their columns differ")
    if values == wanted:
        columns = [j for _, j in candidates]
        if columns == sorted(columns, reverse=True) and len(columns) > 1:
            raise Wrong(f"{name}: the logits are right, but among equal ones comes the lowest column first")
        raise Wrong(f"{name}: the logits are right, the columns {columns} are not: among equal logits the lower column comes first, "
                    "whichever part it came from")
    if candidates in ((parts[0][2] + parts[1][2])[:k], (parts[1][2] + parts[0][2])[:k]):
        raise Wrong(f"{name}: that is one list behind the other; the k best of both together are wanted, in falling order")
    if values != sorted(values, reverse=True) and values == sorted(values):
        raise Wrong(f"{name}: these are the smallest, in rising order")
    if values != sorted(values, reverse=True):
        raise Wrong(f"{name}: the candidates are not in falling order of their logits")
    if any(sum(c in part[2] for c in best) > k // 2 for part in parts):
        raise Wrong(f"{name}: a candidate is missing; one part may hold more than its share of the k best, even all of them")
    raise Wrong(f"{name}: the k best are {best[:4]}{' …' if len(best) > 4 else ''}, you return {candidates[:4]}")


# ------------------------------------------------------------------------------------------------ 10-sample


def _sample(p, columns, u):
    shares = np.cumsum(np.asarray(p, np.float64))
    return int(columns[np.searchsorted(shares, u * shares[-1], side="right")])


def _sample_softmax(p, columns, u):
    e = np.exp(np.asarray(p, np.float64))
    return _sample(e, columns, u)


def _sample_absolute(p, columns, u):
    shares = np.cumsum(np.asarray(p, np.float64))
    return int(columns[min(np.searchsorted(shares, u, side="right"), len(p) - 1)])


def _sample_uncapped(p, columns, u):
    return int(columns[np.searchsorted(np.cumsum(np.asarray(p, np.float64)), u, side="right")])


@exercise(
    "10-sample", "One sampling step",
    hints=(
        "The k probabilities do not sum to 1: the rest of the row holds the remainder. Top-k sampling gives that remainder back to the k.",
        "Lay the k shares side by side on a line from 0 to their sum; u times the sum is a point on it. Whose share is it in?",
        "np.cumsum gives the right ends; np.searchsorted(ends, point, side=\"right\") the position; the answer is the column there.",
    ),
    solution=_sample,
    wrong={
        "always the best": (lambda p, columns, u: int(columns[0]), "always the first"),
        "position instead of column": (lambda p, columns, u: int(np.searchsorted(np.cumsum(p) / np.sum(p), u, side="right")), "position"),
        "not renormalised": (_sample_absolute, "do not sum to 1"),
        "not renormalised, out of range": (_sample_uncapped, "IndexError"),
        "softmax of probabilities": (_sample_softmax, "softmax again"),
        "uniform": (lambda p, columns, u: int(columns[int(u * len(p))]), "equally often"),
        "from the other end": (lambda p, columns, u: _sample(p[::-1], columns[::-1], u), "from the last"),
        "left side": (lambda p, columns, u: int(columns[np.searchsorted(np.cumsum(p), u * np.cumsum(p)[-1], side="left")]), "boundary"),
    },
)
def _judge_sample(answer):
    def column(p, columns, u):
        value = call(answer, np.array(p), np.array(columns), u)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise Wrong(f"return one column, a whole number, not {value!r}")
        return int(value)

    p, columns = [0.25, 0.125, 0.0625, 0.0625], [700, 30, 9000, 5]  # they sum to 1/2, exactly
    wanted = {0.0: 700, 0.1: 700, 0.27: 700, 0.49: 700, 0.6: 30, 0.74: 30, 0.8: 9000, 0.87: 9000, 0.9: 5, 0.999999: 5}
    got = {u: column(p, columns, u) for u in wanted}
    if got != wanted:
        values = list(got.values())
        if set(values) == {700}:
            raise Wrong("u from 0 to 1 gives always the first column: the best one wins most often, not always")
        if all(v in range(4) for v in values):
            raise Wrong(f"u = 0.6 gives {got[0.6]}: that is a position in the list; return columns[position]")
        if got == {u: _sample_absolute(p, columns, u) for u in wanted}:
            raise Wrong("from u = 0.5 on all end in the last column: the k probabilities do not sum to 1; scale u to their sum")
        if got == {u: columns[int(u * 4)] for u in wanted}:
            raise Wrong("each column comes equally often; the shares of the line are p")
        if got == {u: _sample_softmax(p, columns, u) for u in wanted}:
            raise Wrong("p already holds probabilities; you take a softmax again, which makes them nearly equal")
        if got == {u: _sample(p[::-1], columns[::-1], u) for u in wanted}:
            raise Wrong("you lay out the shares from the last to the first; start with the most probable")
        bad = next(u for u in wanted if got[u] != wanted[u])
        raise Wrong(f"p = {p}: u = {bad} lies at {bad * 0.5:g} of 0.5, in the share of column {wanted[bad]}; you return {got[bad]}")
    for u, right in ((0.5, 30), (0.75, 9000), (0.875, 5)):
        if column(p, columns, u) != right:
            raise Wrong(f"u = {u} is exactly on a boundary; a share holds its left end and not its right one, then u = 0 is no exception")
    if column([0.5, 0.0, 0.25], [8, 9, 2], 2 / 3) == 9:
        raise Wrong("a column of probability 0 was drawn")
    if column([0.0, 0.0, 0.5], [1, 2, 3], 0.0) != 3:
        raise Wrong("p = [0, 0, 0.5], u = 0: a column of probability 0 was drawn; u = 0 is on its boundary")
    if column([0.3], [12], 0.999) != 12:
        raise Wrong("with k = 1 there is one answer")
    rng = np.random.default_rng(12)
    row = np.exp(rng.standard_normal(500) * 2)
    order = np.argsort(-row)[:8]
    p = (row / row.sum())[order]
    for u in rng.random(300):
        if column(p, order, u) != _sample(p, order, u):
            raise Wrong(f"8 columns of 500, u = {u:.4f}: column {_sample(p, order, u)}, you return {column(p, order, u)}")


# ------------------------------------------------------------------------------------------------ 10-verify


def _verify(x, p, columns):
    k = len(columns)
    if len(set(columns.tolist())) != k or columns.min() < 0 or columns.max() >= len(x):
        return "columns"
    if columns.tolist() != sorted(range(len(x)), key=lambda j: (-x[j], j))[:k]:
        return "order"
    expected = reference.softmax(x)[columns]
    return "fine" if reference.agrees(p, expected) else "p"


def _verify_no_distinct(x, p, columns):
    if columns.min() < 0 or columns.max() >= len(x):
        return "columns"
    if not np.array_equal(x[columns], np.sort(x)[::-1][: len(columns)]):
        return "order"
    return _verify(x, p, columns) if _verify(x, p, columns) == "p" else "fine"


def _verify_values(x, p, columns):
    if _verify(x, p, columns) == "columns":
        return "columns"
    if not np.array_equal(x[columns], np.sort(x)[::-1][: len(columns)]):
        return "order"
    return "fine" if reference.agrees(p, reference.softmax(x)[columns]) else "p"


def _verify_over_k(x, p, columns):
    found = _verify(x, p, columns)
    if found in ("columns", "order"):
        return found
    return "fine" if reference.agrees(p, reference.softmax(x[columns])) else "p"


def _verify_nan_passes(x, p, columns):
    found = _verify(x, p, columns)
    if found in ("columns", "order"):
        return found
    with np.errstate(invalid="ignore"):
        return "p" if (abs(p - reference.softmax(x)[columns]) > 1e-6).any() else "fine"


def _verify_loose(x, p, columns):
    found = _verify(x, p, columns)
    if found in ("columns", "order"):
        return found
    return "fine" if np.allclose(p, reference.softmax(x)[columns], atol=1e-3, rtol=0, equal_nan=True) else "p"


def _verify_right_columns(x, p, columns):
    order = np.array(sorted(range(len(x)), key=lambda j: (-x[j], j))[: len(columns)])
    if not reference.agrees(p, reference.softmax(x)[order]):
        return "p"
    return _verify(x, p, columns)


def _verify_crash(x, p, columns):
    if not reference.agrees(p, reference.softmax(x)[columns]):
        return "p"
    return _verify(x, p, columns)


def _verify_unstable(x, p, columns):
    if _verify(x, p, columns) == "columns":
        return "columns"
    if columns.tolist() != np.argsort(x)[::-1][: len(columns)].tolist():
        return "order"
    return _verify(x, p, columns)


@exercise(
    "10-verify", "Check a fused kernel",
    hints=(
        "Three questions, one after the other: are the columns possible, are they the right ones in the right order, is p right?",
        "The order is that of a stable sort of x, falling: sorted(range(N), key=lambda j: (-x[j], j))[:k].",
        "Compare p with reference.softmax(x) taken at the columns; reference.agrees(got, expected) has the course's tolerances, "
        "and lets no NaN pass.",
    ),
    solution=_verify,
    wrong={
        "nothing is wrong": (lambda x, p, columns: "fine", "column 2 twice"),
        "repeated columns pass": (_verify_no_distinct, "distinct"),
        "ties unnoticed": (_verify_values, "equal logits"),
        "softmax over the k": (_verify_over_k, "whole row"),
        "NaN passes": (_verify_nan_passes, "NaN"),
        "loose tolerance": (_verify_loose, "1e-5"),
        "p first": (_verify_right_columns, "first question"),
        "index before the check": (_verify_crash, "out of range"),
        "an unstable sort": (_verify_unstable, "correct result"),
        "returns a truth value": (lambda x, p, columns: _verify(x, p, columns) == "fine", "one of the four words"),
    },
)
def _judge_verify(answer):
    def ask(x, p, columns):
        with np.errstate(all="ignore"):
            try:
                word = call(answer, x.copy(), p.copy(), columns.copy())
            except Wrong as wrong:
                if "IndexError" in str(wrong):
                    raise Wrong("your function raised IndexError: a column may be out of range; ask that before you use it") from None
                raise
        if not isinstance(word, str) or word not in ("fine", "columns", "order", "p"):
            raise Wrong(f'return one of the four words "fine", "columns", "order", "p", not {word!r}')
        return word

    for name, x, p, columns, right, hint in _reports():
        got = ask(x, p, columns)
        if right in ("columns", "order") and got == "p":
            raise Wrong(f'{name}: you say "p", but the first question is whether the columns are possible, the second their order')
        if got != right:
            raise Wrong(f'{name}: this is "{right}", you say "{got}"; {hint}')


def _reports():
    """(name, x, p, columns, right answer, hint) of results of imagined kernels."""
    x = np.array([0.5, 2.0, 3.0, -1.0, 1.0, 0.0], np.float32)
    truth = reference.softmax(x)
    right = np.array([2, 1, 4])

    def p_at(row, columns):
        return reference.softmax(row)[columns].astype(np.float32)

    yield "column 2 twice", x, p_at(x, [2, 2, 1]), np.array([2, 2, 1]), "columns", "the columns must be distinct"
    yield "column 6 of a row of 6", x, p_at(x, right), np.array([2, 1, 6]), "columns", "that column is out of range"
    yield "column -1", x, p_at(x, right), np.array([2, 1, -1]), "columns", "that column is out of range"
    yield ("normalised over the k", x, reference.softmax(x[right]).astype(np.float32), right, "p",
           "p is the softmax of the whole row, not of the k")
    yield "a correct result", x, p_at(x, right), right, "fine", "nothing is wrong with it"
    yield "the second best is missing", x, p_at(x, [2, 4, 0]), np.array([2, 4, 0]), "order", "they are not the k largest"
    yield "two columns exchanged", x, p_at(x, [1, 2, 4]), np.array([1, 2, 4]), "order", "they are not in falling order"
    yield "right p, columns exchanged", x, p_at(x, right), np.array([1, 2, 4]), "order", "p and columns belong together"
    yield "the k smallest", x, p_at(x, [3, 5, 0]), np.array([3, 5, 0]), "order", "they are not the k largest"
    yield "one p is NaN", x, np.where([0, 1, 0], NAN, p_at(x, right)).astype(np.float32), right, "p", "a NaN must not pass"
    yield "d 0.05 % too small", x, (truth[right] * 1.0005).astype(np.float32), right, "p", "the course allows a relative error of 1e-5"
    yield "p are logits", x, x[right], right, "p", "they are not probabilities"
    yield "p all 0", x, np.zeros(3, np.float32), right, "p", "they are too small"
    first = "among equal logits the lowest column comes first"
    equal = np.array([1.0, 4.0, 4.0, 0.0, 4.0, 4.0], np.float32)
    yield "a correct result with ties", equal, p_at(equal, [1, 2, 4]), np.array([1, 2, 4]), "fine", first
    yield "ties in another order", equal, p_at(equal, [1, 4, 2]), np.array([1, 4, 2]), "order", first
    yield "the last of the ties", equal, p_at(equal, [5, 4, 2]), np.array([5, 4, 2]), "order", first
    far = np.array([-1e4, -1e4 - 50, -1e4 - 60, -1e4 + 1], np.float32)
    yield "a correct result far below 0", far, p_at(far, [3, 0, 1]), np.array([3, 0, 1]), "fine", "nothing is wrong with it"
    yield ("a tiny p lost", far, np.array([*p_at(far, [3, 0]), 0], np.float32), np.array([3, 0, 1]), "p",
           "the course allows a relative error of 1e-5, and this p is 1e-22, not 0")
    masked = np.array([-INF, 2.0, -INF, 1.0], np.float32)
    yield "a correct result with masked logits", masked, p_at(masked, [1, 3, 0]), np.array([1, 3, 0]), "fine", "a masked logit has p = 0"
    nothing = np.full(4, -INF, np.float32)
    yield ("a correct result of a row that is all masked", nothing, np.full(2, NAN, np.float32), np.array([0, 1]), "fine",
           "its softmax is NaN, and so must p be")
    yield "zeros for a row that is all masked", nothing, np.zeros(2, np.float32), np.array([0, 1]), "p", "its softmax is NaN"
    rng = np.random.default_rng(13)
    long = rng.integers(0, 40, size=300).astype(np.float32) / 4
    best = np.argsort(-long, kind="stable")[:20]
    yield "a correct result of 300 logits", long, p_at(long, best), best, "fine", "is your sort stable?"


# ------------------------------------------------------------------------------------------------ 10-argmax

_ARGMAX = load("solutions/10_argmax.cu")
_PICK = "        if (m_other > m || (m_other == m && at_other < at)) at = at_other;\n"
_SUM = "        d = d * expf(m - m_new) + d_other * expf(m_other - m_new);\n"
_GUARD = "        if (m == NEG_INF && m_other == NEG_INF) continue;       // both empty; no shuffle is left out by that\n"


def _explain_argmax(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind == "collective":
        return f"the shuffle{where} is not executed by all 32 lanes that its mask names: keep it out of every branch"
    if error.kind == "unwritten":
        return f"{error.array}[{error.index}] is never written"
    return None


@exercise(
    "10-argmax", "Argmax beside (m, d) in a kernel",
    hints=(
        "5 exchanges, lanes 16, 8, 4, 2, 1 apart. In each, fetch three numbers of the partner: m, d and the column.",
        "d merges as ever. The column goes with the larger m; if both are equal, the lower column wins, in both lanes.",
        "Choose the column while the old m is still there, and mind two lanes without elements: "
        'show_diff("exercises/10_argmax.cu", "solutions/10_argmax.cu") shows a solution.',
    ),
    solution="solutions/10_argmax.cu",
    untouched="95c46d30",
    wrong={
        "own column kept": (changed(_ARGMAX, (_PICK, "")), "never takes over"),
        "ties to the partner": (changed(_ARGMAX, ("at_other < at)", "at_other != at)")), "equal logits"),
        "ties kept": (changed(_ARGMAX, (" || (m_other == m && at_other < at)", "")), "equal logits"),
        "highest column": (changed(_ARGMAX, ("at_other < at)", "at_other > at && at_other < N)")), "highest"),
        "sums added": (changed(_ARGMAX, (_SUM, "        d = d + d_other;\n")), "different maxima"),
        "no guard": (changed(_ARGMAX, (_GUARD, "")), "NaN"),
        "four exchanges": (changed(_ARGMAX, ("bit = 16", "bit = 8")), "half of the lanes"),
        "shuffle in a branch": (changed(_ARGMAX, ("int bit = 16; bit > 0; bit /= 2) {", "int bit = 16; bit > 0; bit /= 2) if (d > 0) {")),
                                "out of every branch"),
    },
)
def _judge_argmax(answer):
    kernel = build(answer, "argmax")
    rng = np.random.default_rng(14)
    rising = np.tile(np.arange(90, dtype=np.float32) / 8, (2, 1))
    ties = rng.integers(0, 4, size=(5, 100)).astype(np.float32)
    masked = rng.standard_normal((3, 70)).astype(np.float32)
    masked[0, :40] = masked[1, 40:] = masked[2, ::2] = -INF
    cases = {
        "random rows": [rng.standard_normal((4, N)).astype(np.float32) for N in (32, 64, 700, 33)],
        "rising rows": [rising, rising[:, ::-1].copy()],
        "rows with equal logits": [ties, np.zeros((2, 50), np.float32), np.float32([[1, 2, 2] * 20])],
        "rows far below 0": [rng.standard_normal((2, 45)).astype(np.float32) - 1000],
        "rows shorter than a warp": [rng.standard_normal((2, N)).astype(np.float32) for N in (31, 5, 1)],
        "masked rows": [masked],
    }
    for name, arrays in cases.items():
        for X in arrays:
            M, N = X.shape
            case = f"{name}, N = {N}"
            x, p, column = cpu_device.asarray(X), cpu_device.empty(M, np.float32), cpu_device.empty(M, np.int32)
            c = run(kernel, case, (M,), (32,), (x, p, column, np.int32(M), np.int32(N)), (p, column), _explain_argmax, seed=1)
            _compare_argmax(case, X, p.get(), column.get())
            if c.loads.bytes > 4 * M * N:
                raise Wrong(f"{case}: right, but x is read more than once; what the lanes hold is enough")


def _compare_argmax(case, X, p, column):
    for row, x in enumerate(X.astype(np.float64)):
        best, truth, lanes = int(x.argmax()), reference.softmax(x), range(min(32, len(x)))
        got, got_p = int(column[row]), float(p[row])
        if math.isnan(got_p):
            raise Wrong(f"{case}: p is NaN; a lane without elements has m = -inf, and -inf - -inf is NaN")
        alone = x[::32]
        if got == int(alone.argmax()) * 32 and abs(got_p - reference.softmax(alone).max()) < 1e-5 and got_p > truth.max() * 1.001:
            raise Wrong(f"{case}: that is the result of lane 0's elements alone")
        if got != best:
            first_half = np.concatenate([np.flatnonzero(np.arange(len(x)) % 32 == i) for i in lanes if i < 16])
            if abs(got_p - reference.softmax(x[first_half]).max()) < 1e-5 and len(first_half) < len(x):
                raise Wrong(f"{case}: half of the lanes are missing: a lane reaches all others in 5 exchanges")
            if 0 <= got < len(x) and x[got] == x[best]:
                if got == max(i + 32 * int(x[i::32].argmax()) for i in lanes if x[i::32].max() == x[best]):
                    raise Wrong(f"{case}: of the lanes with equal logits you take the highest column, {got}; the lowest is {best}")
                raise Wrong(f"{case}: columns {best} and {got} hold equal logits; the lower column wins, whichever lane has it")
            if got == int(alone.argmax()) * 32:
                raise Wrong(f"{case}: column {got} is the best of lane 0, {best} that of the row: lane 0 never takes over another lane's "
                            "column; choose it before m is overwritten")
            raise Wrong(f"{case}: the largest logit is at column {best}, not {got}; choose the column by comparing with the old m, "
                        "before m becomes the larger of both")
        if not abs(got_p - truth[best]) <= 1e-5 * truth[best]:
            half = np.concatenate([x[i::32] for i in lanes if i < 16])
            if abs(got_p - np.exp(x[best] - reference.lse(half))) < 1e-5:
                raise Wrong(f"{case}: half of the lanes are missing: a lane reaches all others in 5 exchanges")
            d = sum(float(reference.state_of(x[i::32]).normalizer) for i in lanes)
            if abs(got_p - 1 / d) <= 1e-5 / d:
                raise Wrong(f"{case}: the column is right, but the d of lanes with different maxima were added as they are")
            raise Wrong(f"{case}: column {best} is right, its probability is {truth[best]:.5f}, you return {got_p:.5f}")

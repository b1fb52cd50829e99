"""Exercises of notebook 03."""

from __future__ import annotations

import math

import numpy as np

from helpers import reference
from helpers.exercises import Wrong, call, exercise

INF, NAN = math.inf, math.nan


def _pair(value, names: str = "m and d"):
    """The two numbers (or arrays) of a state, or `Wrong` when `value` is something else."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or any(v is None for v in value):
        raise Wrong(f"return two values, {names}")
    try:
        return np.asarray(value[0], dtype=np.float64), np.asarray(value[1], dtype=np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"return two numbers, {names}") from None


# ------------------------------------------------------------------------------------------------ 03-update


def _update(m, d, x):
    if x == -math.inf:
        return m, d  # a masked element changes nothing
    m_new = max(m, x)
    return m_new, d * math.exp(m - m_new) + math.exp(x - m_new)


def _no_rescale(m, d, x):
    if x == -math.inf:
        return m, d
    m_new = max(m, x)
    return m_new, d + math.exp(x - m_new)


def _upside_down(m, d, x):
    if x == -math.inf:
        return m, d
    m_new = max(m, x)
    factor = math.exp(m_new - m) if m > -math.inf else 0.0
    return m_new, d * factor + math.exp(x - m_new)


def _rescales_both(m, d, x):
    if x == -math.inf:
        return m, d
    m_new = max(m, x)
    return m_new, (d + math.exp(x - m_new)) * (math.exp(m - m_new) if m > -math.inf else 1.0)


def _old_reference(m, d, x):
    if x == -math.inf:
        return m, d
    m_new = max(m, x)
    return m_new, d * math.exp(m - m_new) + (math.exp(x - m) if m > -math.inf else 1.0)


def _no_shift(m, d, x):
    return max(m, x), d + math.exp(x)


def _no_guard(m, d, x):
    m_new = np.maximum(m, x)
    return m_new, d * np.exp(m - m_new) + np.exp(x - m_new)


def _starts_at_zero(m, d, x):
    m_new = max(m, x, 0.0)
    return m_new, d * math.exp(m - m_new) + math.exp(x - m_new)


def _finite_minimum(m, d, x):
    m_new = max(m, x, -3.4e38)
    return m_new, d * math.exp(m - m_new) + math.exp(x - m_new)


def _loses_nan(m, d, x):
    m_new = max(m, x)
    if m_new == -math.inf:
        return -math.inf, 0.0
    return m_new, d * math.exp(m - m_new) + math.exp(x - m_new)


def _skips_nan(m, d, x):
    if not x > -math.inf:
        return m, d
    m_new = max(m, x)
    return m_new, d * math.exp(m - m_new) + math.exp(x - m_new)


@exercise(
    "03-update", "Write one step of the recurrence",
    hints=(
        "Three lines do it: the new maximum, the new normalizer, the return. Write them as the formula stands.",
        "Only the old sum is measured against the old maximum, so only d gets the factor exp(m - m_new).",
        "Now the start: with m = -inf and x = -inf, m - m_new is NaN. What should a masked element change? Nothing.",
    ),
    solution=_update,
    wrong={
        "no rescale": (_no_rescale, "was not rescaled"),
        "factor upside down": (_upside_down, "upside down"),
        "rescales the new term too": (_rescales_both, "only the old sum"),
        "new term against the old maximum": (_old_reference, "new maximum"),
        "no shift": (_no_shift, "without subtracting"),
        "no guard": (_no_guard, "-inf - (-inf)"),
        "maximum started at 0": (_starts_at_zero, "no element of the row is that large"),
        "finite start": (_finite_minimum, "nothing but masked elements"),
        "the guard swallows NaN": (_loses_nan, "NaN disappeared"),
        "skips every NaN": (_skips_nan, "whole row NaN"),
    },
)
def _judge_update(answer):
    def step(m, d, x):
        with np.errstate(all="ignore"):
            m, d = _pair(call(answer, np.float64(m), np.float64(d), np.float64(x)))
        if m.shape or d.shape:
            raise Wrong("return two plain numbers, m and d")
        return float(m), float(d)

    def run(row, m=-INF, d=0.0):
        for x in row:
            m, d = step(m, d, x)
        return m, d

    def near(got, want):
        return abs(got - want) <= 1e-12 * max(1.0, abs(want))

    m, d = step(1.0, 1.0, 3.0)  # the maximum rises by 2
    right = math.exp(-2) + 1
    if m != 3.0:
        raise Wrong(f"state (1, 1) and x = 3: the maximum is 3, you return {m:g}")
    if not near(d, right):
        told = {
            2.0: "the maximum rose from 1 to 3, but the old sum was not rescaled",
            math.exp(2) + 1: "the correction factor is upside down: it must shrink the old sum, so it is at most 1",
            2 * math.exp(-2): "only the old sum needs the factor; the new term already has the new maximum in it",
            math.exp(-2) + math.exp(2): "the new term must be measured against the new maximum: exp(x - m_new)",
            1 + math.exp(3): "you add exp(x) without subtracting the maximum, and that overflows",
        }
        for value, text in told.items():
            if near(d, value):
                raise Wrong(text)
        raise Wrong(f"state (1, 1) and x = 3: d is exp(1 - 3) + exp(3 - 3) = {right:.4f}, you return {d:.4f}")
    m, d = step(3.0, 2.0, 1.0)  # the maximum stays
    if m != 3.0 or not near(d, 2 + math.exp(-2)):
        raise Wrong("state (3, 2) and x = 1: the maximum stays 3 and d grows by exp(1 - 3)")
    m, d = run([-5.0, -7.0])
    if m != -5.0:
        raise Wrong(f"row [-5, -7]: you return m = {m:g}, but no element of the row is that large")
    m, d = run([-INF, -INF])
    if math.isnan(m) or math.isnan(d):
        raise Wrong("a row that begins with -inf turns NaN: -inf - (-inf) is NaN, so that step needs a guard")
    if (m, d) != (-INF, 0.0):
        raise Wrong(f"after nothing but masked elements the state must still be (-inf, 0), you return ({m:g}, {d:g})")
    for row in ([NAN, 1.0], [-INF, NAN], [-INF, NAN, 2.0]):
        if not math.isnan(run(row)[1]):
            if math.isnan(run([1.0, NAN])[1]):
                raise Wrong(f"row {row}: the NaN disappeared in your guard; test x == -inf, and let NaN through")
            raise Wrong(f"row {row}: a NaN must make the whole row NaN, not be skipped")
    for row in ([1.0, NAN], [1.0, NAN, 2.0]):
        if not math.isnan(run(row)[1]):
            raise Wrong(f"row {row}: a NaN must make the whole row NaN, not be skipped")
    rng = np.random.default_rng(3)
    rows = [[4.0], [2.0] * 9, [0.0, 1000.0], [1000.0, 0.0], [-1000.0, -1001.0, -999.0], [-INF, 1.0, -INF, 3.0],
            [1e300, -1e300], list(range(100)), list(range(100, 0, -1)), *(rng.standard_normal((20, 50)) * 40).tolist()]
    for row in rows:
        m, d = run(row)
        want = reference.state_of(np.array(row, np.float64))
        if m != want.row_max or not near(d, float(want.normalizer)):
            shown = row if len(row) < 5 else f"of {len(row)} elements"
            raise Wrong(f"row {shown}: the state is ({want.row_max:g}, {want.normalizer:.6g}), "
                        f"you get ({m:g}, {d:.6g})")


# ------------------------------------------------------------------------------------------------- 03-count


@exercise(
    "03-count", "Count the new maxima",
    hints=(
        "Walk along the row and note each element that is larger than everything before it. The first one counts.",
        "Equal is not larger. A -inf raises nothing.",
        "In random order the k-th element is a new maximum with probability 1/k; the sum of these is ln N + 0.58.",
    ),
    solution=(4, 1, 1, 4, 14),
    wrong={
        "first element not counted": ((3, 0, 0, 3, 13), "first finite element"),
        "ties counted": ((4, 4, 1, 4, 14), "equal"),
        "the mask counted": ((4, 1, 3, 4, 14), "-inf"),
        "every rise counted": ((5, 1, 1, 4, 14), "neighbour"),
        "half of them": ((4, 1, 1, 4, 500_000), "half"),
        "log2": ((4, 1, 1, 4, 20), "natural logarithm"),
        "without the constant": ((4, 1, 1, 4, 13.8155), "nearest whole"),
    },
)
def _judge_count(answer):
    try:
        values = [float(v) for v in answer]
    except (TypeError, ValueError):
        raise Wrong("give five numbers, one for each row") from None
    if len(values) != 5:
        raise Wrong(f"give five numbers, one for each row; you gave {len(values)}")
    a, b, c, d, e = values
    if (a, b, c) == (3, 0, 0) or (b, c) == (0, 0):
        raise Wrong("the first finite element counts: it raises the maximum from -inf")
    if a == 5:
        raise Wrong("row a: 4 rises above its neighbour 1 and then 6 above 2; compare with everything before, "
                    "not with the neighbour")
    if a != 4:
        raise Wrong("row a: write down the running maximum below the row and count how often it changes")
    if b != 1:
        raise Wrong("row b: an equal element does not raise the maximum; the factor is exp(0) = 1")
    if c != 1:
        raise Wrong("row c: a -inf never raises the maximum, and 1 is below 2")
    if d != 4:
        raise Wrong("row d: only every second element is larger than all before it")
    if e == 14:
        return
    if 13.3 <= e <= 14.5:
        raise Wrong("row e: H_N = ln N + 0.58; round it to the nearest whole number")
    if e >= 1000:
        raise Wrong("row e: far fewer than half of the elements: the k-th is a new maximum with probability 1/k only")
    if e == 20:
        raise Wrong("row e: 20 is log2 of a million; the sum of 1/k grows like the natural logarithm")
    raise Wrong("row e: add up 1/k for k = 1 ... 1,000,000, or use ln N + 0.58")


# ----------------------------------------------------------------------------------------------- 03-one-exp


def _one_exp(m, d, x, exp):
    e = exp(-np.abs(x - m))  # the exponent that is not 0, whichever side is larger
    d_new = np.where(x > m, d * e + 1.0, d + e)
    return np.maximum(m, x), np.where(x == -np.inf, d, d_new)


def _two_exp(m, d, x, exp):
    m_new = np.maximum(m, x)
    safe = np.where(m_new == -np.inf, 0.0, m_new)
    return m_new, d * exp(m - safe) + exp(x - safe)


def _one_exp_if(m, d, x, exp):
    if x > m:
        return x, d * exp(m - x) + 1.0
    return m, d + exp(x - m)


def _own_exp(m, d, x, exp):
    return _one_exp(m, d, x, np.exp)


def _positive_gap(m, d, x, exp):
    e = exp(np.abs(x - m))
    d_new = np.where(x > m, d * e + 1.0, d + e)
    return np.maximum(m, x), np.where(x == -np.inf, d, d_new)


def _swapped(m, d, x, exp):
    e = exp(-np.abs(x - m))
    d_new = np.where(x > m, d + e, d * e + 1.0)
    return np.maximum(m, x), np.where(x == -np.inf, d, d_new)


def _one_exp_no_guard(m, d, x, exp):
    e = exp(-np.abs(x - m))
    return np.maximum(m, x), np.where(x > m, d * e + 1.0, d + e)


def _counts_masked(m, d, x, exp):
    e = exp(-np.abs(np.where(x == m, 0.0, x - m)))
    return np.maximum(m, x), np.where(x > m, d * e + 1.0, d + e)


def _drops_nan(m, d, x, exp):
    e = exp(-np.abs(x - m))
    return np.fmax(m, x), np.where(x > m, d * e + 1.0, np.where(np.isnan(e), d, d + e))


@exercise(
    "03-one-exp", "One exp per element, and no branch",
    hints=(
        "One of the two exponents, m - m_new and x - m_new, is always 0. The other one is -|x - m|.",
        "e = exp(-np.abs(x - m)) is the factor of d if x > m, and the new term otherwise: np.where chooses.",
        "Where x is -inf, keep d as it is: np.where(x == -np.inf, d, ...). That also drops the NaN of -inf - (-inf).",
    ),
    solution=_one_exp,
    wrong={
        "two exp": (_two_exp, "2 exp"),
        "an if": (_one_exp_if, "np.where"),
        "its own exp": (_own_exp, "passed in"),
        "positive exponent": (_positive_gap, "above 0"),
        "cases swapped": (_swapped, "raises the maximum"),
        "no guard": (_one_exp_no_guard, "NaN"),
        "masked elements counted": (_counts_masked, "masked"),
        "drops NaN": (_drops_nan, "whole row NaN"),
    },
)
def _judge_one_exp(answer):
    calls, largest = 0, -INF

    def exp(v):
        nonlocal calls, largest
        v = np.asarray(v, dtype=np.float64)
        calls += v.size
        largest = max(largest, np.max(v, initial=-INF, where=~np.isnan(v)))
        return np.exp(v)

    def step(m, d, x):
        nonlocal calls
        calls = 0
        with np.errstate(all="ignore"):
            try:
                value = call(answer, m.copy(), d.copy(), x.copy(), exp)
            except Wrong as wrong:
                if "ambiguous" in str(wrong):
                    raise Wrong("an `if` decides for all lanes at once; let np.where choose for each lane") from None
                raise
        m_new, d_new = _pair(value)
        if m_new.shape != x.shape or d_new.shape != x.shape:
            raise Wrong(f"m, d and x are arrays of shape {x.shape}: return m and d of the same shape")
        return m_new, d_new

    def run(rows):
        rows = np.asarray(rows, dtype=np.float64)
        m, d = np.full(len(rows), -INF), np.zeros(len(rows))
        for x in rows.T:
            m, d = step(m, d, x)
            if calls == 0:
                raise Wrong("use the exp that is passed in: it counts")
            if calls > len(x):
                raise Wrong(f"{calls / len(x):.3g} exp per element; one of them is always exp(0)")
            if calls < len(x):
                raise Wrong(f"only {calls} exp for {len(x)} lanes: compute it for every lane, then choose")
        return m, d

    def same(got, rows):
        want = [reference.state_of(np.array(row, dtype=np.float64)) for row in rows]
        m, d = (np.array([getattr(s, name) for s in want], dtype=np.float64) for name in ("row_max", "normalizer"))
        return np.array_equal(got[0], m) and bool(np.all(np.abs(got[1] - d) <= 1e-12 * np.maximum(d, 1)))

    rows = np.random.default_rng(5).standard_normal((8, 30)) * 20
    got = run(rows)
    if largest > 0:
        raise Wrong("your exp gets an argument above 0 and may overflow: the exponent is minus the distance of x and m")
    if not same(run([[1.0, 3.0], [1.0, 4.0]]), [[1.0, 3.0], [1.0, 4.0]]):
        raise Wrong("where x raises the maximum, e is the factor of the old sum and the new term is 1: d * e + 1")
    if not same(run([[3.0, 1.0], [2.0, 2.0]]), [[3.0, 1.0], [2.0, 2.0]]):
        raise Wrong("where the maximum stays, e is the new term: d + e")
    if not same(got, rows):
        raise Wrong("random rows: the state differs from the reference")
    masked = [[-INF, 1.0, 2.0], [-INF, -INF, -INF], [1.0, -INF, 2.0], [-INF, -INF, -900.0]]
    got = run(masked)
    if np.isnan(got[0]).any() or np.isnan(got[1]).any():
        raise Wrong("a row that begins with -inf turns NaN: |-inf - (-inf)| is NaN, so -inf needs its own case")
    if not same(got, masked):
        raise Wrong("a masked element (-inf) must leave m and d as they are")
    if not np.isnan(run([[1.0, NAN, 2.0], [NAN, 1.0, 2.0], [-INF, NAN, 2.0]])[1]).all():
        raise Wrong("a NaN must make the whole row NaN, not be skipped")
    extreme = [[-1000.0, -1001.0, -999.0], [0.0, 1000.0, 0.0], [7.0, 7.0, 7.0], [1e300, -1e300, 0.0]]
    if not same(run(extreme), extreme):
        raise Wrong("rows far from 0, or with equal elements: the state differs from the reference")


# --------------------------------------------------------------------------------------------------- 03-lse


def _lse(ell, x):
    high, low = np.maximum(ell, x), np.minimum(ell, x)  # unlike max and min, these keep a NaN
    if low == -np.inf:
        return high
    return high + np.log1p(np.exp(low - high))


def _lse_direct(ell, x):
    return float(np.log(np.exp(ell) + np.exp(x)))


def _lse_plain_log(ell, x):
    high, low = np.maximum(ell, x), np.minimum(ell, x)
    return high if low == -np.inf else high + np.log(1 + np.exp(low - high))


def _lse_no_guard(ell, x):
    high, low = np.maximum(ell, x), np.minimum(ell, x)
    return high + np.log1p(np.exp(low - high))


def _lse_old_reference(ell, x):
    return x if ell == -math.inf else float(ell + np.log1p(np.exp(x - ell)))


def _lse_max(ell, x):
    return max(ell, x)


def _lse_sum(ell, x):
    return ell + x if ell > -math.inf else x


def _lse_python_max(ell, x):
    high, low = max(ell, x), min(ell, x)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@exercise(
    "03-lse", "One number instead of two",
    hints=(
        "Undo the logarithm: the new sum of exponentials is exp(ell) + exp(x). Take the larger exponent out, as safe "
        "softmax does.",
        "With high = max(ell, x) and low = min(ell, x): ell_new = high + log(1 + exp(low - high)).",
        "log(1 + e) loses a small e; math.log1p(e) does not. And where low is -inf, the answer is simply high.",
    ),
    solution=_lse,
    wrong={
        "exp without a reference": (_lse_direct, "overflow"),
        "log(1 + e)": (_lse_plain_log, "log1p"),
        "no guard": (_lse_no_guard, "-inf - (-inf)"),
        "always the old value as reference": (_lse_old_reference, "far above"),
        "the maximum": (_lse_max, "two equal"),
        "a plain sum": (_lse_sum, "exp(0) + exp(0)"),
        "Python's max and min": (_lse_python_max, "np.maximum"),
    },
)
def _judge_lse(answer):
    def step(ell, x):
        with np.errstate(all="ignore"):
            value = call(answer, np.float64(ell), np.float64(x))
        try:
            value = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise Wrong("return one number, the new ell") from None
        if value.shape:
            raise Wrong("return one number, the new ell")
        return float(value)

    def near(got, want):
        return abs(got - want) <= 1e-13 * max(abs(want), 1e-30) or got == want

    got = step(0.0, 0.0)
    if not near(got, math.log(2)):
        if got == 0.0 and step(3.0, 3.0) == 3.0:
            raise Wrong("two equal scores double the sum, so ell must grow by log 2; the maximum alone is not enough")
        raise Wrong(f"ell = 0 and x = 0: exp(0) + exp(0) = 2, so the new ell is log 2 = {math.log(2):.4f}; "
                    f"you return {got:.4f}")
    for ell, x in ((1000.0, 999.0), (999.0, 1000.0), (-1000.0, -1001.0)):
        if not near(step(ell, x), float(np.logaddexp(ell, x))):
            raise Wrong(f"ell = {ell:g}, x = {x:g}: exp of such a number does overflow or underflow; "
                        "take the larger of the two out first")
    if not near(step(0.0, 1000.0), 1000.0) or not near(step(-1000.0, 1000.0), 1000.0):
        raise Wrong("x far above ell: your exponent is positive and overflows; measure against the larger of the two")
    got = step(-INF, -INF)
    if math.isnan(got):
        raise Wrong("ell = -inf and x = -inf gives NaN: -inf - (-inf) is NaN, so an empty sum needs a guard")
    if got != -INF:
        raise Wrong("ell = -inf and x = -inf: nothing was added, so ell must stay -inf")
    if step(-INF, 5.0) != 5.0 or step(5.0, -INF) != 5.0:
        raise Wrong("ell = -inf is the empty sum, x = -inf a masked element: the result is the other number, exactly")
    got, want = step(0.0, -40.0), math.log1p(math.exp(-40))
    if not near(got, want):
        raise Wrong(f"ell = 0, x = -40: the answer is {want:.3g}, you return {got:.3g}; 1 + e rounds to 1, use log1p")
    for row in ([1.0, NAN, 2.0], [NAN, 1.0], [-INF, NAN]):
        ell = -INF
        for x in row:
            ell = step(ell, x)
        if not math.isnan(ell):
            raise Wrong(f"row {row}: a NaN must make the whole row NaN; max and min drop it, "
                        "np.maximum and np.minimum do not")
    for row in np.random.default_rng(6).standard_normal((10, 40)) * np.geomspace(1, 400, 10)[:, None]:
        ell = -INF
        for x in row:
            ell = step(ell, x)
        if not abs(ell - float(reference.lse(row))) <= 1e-12 * max(1.0, abs(ell)):
            raise Wrong(f"a random row of 40: log of its sum is {reference.lse(row):.6f}, you get {ell:.6f}")

"""Exercises of notebook 04."""

from __future__ import annotations

import math

import numpy as np

from helpers import reference
from helpers.exercises import Wrong, call, exercise
from helpers.reference import EMPTY, State

INF, NAN = math.inf, math.nan


# ------------------------------------------------------------------------------------------------- 04-limit


@exercise(
    "04-limit", "Where the start at 0 fails in fp16",
    hints=(
        "With m = 0 the terms are exp(-c). The result is 0/0 once they round to 0.",
        "The smallest positive fp16 number is 2^-24. What rounds to 0 lies below half of it.",
        "Solve exp(-c) = 2^-25 for c.",
    ),
    solution=25 * math.log(2),
    wrong={
        "smallest subnormal": (24 * math.log(2), "half"),
        "smallest normal": (14 * math.log(2), "subnormal"),
        "the overflow limit": (11.0899, "largest"),
        "fp32": (150 * math.log(2), "fp32"),
        "a score instead of c": (-25 * math.log(2), "positive"),
        "log2": (25.0, "natural"),
        "NaN": (NAN, "number"),
    },
)
def _judge_limit(answer):
    try:
        c = float(answer)
    except (TypeError, ValueError):
        raise Wrong("give one number, c") from None
    if not math.isfinite(c):
        raise Wrong("give one finite number, c")
    if 17.3 <= c <= 17.36:
        return
    if c < 0:
        raise Wrong("the scores are -c, so c itself is positive")
    told = (
        (24 * math.log(2), "there exp(-c) is the smallest fp16 number; it rounds to 0 only below half of that"),
        (14 * math.log(2), "there exp(-c) turns subnormal: digits get lost, but the terms are not 0 yet"),
        (11.0899, "that is where exp(c) exceeds the largest fp16 number; here exp(-c) must vanish"),
        (150 * math.log(2), "that is the limit of fp32; the state is kept in fp16"),
        (25.0, "2^-25 is right, but exp is base e: take the natural logarithm"),
        (24.0, "an exponent of base 2; exp is base e: take the natural logarithm of half of 2^-24"),
    )
    for value, text in told:
        if abs(c - value) < 0.06:
            raise Wrong(text)
    raise Wrong("find the c at which exp(-c) rounds to 0 in fp16")


# ------------------------------------------------------------------------------------------------ 04-stream


class Chunks:
    """Chunks of a row that arrive one after the other in one reused buffer, as on a device with little memory.

    Walk through it as often as you like; when the next chunk is asked for, the buffer of the last one is overwritten.
    """

    def __init__(self, *chunks):
        self._chunks = [np.asarray(chunk, dtype=np.float64) for chunk in chunks]

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self):
        buffer = np.full(max((len(c) for c in self._chunks), default=0), NAN)
        for chunk in self._chunks:
            buffer[:len(chunk)] = chunk
            yield buffer[:len(chunk)]
            buffer[:] = NAN


def _stream(chunks):
    total = EMPTY
    for chunk in chunks:
        total = reference.merge(total, reference.state_of(chunk))
    return [np.exp(chunk - total.row_max) / total.normalizer for chunk in chunks]


def _each_alone(chunks):
    return [reference.softmax(chunk) for chunk in chunks]


def _stream_naive(chunks):
    d = sum(np.exp(chunk).sum() for chunk in chunks)
    return [np.exp(chunk) / d for chunk in chunks]


def _one_pass(chunks):
    total, out = EMPTY, []
    for chunk in chunks:
        total = reference.merge(total, reference.state_of(chunk))
        out.append(np.exp(chunk - total.row_max) / total.normalizer)
    return out


def _whole_row(chunks):
    chunks = list(chunks)
    row = reference.softmax(np.concatenate(chunks))
    return np.split(row, np.cumsum([len(c) for c in chunks])[:-1])


def _stream_from_zero(chunks):
    m, d = 0.0, 0.0
    for chunk in chunks:
        m_new = max(m, chunk.max(initial=-np.inf))
        d = d * np.exp(m - m_new) + np.exp(chunk - m_new).sum()
        m = m_new
    return [np.exp(chunk - m) / d for chunk in chunks]


def _max_of_nothing(chunks):
    total = EMPTY
    for chunk in chunks:
        m = chunk.max()
        total = reference.merge(total, State(m, np.exp(chunk - m).sum()))
    return [np.exp(chunk - total.row_max) / total.normalizer for chunk in chunks]


def _stream_no_guard(chunks):
    m, d = -np.inf, 0.0
    for chunk in chunks:
        m_new = max(m, chunk.max(initial=-np.inf))
        d = d * np.exp(m - m_new) + np.exp(chunk - m_new).sum()
        m = m_new
    return [np.exp(chunk - m) / d for chunk in chunks]


def _stream_no_rescale(chunks):
    m, d = -np.inf, 0.0
    for chunk in chunks:
        s = reference.state_of(chunk)
        m, d = max(m, s.row_max), d + s.normalizer
    return [np.exp(chunk - m) / d for chunk in chunks]


def _stream_zeros(chunks):
    out = _stream(chunks)
    return [np.nan_to_num(y) for y in out]


@exercise(
    "04-stream", "Softmax of a row that never fits",
    hints=(
        "Walk through the chunks twice. The first walk keeps one state and nothing else; reference.state_of and "
        "reference.merge do the work.",
        "Start with reference.EMPTY, and merge the state of each chunk into it.",
        "The second walk returns np.exp(chunk - m) / d for each chunk, with the m and d of the whole row.",
    ),
    solution=_stream,
    wrong={
        "each chunk on its own": (_each_alone, "own sum"),
        "no maximum at all": (_stream_naive, "without the maximum"),
        "one walk": (_one_pass, "state so far"),
        "collects the row": (_whole_row, "overwritten"),
        "started at 0": (_stream_from_zero, "started at 0"),
        "maximum of an empty chunk": (_max_of_nothing, "no maximum"),
        "no guard": (_stream_no_guard, "-inf - (-inf)"),
        "no rescale": (_stream_no_rescale, "factor"),
        "NaN turned into 0": (_stream_zeros, "masked everywhere"),
    },
)
def _judge_stream(answer):
    def run(*chunks):
        with np.errstate(all="ignore"):
            try:
                got = call(answer, Chunks(*chunks))
            except Wrong as wrong:
                if "zero-size" in str(wrong) or "empty" in str(wrong):
                    raise Wrong("an empty chunk has no maximum; its state is reference.EMPTY") from None
                raise
        if not isinstance(got, (list, tuple)) or len(got) != len(chunks):
            raise Wrong(f"return a list with one array for each of the {len(chunks)} chunks")
        try:
            got = [np.asarray(y, dtype=np.float64) for y in got]
        except (TypeError, ValueError):
            raise Wrong("return a list of arrays") from None
        if [y.shape for y in got] != [(len(c),) for c in chunks]:
            raise Wrong("every array must be as long as its chunk")
        return got

    def right(got, *chunks):
        truth = reference.softmax(np.concatenate([np.asarray(c, dtype=np.float64) for c in chunks]))
        return np.allclose(np.concatenate(got), truth, rtol=1e-12, atol=0, equal_nan=True)

    first = ([-0.3, 0.2, 0.5], [0.7, 0.1, 0.8])
    got = run(*first)
    if np.isnan(np.concatenate(got)).any():
        raise Wrong("NaN for two plain chunks: the buffer is overwritten when the next chunk arrives, so keep numbers, "
                    "not the chunks")
    if all(abs(y.sum() - 1) < 1e-9 for y in got):
        raise Wrong("each chunk is divided by its own sum; all chunks together must sum to 1")
    if not right(got, *first):
        if abs(got[1].sum() / reference.softmax(np.concatenate(first))[3:].sum() - 1) < 1e-9:
            raise Wrong("the early chunks use the state so far; write only after the last chunk has been merged")
        raise Wrong("the two chunks have different maxima: each normalizer needs its factor before the two are added")
    if not np.isfinite(np.concatenate(run([900.0, 901.0], [902.0]))).all():
        raise Wrong("scores near 900 overflow: no exponential without the maximum")
    if not right(run([-900.0, -901.0], [-902.0]), [-900.0, -901.0], [-902.0]):
        raise Wrong("a row far below 0 fails: was the running maximum started at 0?")
    for chunks in (([], [1.0, 2.0]), ([1.0], [], [2.0, 3.0])):
        got = run(*chunks)
        if not right(got, *chunks):
            if np.isnan(np.concatenate(got)).any():
                raise Wrong("an empty chunk at the start turns the row NaN: -inf - (-inf) needs a guard")
            raise Wrong("an empty chunk must change nothing; its state is reference.EMPTY")
    for chunks in (([-INF, -INF], [1.0, 2.0]), ([-INF], [], [-INF, 5.0], [-INF]), ([3.0], [-INF, -INF], [-INF, 4.0])):
        if not right(run(*chunks), *chunks):
            raise Wrong("a chunk of masked elements breaks the row; its state is (-inf, 0), that of an empty chunk")
    if not right(run([-INF, -INF], [-INF]), [-INF, -INF], [-INF]):
        raise Wrong("a row that is masked everywhere has no softmax: NaN, as in torch")
    if not np.isnan(np.concatenate(run([1.0, 2.0], [NAN], [3.0]))).all():
        raise Wrong("a NaN in one chunk must make the whole row NaN")
    for chunks in ((), ([],), ([], [])):
        run(*chunks)
    rng = np.random.default_rng(9)
    for _ in range(20):
        lengths = rng.integers(0, 12, size=rng.integers(1, 9))
        chunks = [rng.standard_normal(n) * rng.choice([1, 30, 300]) for n in lengths]
        if not right(run(*chunks), *chunks):
            raise Wrong(f"random chunks of {[len(c) for c in chunks]} elements: the result differs from the softmax "
                        "of the whole row")


# ----------------------------------------------------------------------------------------------- 04-average


def _average(a, b):
    m_a, d_a, o_a = a
    m_b, d_b, o_b = b
    m = np.maximum(m_a, m_b)
    if m == -np.inf:
        return -np.inf, 0.0, 0.0
    f_a, f_b = np.exp(m_a - m), np.exp(m_b - m)
    return m, d_a * f_a + d_b * f_b, o_a * f_a + o_b * f_b


def _average_plain(a, b):
    m, d, _ = _average(a, b)
    return m, d, a[2] + b[2]


def _average_swapped(a, b):
    m, d, _ = _average(a, b)
    return m, d, a[2] * np.exp(b[0] - m) + b[2] * np.exp(a[0] - m)


def _average_divides(a, b):
    m, d, o = _average(a, b)
    return m, d, o / d


def _average_weights(a, b):
    m, d, _ = _average(a, b)
    f_a, f_b = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, d, a[1] * f_a * a[2] + b[1] * f_b * b[2]


def _average_no_guard(a, b):
    m = np.maximum(a[0], b[0])
    f_a, f_b = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, a[1] * f_a + b[1] * f_b, a[2] * f_a + b[2] * f_b


def _average_early_return(a, b):
    if a[0] == -np.inf or b[0] == -np.inf:
        return a
    return _average_no_guard(a, b)


def _average_max(a, b):
    m, d, _ = _average(a, b)
    return m, d, a[2] if a[0] > b[0] else b[2]


@exercise(
    "04-average", "A third number: the weighted average",
    hints=(
        "o is a sum of the same exp(x - m) as d, only with a weight v in front. What happens to d at a new maximum?",
        "The same two factors: o = o_a * exp(m_a - m) + o_b * exp(m_b - m). No division until the very end.",
        "Both states empty: return (-inf, 0, 0) before you subtract -inf from -inf.",
    ),
    solution=_average,
    wrong={
        "o not rescaled": (_average_plain, "not rescaled"),
        "factors swapped": (_average_swapped, "swapped"),
        "divided by d": (_average_divides, "at the very end"),
        "weighted by d again": (_average_weights, "already a sum"),
        "no guard": (_average_no_guard, "-inf - (-inf)"),
        "guard drops the other state": (_average_early_return, "identity"),
        "o of the larger block": (_average_max, "both blocks"),
    },
)
def _judge_average(answer):
    def state(x, v):
        x, v = np.asarray(x, dtype=np.float64), np.asarray(v, dtype=np.float64)
        m, d = reference.state_of(x)
        with np.errstate(invalid="ignore"):
            return (-INF, 0.0, 0.0) if m == -INF else (m, d, np.sum(np.exp(x - m) * v))

    def run(a, b):
        with np.errstate(all="ignore"):
            got = call(answer, tuple(np.float64(n) for n in a), tuple(np.float64(n) for n in b))
        if not isinstance(got, (tuple, list)) or len(got) != 3:
            raise Wrong("return three numbers: m, d, o")
        try:
            got = tuple(float(n) for n in got)
        except (TypeError, ValueError):
            raise Wrong("return three plain numbers: m, d, o") from None
        return got

    def near(got, want):
        return all(g == w or abs(g - w) <= 1e-12 * max(1.0, abs(w)) for g, w in zip(got, want, strict=True))

    low, high = state([1.0, 0.0], [10.0, 20.0]), state([3.0, 2.0], [-4.0, 2.0])
    want = state([1.0, 0.0, 3.0, 2.0], [10.0, 20.0, -4.0, 2.0])
    for a, b in ((low, high), (high, low)):
        m, d, o = run(a, b)
        if not near((m, d), want[:2]):
            raise Wrong(f"m and d are merged as before: ({want[0]:g}, {want[1]:.4f}), you return ({m:g}, {d:.4f})")
        if near((o,), want[2:]):
            continue
        f_a, f_b = math.exp(a[0] - m), math.exp(b[0] - m)
        told = (
            (a[2] + b[2], "o was not rescaled: it is measured against the old maximum, like d"),
            (a[2] * f_b + b[2] * f_a, "the two factors are swapped: each o belongs to its own maximum"),
            (want[2] / d, "keep o as a sum; divide by d at the very end, once"),
            (a[1] * f_a * a[2] + b[1] * f_b * b[2], "o is already a sum over the block: no further weight d"),
            (a[2], "o must contain both blocks"), (b[2], "o must contain both blocks"),
        )
        for value, text in told:
            if near((o,), (value,)):
                raise Wrong(text)
        raise Wrong(f"o should be {want[2]:.4f}, you return {o:.4f}: bring both sums to the new maximum, then add")
    empty = (-INF, 0.0, 0.0)
    if any(math.isnan(n) for n in run(empty, empty)):
        raise Wrong("two empty states give NaN: -inf - (-inf) is NaN, so that case needs a guard")
    if run(empty, empty) != empty:
        raise Wrong("two empty states give the empty state (-inf, 0, 0)")
    if run(low, empty) != tuple(low) or run(empty, low) != tuple(low):
        raise Wrong("the empty state is the identity: merged with it, any state stays as it is")
    if not all(math.isnan(n) for n in (*run(empty, (NAN, NAN, NAN))[1:], *run((1.0, NAN, NAN), low)[1:])):
        raise Wrong("a NaN in one state must reach the result")
    rng = np.random.default_rng(10)
    for _ in range(50):
        x, v = rng.standard_normal(12) * rng.choice([1, 50, 800]), rng.standard_normal(12)
        cut = rng.integers(0, 13)
        if not near(run(state(x[:cut], v[:cut]), state(x[cut:], v[cut:])), state(x, v)):
            raise Wrong(f"12 random scores cut at {cut}: the merged state differs from that of the whole")


# --------------------------------------------------------------------------------------------- 04-butterfly


def _butterfly(m, d, shuffle):
    for offset in (16, 8, 4, 2, 1):
        m_other, d_other = shuffle(m, offset), shuffle(d, offset)
        m_new = np.maximum(m, m_other)
        safe = np.where(m_new == -np.inf, 0.0, m_new)  # two empty lanes: exp(-inf - 0) = 0
        d = d * np.exp(m - safe) + d_other * np.exp(m_other - safe)
        m = m_new
    return m, d


def _four_steps(m, d, shuffle):
    for offset in (8, 4, 2, 1):
        m, d = _butterfly_step(m, d, shuffle, offset)
    return m, d


def _butterfly_step(m, d, shuffle, offset):
    m_other, d_other = shuffle(m, offset), shuffle(d, offset)
    m_new = np.maximum(m, m_other)
    safe = np.where(m_new == -np.inf, 0.0, m_new)
    return m_new, d * np.exp(m - safe) + d_other * np.exp(m_other - safe)


def _overwritten_max(m, d, shuffle):
    for offset in (16, 8, 4, 2, 1):
        m_other, d_other = shuffle(m, offset), shuffle(d, offset)
        m = np.maximum(m, m_other)
        safe = np.where(m == -np.inf, 0.0, m)
        d = d * np.exp(m - safe) + d_other * np.exp(m_other - safe)
    return m, d


def _late_shuffle(m, d, shuffle):
    for offset in (16, 8, 4, 2, 1):
        m_new = np.maximum(m, shuffle(m, offset))
        safe = np.where(m_new == -np.inf, 0.0, m_new)
        d = d * np.exp(m - safe)
        d = d + shuffle(d, offset) * np.exp(shuffle(m, offset) - safe)
        m = m_new
    return m, d


def _butterfly_no_guard(m, d, shuffle):
    for offset in (16, 8, 4, 2, 1):
        m_other, d_other = shuffle(m, offset), shuffle(d, offset)
        m_new = np.maximum(m, m_other)
        d = d * np.exp(m - m_new) + d_other * np.exp(m_other - m_new)
        m = m_new
    return m, d


def _max_first(m, d, shuffle):
    for offset in (16, 8, 4, 2, 1):
        m = np.maximum(m, shuffle(m, offset))
    for offset in (16, 8, 4, 2, 1):
        d = d + shuffle(d, offset)
    return m, d


def _thirty_one(m, d, shuffle):
    m_all, d_all = m, d
    for offset in range(1, 32):
        m_other, d_other = shuffle(m, offset), shuffle(d, offset)
        m_new = np.maximum(m_all, m_other)
        safe = np.where(m_new == -np.inf, 0.0, m_new)
        d_all = d_all * np.exp(m_all - safe) + d_other * np.exp(m_other - safe)
        m_all = m_new
    return m_all, d_all


def _no_shuffle(m, d, shuffle):
    state = reference.state_of(np.repeat(m, 1))
    total = np.sum(np.where(m == -np.inf, 0.0, d * np.exp(m - state.row_max)))
    return np.full(32, state.row_max), np.full(32, total)


@exercise(
    "04-butterfly", "Merge the 32 lanes of a warp in five steps",
    hints=(
        "Five rounds with the offsets 16, 8, 4, 2, 1. In each round every lane merges with its partner's state.",
        "Fetch both m and d of the partner before you change anything, and keep the old m until d has been computed.",
        "Guard for all lanes at once: safe = np.where(m_new == -np.inf, 0.0, m_new); subtract safe in the exponents.",
    ),
    solution=_butterfly,
    wrong={
        "four steps": (_four_steps, "not heard"),
        "m overwritten too early": (_overwritten_max, "old maximum"),
        "d shuffled after its rescale": (_late_shuffle, "before you change"),
        "no guard": (_butterfly_no_guard, "-inf - (-inf)"),
        "d added without factors": (_max_first, "factor"),
        "31 steps": (_thirty_one, "five rounds"),
        "no shuffle": (_no_shuffle, "shuffle"),
    },
)
def _judge_butterfly(answer):
    lanes, calls = np.arange(32), 0

    def shuffle(values, offset):
        nonlocal calls
        calls += 1
        if not isinstance(offset, (int, np.integer)) or not 0 < offset < 32:
            raise Wrong("shuffle(values, offset): the offset is a whole number from 1 to 31")
        values = np.asarray(values, dtype=np.float64)
        if values.shape != (32,):
            raise Wrong("shuffle takes one value for each of the 32 lanes")
        return values[lanes ^ int(offset)]

    def run(m, d):
        nonlocal calls
        calls = 0
        with np.errstate(all="ignore"):
            got = call(answer, np.array(m, dtype=np.float64), np.array(d, dtype=np.float64), shuffle)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("return two arrays, m and d")
        try:
            got = tuple(np.asarray(v, dtype=np.float64) for v in got)
        except (TypeError, ValueError):
            raise Wrong("return two arrays of numbers, m and d") from None
        if any(v.shape != (32,) for v in got):
            raise Wrong("return m and d with one entry for each of the 32 lanes")
        if calls == 0:
            raise Wrong("a lane sees another lane's values only through shuffle")
        return got

    def total(m, d):
        state = EMPTY
        for pair in zip(m, d, strict=True):
            state = reference.merge(state, State(*pair))
        return state

    def near(got, want):
        return (got[0] == want[0]).all() and (abs(got[1] - want[1]) <= 1e-12 * max(1.0, want[1])).all()

    rng = np.random.default_rng(11)
    ones = np.ones(32)
    m, d = run(np.zeros(32), ones)  # no factors yet
    if not near((m, d), (0.0, 32.0)):
        if (d == d[0]).all() and d[0] in (2, 4, 8, 16):
            raise Wrong(f"after your rounds a lane knows {d[0]:.0f} of 32 lanes; it has not heard of the others")
        raise Wrong("32 lanes with state (0, 1): every lane must end with (0, 32)")
    m, d = rng.standard_normal(32) * 3, 1 + rng.random(32)
    want, got = total(m, d), run(m, d)
    if not (got[0] == want.row_max).all():
        raise Wrong("every lane must end with the maximum of all 32 lanes")
    if not near(got, want):
        high = m.max()
        if np.allclose(got[1], d.sum()):
            raise Wrong("the lanes have different maxima: each d needs its factor before it is added")
        late = _late_shuffle(m, d, shuffle)[1]
        if np.allclose(got[1], late):
            raise Wrong("fetch the partner's m and d before you change your own: its d no longer fits its m")
        if np.all(got[1] >= want.normalizer * (1 - 1e-12)) and np.isfinite(high):
            raise Wrong("d is too large: does its factor still use the old maximum, or has m been overwritten already?")
        raise Wrong("random lanes: d differs from the merge of all 32 states")
    if calls > 10:
        raise Wrong(f"{calls} shuffles: five rounds of two are enough, because a partner brings all that it has merged")
    idle = np.r_[rng.standard_normal(5), np.full(27, -INF)]
    for order in (idle, idle[::-1], rng.permutation(idle), np.full(32, -INF)):
        weights = np.where(order == -INF, 0.0, 2.0)
        got = run(order, weights)
        if np.isnan(got[0]).any() or np.isnan(got[1]).any():
            raise Wrong("idle lanes with state (-inf, 0) turn NaN: -inf - (-inf) needs a guard")
        if not near(got, total(order, weights)):
            raise Wrong("idle lanes with state (-inf, 0) must not change the result")
    spread = np.linspace(-1000, 1000, 32)
    for order in (spread, -spread, rng.permutation(spread)):
        if not near(run(order, ones), total(order, ones)):
            raise Wrong("lanes from -1000 to 1000: the result differs from the merge of all 32 states")
    spoiled = np.where(lanes == 13, NAN, 1.0)
    if not np.isnan(run(ones, spoiled)[1]).all() or not np.isnan(run(spoiled, spoiled)[1]).all():
        raise Wrong("a NaN in one lane must reach every lane")

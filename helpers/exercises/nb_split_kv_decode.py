"""Exercises of beyond/split_kv_decode."""

from __future__ import annotations

import math

import numpy as np

from helpers.exercises import Wrong, call, exercise

INF, NAN = math.inf, math.nan

# ------------------------------------------------------------------------------------------------ split-plan

_PLAN = (268_435_456, 8, 66, 1_098_240)


@exercise(
    "split-plan", "Plan a decoding step by hand",
    hints=(
        "K and V have 8 heads each, whatever the number of query heads. A number of bf16 has 2 bytes.",
        "One block serves all query heads that share a head of the cache. There are 132 * 4 places for blocks.",
        "A block that is one of several writes m, d and the 128 numbers of O in fp32, for each query head that it serves.",
    ),
    solution=_PLAN,
    wrong={
        "K alone": ((134_217_728, 8, 66, 1_098_240), "V is read too"),
        "a cache for every query head": ((1_073_741_824, 8, 66, 1_098_240), "8 heads, not 32"),
        "four bytes": ((536_870_912, 8, 66, 1_098_240), "2 bytes"),
        "a block for every query head": ((268_435_456, 32, 66, 1_098_240), "share a block"),
        "one place a multiprocessor": ((268_435_456, 8, 17, 1_098_240), "4 blocks at once"),
        "one split too few": ((268_435_456, 8, 65, 1_098_240), "8 places stay empty"),
        "O alone": ((268_435_456, 8, 66, 1_081_344), "m and d"),
        "once for a block": ((268_435_456, 8, 66, 274_560), "each of the 32 query heads"),
        "written in bf16": ((268_435_456, 8, 66, 549_120), "fp32"),
    },
)
def _judge_plan(answer):
    try:
        values = [float(v) for v in answer]
    except (TypeError, ValueError):
        raise Wrong("give four numbers: cache_bytes, blocks, splits, state_bytes") from None
    if len(values) != 4:
        raise Wrong(f"give four numbers; you gave {len(values)}")
    told = (
        {134_217_728: "cache_bytes: that is K alone, and V is read too",
         1_073_741_824: "cache_bytes: the cache has 8 heads, not 32; query heads share them",
         536_870_912: "cache_bytes: a number of bf16 has 2 bytes"},
        {32: "blocks: the 4 query heads of a cache head share a block, so that K and V are read once"},
        {17: "splits: a multiprocessor holds 4 blocks at once; with one on each, three quarters of the places are empty",
         65: "splits: 8 * 65 = 520 blocks, and 8 places stay empty"},
        {1_081_344: "state_bytes: a state is (m, d, O); you left out m and d",
         274_560: "state_bytes: a state has 130 numbers of 4 bytes, and each of the 32 query heads has one in every split",
         549_120: "state_bytes: states are kept in fp32, 4 bytes a number, whatever the cache holds"},
    )
    for value, want, known, name in zip(values, _PLAN, told, ("cache_bytes", "blocks", "splits", "state_bytes"), strict=True):
        if value != want:
            raise Wrong(known.get(value, f"{name}: not {value:g}; write down what one block reads and writes"))


# ----------------------------------------------------------------------------------------------- split-merge


def _merge(m, d, O):  # noqa: E741
    top = m.max()
    if top == -np.inf:
        return np.zeros(O.shape[1]), -np.inf
    weights = np.exp(m - top)
    total = (weights * d).sum()
    return weights @ O / total, top + np.log(total)


def _merge_mean(m, d, O):  # noqa: E741
    return (O / d[:, None]).mean(axis=0), _merge(m, d, O)[1]


def _merge_by_d(m, d, O):  # noqa: E741
    return O.sum(axis=0) / d.sum(), _merge(m, d, O)[1]


def _merge_no_max(m, d, O):  # noqa: E741
    weights = np.exp(m)
    total = (weights * d).sum()
    return weights @ O / total, np.log(total)


def _merge_no_guard(m, d, O):  # noqa: E741
    weights = np.exp(m - m.max())
    total = (weights * d).sum()
    return weights @ O / total, m.max() + np.log(total)


def _merge_each_guarded(m, d, O):  # noqa: E741
    return np.nan_to_num(_merge(m, d, O)[0]), _merge(m, d, O)[1]


def _merge_not_divided(m, d, O):  # noqa: E741
    weights = np.exp(m - m.max())
    return weights @ O, m.max() + np.log((weights * d).sum())


def _merge_lse_without_m(m, d, O):  # noqa: E741
    o, lse = _merge(m, d, O)
    return o, lse - m.max() if lse > -np.inf else lse


@exercise(
    "split-merge", "Merge all splits at once",
    hints=(
        "The new maximum is m.max(). Every split then gets one factor, exp(m - m.max()), for its d and for its O.",
        "Sum d and O over the splits, each times its factor; then divide, once.",
        "If no split has seen a key, m.max() is -inf: return zeros and -inf. Otherwise lse = m.max() + log of the summed d.",
    ),
    solution=_merge,
    wrong={
        "mean of the outputs": (_merge_mean, "not equal shares"),
        "factors forgotten": (_merge_by_d, "different maxima"),
        "exp(m) without the maximum": (_merge_no_max, "near 1000"),
        "no guard": (_merge_no_guard, "no split has seen a key"),
        "NaN turned into 0": (_merge_each_guarded, "NaN"),
        "O not divided": (_merge_not_divided, "not divided"),
        "lse without m": (_merge_lse_without_m, "lse"),
    },
)
def _judge_merge(answer):
    def run(m, d, O):  # noqa: E741
        with np.errstate(all="ignore"):
            got = call(answer, m.copy(), d.copy(), O.copy())
            try:
                o, lse = got
                return np.asarray(o, np.float64).reshape(O.shape[1]), float(lse)
            except (TypeError, ValueError):
                raise Wrong("return (o, lse): an array of D numbers, and one number") from None

    def states(*maxima):
        rng = np.random.default_rng(len(maxima))
        m, d, O = np.array(maxima, float), rng.uniform(1, 9, len(maxima)), rng.standard_normal((len(maxima), 5))  # noqa: E741
        O *= d[:, None]  # noqa: E741
        d[m == -INF], O[m == -INF] = 0, 0
        return m, d, O

    def right(got, *state):
        o, lse = _merge(*state)
        return np.allclose(got[0], o, rtol=1e-10, atol=0), np.isclose(got[1], lse, rtol=1e-10, atol=1e-12) or got[1] == lse

    state = states(2.0, 2.0, 2.0)
    got = run(*state)
    if not right(got, *state)[0]:
        if np.allclose(got[0], (state[2] / state[1][:, None]).mean(axis=0)):
            raise Wrong("the splits have not equal shares: the one with the larger d counts more")
        if np.allclose(got[0], state[2].sum(axis=0)):
            raise Wrong("o is not divided by the d of all splits together")
        raise Wrong("three splits with the same maximum: o is the sum of their O, divided by the sum of their d")
    state = states(0.5, 3.0, -1.0, 2.5)
    got = run(*state)
    if not right(got, *state)[0]:
        raise Wrong("four splits with different maxima: O and d of a split need the factor exp(m - m.max()) before they are added")
    if not right(got, *state)[1]:
        raise Wrong("lse is wrong: it is m.max() plus the log of the summed d")
    for level in (1000.0, -1000.0):
        state = states(level, level - 3)
        if not all(right(run(*state), *state)):
            raise Wrong(f"maxima near {level:g}: exp(m) leaves the range; subtract the largest m first")
    state = states(1.0, -INF, 2.0)
    if not all(right(run(*state), *state)):
        raise Wrong("a split that has seen no key, (-inf, 0, 0), must change nothing")
    state = states(-INF, -INF)
    if not all(right(run(*state), *state)):
        raise Wrong("no split has seen a key: o = 0 and lse = -inf, not NaN")
    state = states(1.0, 2.0)
    state[1][0], state[2][0] = NAN, NAN
    if not np.isnan(run(*state)[0]).all():
        raise Wrong("a NaN in one split must make the result NaN")


# ---------------------------------------------------------------------------------------------- split-shares


def _shares(length, splits, step):
    chunk = -(-length // (splits * step)) * step
    return [(min(length, i * chunk), min(length, (i + 1) * chunk)) for i in range(splits)]


def _shares_floor(length, splits, step):
    chunk = length // (splits * step) * step
    return [(i * chunk, (i + 1) * chunk) for i in range(splits)]


def _shares_last_takes_the_rest(length, splits, step):
    chunk = length // (splits * step) * step
    return [(i * chunk, (i + 1) * chunk if i < splits - 1 else length) for i in range(splits)]


def _shares_not_clipped(length, splits, step):
    chunk = -(-length // (splits * step)) * step
    return [(i * chunk, (i + 1) * chunk) for i in range(splits)]


def _shares_any_start(length, splits, step):
    chunk = -(-length // splits)
    return [(min(length, i * chunk), min(length, (i + 1) * chunk)) for i in range(splits)]


def _shares_inclusive(length, splits, step):
    return [(a, b - 1) for a, b in _shares(length, splits, step)]


def _shares_dropped(length, splits, step):
    return [(a, b) for a, b in _shares(length, splits, step) if a < b]


@exercise(
    "split-shares", "Share out the keys",
    hints=(
        "How many steps has the row? How many of them does a block get if none may get more than it must?",
        "chunk = ceil(length / (splits * step)) * step. Block i begins at i * chunk.",
        "Neither begin nor end may lie behind the row: take min(length, ...) of both.",
    ),
    solution=_shares,
    wrong={
        "tail lost": (_shares_floor, "nobody takes"),
        "the last takes the rest": (_shares_last_takes_the_rest, "wait for it"),
        "not clipped": (_shares_not_clipped, "behind the end"),
        "starts anywhere": (_shares_any_start, "multiple of step"),
        "end inclusive": (_shares_inclusive, "end is the first key"),
        "empty shares dropped": (_shares_dropped, "one pair for every block"),
    },
)
def _judge_shares(answer):
    cases = (1024, 4, 32), (1000, 4, 32), (33, 4, 32), (1, 3, 8), (0, 2, 8), (4096, 7, 64), (100, 100, 32), (777, 1, 16)
    for length, splits, step in cases:
        got, case = call(answer, length, splits, step), f"length {length}, {splits} splits, step {step}: "
        try:
            pairs = [(int(a), int(b)) for a, b in got]
        except (TypeError, ValueError):
            raise Wrong("return a list of pairs (begin, end)") from None
        if len(pairs) != splits:
            raise Wrong(f"{case}one pair for every block, also for those without keys; you gave {len(pairs)}")
        if any(end > length for _, end in pairs):
            raise Wrong(f"{case}a share ends behind the end of the row")
        taken = [key for begin, end in pairs for key in range(begin, end)]
        if len(set(taken)) < len(taken):
            raise Wrong(f"{case}some keys are taken twice")
        missing = sorted(set(range(length)) - set(taken))
        if len(missing) > 1 and set(missing) <= {end for _, end in pairs}:
            raise Wrong(f"{case}end is the first key that the block does not take; key {missing[0]} is left out")
        if missing:
            raise Wrong(f"{case}nobody takes key {missing[0]}")
        if any(begin % step for begin, end in pairs if begin < end):
            raise Wrong(f"{case}every share must begin at a multiple of step")
        longest, fair = max(end - begin for begin, end in pairs), -(-length // (splits * step)) * step
        if longest > fair:
            raise Wrong(f"{case}one block gets {longest} keys, and all others wait for it; {fair} are enough")

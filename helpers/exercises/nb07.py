"""Exercises of notebook 07: the limit of registers, the long path of a warp, merging a warp's states, one pass in registers."""

from __future__ import annotations

import numpy as np

from helpers import cpu_device, reference
from helpers.exercises import Wrong, call, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

# -------------------------------------------------------------------------------------------------- 07-limit


def _longest_row(threads):
    registers = min(255, 65536 // threads // 8 * 8)
    return threads * ((registers - 30) // 4 * 4)


@exercise(
    "07-limit", "The longest row in registers",
    hints=(
        "How many registers does each thread get if the block takes all 65,536? Two rules lower that number: multiples of 8, and 255.",
        "Take away the 30 that the kernel needs for itself, and round down to whole vectors of four. That is what one thread keeps.",
        "registers = min(255, 65536 // threads // 8 * 8); the answer is threads * ((registers - 30) // 4 * 4).",
    ),
    solution=_longest_row,
    wrong={
        "the article's": (lambda threads: 8192, "the same for every block"),
        "all registers": (lambda threads: 65536, "whole register file"),
        "nothing for the kernel": (lambda threads: threads * (min(255, 65536 // threads // 8 * 8) // 4 * 4), "30 of them"),
        "255 each": (lambda threads: threads * ((255 - 30) // 4 * 4), "65,536 together"),
        "no 255": (lambda threads: threads * ((65536 // threads // 8 * 8 - 30) // 4 * 4), "255"),
        "no steps of 8": (lambda threads: threads * ((min(255, 65536 // threads) - 30) // 4 * 4), "multiple of 8"),
        "no vectors": (lambda threads: threads * (min(255, 65536 // threads // 8 * 8) - 30), "vectors of four"),
        "one thread": (lambda threads: (min(255, 65536 // threads // 8 * 8) - 30) // 4 * 4, "one thread"),
    },
)
def _judge_limit(answer):
    sizes = (1024, 768, 512, 256, 128, 32)
    values = {}
    for threads in sizes:
        value = call(answer, threads)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise Wrong(f"return a whole number, not {value!r}")
        values[threads] = int(value)
    if len(set(values.values())) == 1 and values[1024] != 65536:
        raise Wrong(f"{values[1024]:,} is the same for every block, but registers are shared out among the threads")
    for threads in sizes:
        got, want = values[threads], _longest_row(threads)
        if got == want:
            continue
        share = min(255, 65536 // threads // 8 * 8)
        if got * threads == want:
            raise Wrong(f"{threads} threads: {got:,} is what one thread keeps; the row is spread over all of them")
        if got == 65536 and values[128] == 65536:
            raise Wrong("65,536 is the whole register file; every thread needs 30 of them for other things")
        if got == threads * (share // 4 * 4):
            raise Wrong(f"{threads} threads: each thread has {share} registers, but the kernel needs 30 of them for itself")
        if got == threads * 224:
            raise Wrong(f"{threads} threads with 255 registers each would need {255 * threads:,}; a block has 65,536 together")
        if got > want and threads < 256:
            raise Wrong(f"{threads} threads: no thread can name more than 255 registers, however many are free")
        if got == threads * (share - 30):
            raise Wrong(f"{threads} threads: {share - 30} elements are no whole vectors of four")
        if got == threads * ((min(255, 65536 // threads) - 30) // 4 * 4):
            raise Wrong(f"{threads} threads: {65536 // threads} registers a thread are no multiple of 8")
        raise Wrong(f"{threads} threads: not {got:,}; start from the registers that one thread gets")


# --------------------------------------------------------------------------------------------------- 07-long


def _long_steps(n, lanes):
    return sum(1 - (1 - 1 / k) ** lanes for k in range(1, n + 1))


@exercise(
    "07-long", "How often does a warp take the long path?",
    hints=(
        "One lane: the k-th element is a new maximum with probability 1/k (notebook 03).",
        "The warp takes the short path at step k only if none of its lanes meets a new maximum. The lanes are independent.",
        "Add 1 - (1 - 1/k)**lanes for k = 1, 2, …, n.",
    ),
    solution=_long_steps,
    wrong={
        "one lane": (lambda n, lanes: sum(1 / k for k in range(1, n + 1)), "one lane"),
        "lanes added up": (lambda n, lanes: sum(lanes / k for k in range(1, n + 1)), "only once"),
        "capped": (lambda n, lanes: sum(min(1, lanes / k) for k in range(1, n + 1)), "cannot be added"),
        "all lanes": (lambda n, lanes: sum((1 / k) ** lanes for k in range(1, n + 1)), "at least one"),
        "short path": (lambda n, lanes: sum((1 - 1 / k) ** lanes for k in range(1, n + 1)), "short path"),
        "share": (lambda n, lanes: _long_steps(n, lanes) / n, "share"),
        "first step forgotten": (lambda n, lanes: _long_steps(n, lanes) - 1, "first element"),
        "one step short": (lambda n, lanes: sum(1 - (1 - 1 / k) ** lanes for k in range(1, n)), "n steps"),
        "always": (lambda n, lanes: n, "no step"),
    },
)
def _judge_long(answer):
    for n, lanes in ((64, 32), (1, 1), (2, 1), (10, 1), (256, 32), (4, 8), (1000, 2)):
        value = call(answer, n, lanes)
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise Wrong(f"return a number, not {value!r}") from None
        k = np.arange(1, n + 1)
        want, quiet = _long_steps(n, lanes), float(((1 - 1 / k) ** lanes).sum())
        if abs(value - want) <= 1e-6 * want:
            continue
        case = f"n = {n}, {lanes} lanes: "
        known = {
            "the first element is a new maximum too, always": want - 1,
            "that leaves one out: there are n steps, k = 1 to n": want - (1 - (1 - 1 / n) ** lanes),
            "that is the short path; asked is the long one": quiet,
            "that is the share of the steps; give their number": want / n,
            "that counts the new maxima of one lane": float((1 / k).sum()),
            "two lanes with a new maximum at the same step make the warp take the long path only once": float((lanes / k).sum()),
            "probabilities of events that can happen together cannot be added; take the probability that none happens":
                float(np.minimum(1, lanes / k).sum()),
            "that is the chance that all lanes meet a new maximum at once; at least one is enough": float(((1 / k) ** lanes).sum()),
            "that would mean that no step is short": float(n),
        }
        for text, other in known.items():
            if abs(value - other) <= 1e-6 * max(1, abs(other)):
                raise Wrong(case + text)
        raise Wrong(f"{case}expected {want:.4g}, you return {value:.4g}")


# -------------------------------------------------------------------------------------------------- 07-merge

_MERGE = load("solutions/07_merge.cu")
_LOOP = "    for (int bit = 16; bit > 0; bit /= 2) {\n"
_GUARD = "        if (m_new == NEG_INF) continue;             // both empty; no shuffle is left out by that\n"
_BOTH, _THEN = "        d = d * expf(m - m_new) + d_other * expf(m_other - m_new);\n", "        m = m_new;\n    }\n    // --- end"
_OTHER = ("        const float m_other = __shfl_xor_sync(0xffffffff, m, bit);\n"
          "        const float d_other = __shfl_xor_sync(0xffffffff, d, bit);\n")
_LANE_BY_LANE = "    const float m_own = m, d_own = d;\n    for (int lane_i = 1; lane_i < 32; ++lane_i) {\n"
_ONE_BY_ONE = _OTHER.replace("_xor", "").replace("m, bit", "m_own, lane_i").replace("d, bit", "d_own, lane_i")


def _explain_merge(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind == "collective":
        return f"the shuffle{where} is not executed by all 32 lanes that its mask names: keep it out of every branch"
    if error.kind == "unwritten":
        return f"lse[{error.index}] is never written"
    return None


@exercise(
    "07-merge", "Merge the states of a warp",
    hints=(
        "In 5 exchanges (lanes 16, 8, 4, 2, 1 apart) fetch the partner's m and d, and merge the two states as in notebook 04.",
        "A lane may have no elements: its state is (-inf, 0). If both are empty, m - m_new is -inf - -inf. What should happen then?",
        "The new maximum must be known before d is rescaled, and the old one is still needed for that. "
        'show_diff("exercises/07_merge.cu", "solutions/07_merge.cu") shows a solution.',
    ),
    solution="solutions/07_merge.cu",
    untouched="6a88b2ee",
    wrong={
        "not rescaled": (changed(_MERGE, (_BOTH, "        d = d + d_other;\n")), "different maxima"),
        "partner not rescaled": (changed(_MERGE, (" + d_other * expf(m_other - m_new)", " + d_other")), "one side"),
        "m too early": (changed(_MERGE, (_BOTH + _THEN, "        m = m_new;\n" + _BOTH + _THEN[18:])), "old maximum"),
        "no guard": (changed(_MERGE, (_GUARD, "")), "-inf - -inf"),
        "four exchanges": (changed(_MERGE, (_LOOP, _LOOP.replace("16", "8"))), "half of the lanes"),
        "shuffle in a branch": (changed(_MERGE, (_LOOP, _LOOP.replace("{", "if (m != NEG_INF) {"))), "out of every branch"),
        "one by one": (changed(_MERGE, (_LOOP, _LANE_BY_LANE), (_OTHER, _ONE_BY_ONE)), "62 shuffles"),
        "guard returns": (changed(_MERGE, (_GUARD, _GUARD.replace("continue", "return"))), "all 32 lanes"),
        "only d": (changed(_MERGE, (_THEN, _THEN[18:])), "maximum of the row"),
        "wrong lane writes": (changed(_MERGE, ("if (lane == 0) lse", "if (lane == N) lse")), "never written"),
    },
)
def _judge_merge(answer):
    kernel = build(answer, "row_lse")
    rng = np.random.default_rng(7)
    normal = [rng.standard_normal((3, N), dtype=np.float32) for N in (32, 700, 33)]
    falling = np.tile(-np.arange(100, dtype=np.float32) / 4, (2, 1))
    half_masked = rng.standard_normal((2, 64), dtype=np.float32)
    half_masked[0, :50] = half_masked[1, 7:] = -np.inf
    spoiled = rng.standard_normal((2, 70), dtype=np.float32)
    spoiled[0, 33] = spoiled[1, 69] = np.nan
    lonely = np.full((2, 40), -np.inf, np.float32)  # nothing but a NaN
    lonely[0, 5] = lonely[1, 39] = np.nan
    inputs = {
        "random rows": [*normal, falling],
        "rows far below 0": [normal[2] - 1000, rng.standard_normal((2, 40)).astype(np.float32) - 90],
        "rows shorter than a warp": [rng.standard_normal((2, N), dtype=np.float32) for N in (31, 5, 1)],
        "rows masked in part": [half_masked], "rows masked in whole": [np.full((2, 40), -np.inf, np.float32)],
        "rows with a NaN": [spoiled], "rows of -inf and one NaN": [lonely],
    }
    for name, arrays in inputs.items():
        for X in arrays:
            M, N = X.shape
            case = f"{name}, N = {N}"
            x, lse = cpu_device.asarray(X), cpu_device.empty(M, np.float32)
            c = run(kernel, case, (M,), (32,), (x, lse, np.int32(M), np.int32(N)), (lse,), _explain_merge, seed=1)
            _compare_lse(case, X, lse.get())
            if c.loads.bytes > 4 * M * N:
                raise Wrong(f"{case}: right, but x is read more than once; the states of the lanes are enough")
            if c.shared_stores.instructions:
                raise Wrong(f"{case}: right, but through shared memory; the lanes of a warp can exchange registers by shuffles")
            if c.shuffles > 10 * M:
                raise Wrong(f"{case}: right, with {c.shuffles // M} shuffles a warp; 10 are enough, m and d in 5 exchanges")


def _compare_lse(case, X, got):
    want = reference.lse(X)
    same = np.isnan(got) == np.isnan(want)
    with np.errstate(invalid="ignore"):
        same &= np.isnan(want) | (got == want) | (abs(got - want) <= 4e-6 * np.maximum(1, abs(want)))
    if same.all():
        return
    row = int(np.flatnonzero(~same)[0])
    x, value = X[row].astype(np.float64), float(got[row])
    if np.isnan(value):
        raise Wrong(f"{case}: row {row} gives NaN; where can -inf - -inf arise? A lane without elements has the state (-inf, 0)")
    if np.isnan(want[row]):
        raise Wrong(f"{case}: row {row} holds a NaN, and its LSE is {value:.4g}")
    lanes = [x[i::32] for i in range(min(32, len(x)))]
    m = np.array([lane.max() for lane in lanes])
    d = np.array([np.exp(lane - lane.max()).sum() if lane.max() > -np.inf else 0 for lane in lanes])
    parts = {
        "that is the LSE of lane 0's elements alone": reference.lse(lanes[0]),
        "half of the lanes are missing: a lane reaches all others in 5 exchanges": reference.lse(np.concatenate(lanes[:16])),
        "the d of lanes with different maxima were added as they are; both need a factor": m.max() + np.log(d.sum()),
    }
    for text, other in parts.items():
        if np.isfinite(other) and abs(value - other) <= 1e-5 * max(1, abs(other)):
            raise Wrong(f"{case}: {text}")
    if value < want[row] - 1e-3:
        raise Wrong(f"{case}: LSE {want[row]:.4f}, you return {value:.4f}, too small; is m in the end the maximum of the row?")
    raise Wrong(f"{case}: LSE {want[row]:.4f}, you return {value:.4f}; each d needs the factor from its own old maximum to the new one, "
                f"and not only one side")


# ----------------------------------------------------------------------------------------------- 07-one-pass

_ONE = load("solutions/07_one_pass.cu")
_LOAD = "v[i] = lane + 32 * i < N ? x[lane + 32 * i] : NEG_INF;"
_WRITE = "        if (lane + 32 * i < N) y[lane + 32 * i] = (v[i] - m) - log_d;"
_LIST = "    float v[PER_LANE], m = NEG_INF;"
_SHARED = "    __shared__ volatile float kept[32][PER_LANE];\n    volatile float *v = kept[lane], m = NEG_INF;"


def _explain_one(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind == "out_of_bounds" and error.array == "x":
        return f"x[{error.index}] is read{where}, behind the end: a short row does not fill all PER_LANE places"
    if error.kind == "out_of_bounds" and error.array == "y":
        return f"y[{error.index}] is written{where}, behind the end: a short row does not fill all PER_LANE places"
    if error.kind == "out_of_bounds":
        return (f"{error.array}[{error.index}]{where} lies outside of the lane's own array: its place i holds the row's element "
                "lane + 32 * i")
    if error.kind == "block_race":
        return f"two blocks write y[{error.index}]{where}: a short row runs into the next"
    if error.kind == "unwritten":
        return f"y[{error.index}] is never written"
    if error.kind == "collective":
        return f"the shuffle{where} is not executed by all 32 lanes that its mask names"
    return None


@exercise(
    "07-one-pass", "One pass in registers",
    hints=(
        "Lane l has the elements l, l + 32, l + 64, … as before. Load all of them first, into float v[PER_LANE], in a loop whose "
        "length is the constant PER_LANE.",
        "A row of N < 512 leaves places empty. Fill them with what changes neither the maximum nor the sum.",
        "v[i] = lane + 32 * i < N ? x[lane + 32 * i] : NEG_INF; then the three loops of before, over v, and a guard before the "
        'store. show_diff("exercises/07_one_pass.cu", "solutions/07_one_pass.cu") shows a solution.',
    ),
    solution="solutions/07_one_pass.cu",
    untouched="8c43fd2e",
    wrong={
        "two reads": (changed(_ONE, ("] = (v[i]", "] = (((volatile const float*)x)[lane + 32 * i]")), "2 times"),
        "no guard at the load": (changed(_ONE, (_LOAD, "v[i] = x[lane + 32 * i];")), "x["),
        "no guard at the store": (changed(_ONE, ("        if (lane + 32 * i < N) y", "        y")), "short row runs"),
        "numbered by the row": (changed(_ONE, ("m = nan_max(m, v[i]);", "m = nan_max(m, v[lane + 32 * i]);")), "own array"),
        "filled with 0": (changed(_ONE, (_LOAD, _LOAD.replace("NEG_INF", "0"))), "empty places"),
        "lane maximum": (changed(_ONE, ("    m = warp_max(m);\n", "")), "each lane"),
        "lane sum": (changed(_ONE, ("warp_sum(d)", "d")), "sum of one lane"),
        "one sum for two": (changed(_ONE, ("(v[i] - m) - log_d", "v[i] - (m + log_d)")), "digits"),
        "log of the quotient": (changed(_ONE, ("(v[i] - m) - log_d", "logf(expf(v[i] - m) / expf(log_d))")), "underflow"),
        "kept in shared memory": (changed(_ONE, (_LIST, _SHARED)), "shared memory"),
        "first elements only": (changed(_ONE, ("#define PER_LANE 16", "#define PER_LANE 8")), "never written"),
        "softmax": (changed(_ONE, ("(v[i] - m) - log_d", "expf((v[i] - m) - log_d)")), "logarithm"),
    },
)
def _judge_one(answer):
    kernel = build(answer, "log_softmax")
    rng = np.random.default_rng(17)
    masked = rng.standard_normal((2, 100), dtype=np.float32)
    masked[0, ::2] = masked[1, :64] = -np.inf
    spoiled = rng.standard_normal((2, 70), dtype=np.float32)
    spoiled[0, 0] = spoiled[1, 69] = np.nan
    inputs = {
        "random rows": [rng.standard_normal((3, N), dtype=np.float32) for N in (512, 480, 33, 1)],
        "rows far below 0": [rng.standard_normal((2, 45)).astype(np.float32) - 1000],
        "rising and falling rows": [np.stack([np.linspace(-a, a - 400, 200, dtype=np.float32) for a in (400, 0)])],
        "one element far above the others": [np.float32(1000) * (np.arange(512) == 33 * np.arange(16)[:, None] % 512)],
        "rows near 30,000": [(rng.standard_normal((2, 300)) + 30_000).astype(np.float32)],
        "masked elements": [masked], "rows masked in whole": [np.full((2, 40), -np.inf, np.float32)], "rows with a NaN": [spoiled],
    }
    for name, arrays in inputs.items():
        for X in arrays:
            M, N = X.shape
            case = f"{name}, N = {N}"
            x, y = cpu_device.asarray(X), cpu_device.empty((M, N), np.float32)
            c = run(kernel, case, (M,), (32,), (x, y, np.int32(M), np.int32(N)), (y,), _explain_one, seed=1)
            _compare_log(case, X, y.get())
            if c.shared_stores.instructions:
                raise Wrong(f"{case}: right, but the row is kept in shared memory; 16 floats a lane fit into registers")
            if c.loads.bytes > 4 * M * N:
                raise Wrong(f"{case}: right, but x is read {c.loads.bytes / (4 * M * N):.3g} times")


def _compare_log(case, X, got):
    want = reference.log_softmax(X)
    with np.errstate(invalid="ignore"):
        right = np.isnan(got) & np.isnan(want) | (got == want) | (abs(got - want) <= 2e-6 * (1 + abs(want)))
    if right.all():
        return
    r, j = (int(i) for i in np.argwhere(~right)[0])
    x, N = X[r].astype(np.float64), X.shape[1]
    said = f"row {r}, column {j} should be {want[r, j]:.4f} and is {got[r, j]:.4f}"
    with np.errstate(all="ignore"):
        if np.isnan(want[r, j]):
            raise Wrong(f"{case}: the whole row should be NaN, as in torch")
        if np.allclose(got[r], np.exp(want[r]), rtol=1e-4, atol=1e-6):
            raise Wrong(f"{case}: that is the softmax; asked is its logarithm")
        if abs(X[r]).max() > 100 and abs(got[r, j] - want[r, j]) < 1e-7 * abs(X[r]).max():
            raise Wrong(f"{case}: {said}; subtract m first: m + log d rounds away the digits of log d (notebook 02)")
        if got[r, j] == -np.inf:
            raise Wrong(f"{case}: {said}; exp underflows before the logarithm can bring it back")
        lanes = [x[i::32] for i in range(min(32, N))]
        lane, own = lanes[j % 32], sum(np.exp(part - part.max()).sum() for part in lanes)
        of_lane = np.exp(lane - x.max()).sum()
        told = {"log d is the logarithm of the sum of one lane; the lanes' sums must be added": x.max() + np.log(of_lane),
                "each lane uses its own maximum; d must be measured from the row's": lane.max() + np.log(own)}
        for text, subtracted in told.items():
            if abs(got[r, j] - (x[j] - subtracted)) < 1e-3:
                raise Wrong(f"{case}: {text}")
        zeros = np.zeros(512 - N)
        if not abs(got[r] - reference.log_softmax(np.concatenate([x, zeros]))[:N]).max() > 1e-2:
            raise Wrong(f"{case}: {said}; the empty places count as elements that are 0")
    raise Wrong(f"{case}: {said}")

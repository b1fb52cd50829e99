"""Exercises of notebook 11: backward from the LSE, a loss over shards, and a plausible kernel with three mistakes."""

from __future__ import annotations

import math

import numpy as np

from helpers import cpu_device
from helpers.exercises import Wrong, call, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

INF, NAN = math.inf, math.nan


def _array(value, shape, name: str) -> np.ndarray:
    """`value` as a float64 array of the shape it must have."""
    if value is None:
        raise Wrong(f"return {name}")
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{name} must be an array of numbers") from None
    if array.shape != tuple(shape):
        raise Wrong(f"{name} has shape {array.shape}; it must be {tuple(shape)}")
    return array


def _near(got, want, rtol: float = 1e-9) -> bool:
    """Equal within rounding; a NaN or an infinity in `got` never passes."""
    return bool(np.isfinite(got).all() and np.all(np.abs(got - want) <= rtol * (np.abs(want) + np.abs(want).max(initial=0) + 1e-300)))


# ------------------------------------------------------------------------------------------------ 11-backward


def _backward(x, lse, dy):
    finite = np.where(lse == -np.inf, 0.0, lse)                # a dead row: exp(-inf - 0) is 0
    y = np.exp(x - finite[:, None])
    return y * (dy - (y * dy).sum(axis=1, keepdims=True))


def _softmax_of(x):
    """The probabilities, 0 in a dead row."""
    m = x.max(axis=1, keepdims=True)
    e = np.exp(x - np.where(m == -np.inf, 0, m))
    d = e.sum(axis=1, keepdims=True)
    return e / np.where(d == 0, 1, d)


def _from_probabilities(formula):
    """A wrong answer that differs only in the formula for dx."""
    return lambda x, lse, dy: formula(_softmax_of(x), dy)


def _overflowing(x, lse, dy):
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.exp(x) / np.exp(np.where(lse == -np.inf, 0, lse))[:, None]
        return y * (dy - (y * dy).sum(axis=1, keepdims=True))


def _unguarded(x, lse, dy):
    with np.errstate(invalid="ignore"):
        y = np.exp(x - lse[:, None])
    return y * (dy - (y * dy).sum(axis=1, keepdims=True))


def _every_nan_to_zero(x, lse, dy):
    return np.nan_to_num(_unguarded(x, lse, dy))


def _maximum_for_lse(x, lse, dy):
    m = x.max(axis=1, keepdims=True)
    y = np.exp(x - np.where(m == -np.inf, 0, m))
    return y * (dy - (y * dy).sum(axis=1, keepdims=True))


def _in_place(x, lse, dy):
    x -= np.where(lse == -np.inf, 0.0, lse)[:, None]
    np.exp(x, out=x)
    return x * (dy - (x * dy).sum(axis=1, keepdims=True))


@exercise(
    "11-backward", "Softmax backward from x and the LSE",
    hints=(
        "Two lines: y = np.exp(x - lse[:, None]), then the formula for dx. The sum runs over each row by itself.",
        "(y * dy).sum(axis=1, keepdims=True) has shape [M, 1], so that each row subtracts its own number.",
        "In a row of only -inf the LSE is -inf too, and -inf - (-inf) is NaN. Put 0 in its place inside the exponent: then y is 0, "
        "and dx as well.",
    ),
    solution=_backward,
    wrong={
        "the sum left out": (_from_probabilities(lambda y, dy: y * dy), "left out the sum"),
        "the plain mean": (_from_probabilities(lambda y, dy: y * (dy - dy.mean(axis=1, keepdims=True))), "mean of dy"),
        "the plain sum": (_from_probabilities(lambda y, dy: y * (dy - dy.sum(axis=1, keepdims=True))), "sum of dy must"),
        "the diagonal of the Jacobian": (_from_probabilities(lambda y, dy: y * (1 - y) * dy), "diagonal"),
        "log-softmax": (_from_probabilities(lambda y, dy: dy - y * dy.sum(axis=1, keepdims=True)), "log-softmax"),
        "one sum for all rows": (_from_probabilities(lambda y, dy: y * (dy - (y * dy).sum())), "own sum"),
        "sums over columns": (_from_probabilities(lambda y, dy: y * (dy - (y * dy).sum(axis=0, keepdims=True))), "columns"),
        "minus": (_from_probabilities(lambda y, dy: y * ((y * dy).sum(axis=1, keepdims=True) - dy)), "sign"),
        "exp(x) / exp(lse)": (_overflowing, "overflow"),
        "no guard": (_unguarded, "-inf - (-inf)"),
        "NaN turned into 0": (_every_nan_to_zero, "hides"),
        "maximum instead of LSE": (_maximum_for_lse, "maximum"),
        "x overwritten": (_in_place, "changed x"),
    },
)
def _judge_backward(answer):
    rng = np.random.default_rng(111)

    def ask(x, dy, case):
        lse = np.where(np.isneginf(x).all(axis=1), -INF, np.logaddexp.reduce(x, axis=1))
        given = x.copy(), lse.copy(), dy.copy()
        with np.errstate(all="ignore"):
            got = call(answer, *given)
        got = _array(got, x.shape, "dx")
        for name, before, after in zip(("x", "lse", "dy"), (x, lse, dy), given, strict=True):
            if not np.array_equal(before, after, equal_nan=True):
                raise Wrong(f"your function changed {name}, which the caller still needs")
        return got, _backward(x, lse, dy), _softmax_of(x), case

    x, dy = 2 * rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    _explain_backward(*ask(x, dy, "3 rows of 5"), dy)
    _explain_backward(*ask(x[:1], dy[:1], "one row"), dy[:1])
    _explain_backward(*ask(x[:, :1], dy[:, :1], "one column"), dy[:, :1])
    got, want, *_ = ask(x + 1000, dy, "")
    if not _near(got, want, 1e-8):
        raise Wrong("scores near 1000: exp(x) and exp(LSE) overflow; subtract first, exp(x - LSE)")
    masked = x.copy()
    masked[:, 1::2] = -INF
    got, want, *_ = ask(masked, dy, "")
    if not _near(got, want):
        raise Wrong("a row with some -inf: their y is exp(-inf) = 0, so their dx is 0, and the rest is as usual")
    masked[1] = -INF
    got, want, *_ = ask(masked, dy, "")
    if np.isnan(got[1]).any():
        raise Wrong("a row of only -inf: its LSE is -inf too, and -inf - (-inf) is NaN; its gradient should be 0")
    if not _near(got, want):
        raise Wrong("a row of only -inf should get the gradient 0, and leave the other rows alone")
    spoiled = dy.copy()
    spoiled[2, 0] = NAN
    got, *_ = ask(x, spoiled, "")
    if not np.isnan(got[2]).all():
        raise Wrong("a NaN in dy must spoil its row: turning every NaN into 0 hides it")


def _explain_backward(got, want, y, case, dy):
    if _near(got, want):
        return
    mean = (y * dy).sum(axis=1, keepdims=True)
    m = np.log(y)
    m = np.exp(m - m.max(axis=1, keepdims=True))
    told = (
        (y * dy, "that is y * dy: you left out the sum"),
        (y * (dy - dy.mean(axis=1, keepdims=True)), "the mean of dy must be weighted with y: sum of y * dy"),
        (y * (dy - dy.sum(axis=1, keepdims=True)), "the sum of dy must be weighted with y: sum of y * dy"),
        (y * (1 - y) * dy, "y * (1 - y) is only the diagonal of the Jacobian: every dy reaches every dx"),
        (dy - y * dy.sum(axis=1, keepdims=True), "that is the gradient of log-softmax"),
        (y * (dy - (y * dy).sum(axis=0, keepdims=True)), "that sums over the columns; a row is axis=1"),
        (y * (mean - dy), "the sign is turned round"),
        (m * (dy - (m * dy).sum(axis=1, keepdims=True)), "exp(x - maximum) is not divided by d yet; exp(x - LSE) is"),
    )
    for value, words in told:
        if _near(got, value):
            raise Wrong(f"{case}: {words}")
    if len(y) > 1:
        raise Wrong(f"{case}: each row subtracts its own sum: (y * dy).sum(axis=1, keepdims=True)")
    raise Wrong(f"{case}: not dx = y * (dy - sum of y * dy) with y = exp(x - LSE)")


# -------------------------------------------------------------------------------------------------- 11-shards


def _shards(parts, target):
    m = max(part.max() for part in parts)
    d = sum(np.exp(part - m).sum() for part in parts)
    logit, gradients, start = None, [], 0
    for part in parts:
        p = np.exp(part - m) / d
        if start <= target < start + len(part):
            logit = part[target - start]
            p[target - start] -= 1
        gradients.append(p)
        start += len(part)
    return (m - logit) + np.log(d), gradients


def _wrong_shards(maximum=max, normalise=True, merge=True, offset=True, onehot=True, loss=None):
    """A wrong answer: the solution with one thing changed."""

    def answer(parts, target):
        with np.errstate(all="ignore"):
            own = [part.max() for part in parts]
            m = maximum(own)
            sums = [np.exp(part - (m if merge else o)).sum() for part, o in zip(parts, own, strict=True)]
            d, gradients, start, logit = sum(sums), [], 0, 0.0
            for part, s, o in zip(parts, sums, own, strict=True):
                p = np.exp(part - (m if merge else o)) / ((d if merge else s) if normalise else 1)
                here = target - start if offset else target
                if 0 <= here < len(part):
                    logit = part[here]
                    if onehot:
                        p[here] -= 1
                gradients.append(p)
                start += len(part)
            value = (m - logit) + np.log(d) if loss is None else loss(m, d, logit, own, sums)
        return value, gradients

    return answer


def _naive_shards(parts, target):
    with np.errstate(all="ignore"):
        x = np.concatenate(parts)
        e = np.exp(x)
        p = e / e.sum()
        loss = -np.log(p[target])
        p[target] -= 1
        return loss, np.split(p, np.cumsum([len(part) for part in parts])[:-1])


def _lse_first(parts, target):
    _, gradients = _shards(parts, target)
    x = np.concatenate(parts)
    m = x.max()
    return (m + np.log(np.exp(x - m).sum())) - x[target], gradients


@exercise(
    "11-shards", "Cross-entropy over a vocabulary in pieces",
    hints=(
        "Each worker has the state of its piece: m_i = part.max() and d_i = sum of exp(part - m_i). Merge them as in notebook 04.",
        "The loss is (m - logit) + log d with the merged (m, d). Only one worker holds the target's logit: the one with "
        "start <= target < start + len(part).",
        "The gradient of a piece is exp(part - m) / d with the merged m and d, and 1 less at target - start in the one piece "
        "that holds the target.",
    ),
    solution=_shards,
    wrong={
        "naive": (_naive_shards, "overflow"),
        "each piece its own softmax": (_wrong_shards(merge=False, loss=lambda m, d, z, own, sums: m - z + math.log(
            sum(s * math.exp(o - m) for s, o in zip(sums, own, strict=True)))), "own d"),
        "d not rescaled": (_wrong_shards(loss=lambda m, d, z, own, sums: m - z + math.log(
            sum(s * math.exp(m - o) for s, o in zip(sums, own, strict=True)))), "rescaled"),
        "LSEs added": (_wrong_shards(loss=lambda m, d, z, own, sums: sum(
            m + math.log(s) if s > 0 else 0.0 for s in sums) - z), "added the LSEs"),
        "maximum from 0": (_wrong_shards(maximum=lambda own: max(0.0, *own)), "starts at 0"),
        "no offset": (_wrong_shards(offset=False), "target - start"),
        "no onehot": (_wrong_shards(onehot=False), "onehot"),
        "not divided": (_wrong_shards(normalise=False), "divided by d"),
        "only the LSE": (_wrong_shards(loss=lambda m, d, z, own, sums: m + math.log(d)), "target's logit"),
        "negative": (_wrong_shards(loss=lambda m, d, z, own, sums: (z - m) - math.log(d)), "sign"),
        "LSE first": (_lse_first, "digits"),
    },
)
def _judge_shards(answer):
    rng = np.random.default_rng(112)
    for case, sizes, target, shift, dtype in (
            ("two pieces", (4, 3), 2, 0, np.float64), ("the target in the second piece", (4, 3), 5, 0, np.float64),
            ("three pieces of different sizes", (2, 5, 1), 7, 0, np.float64), ("one piece", (6,), 0, 0, np.float64),
            ("scores near 1000", (4, 3), 1, 1000, np.float64), ("scores near -1000", (4, 3), 6, -1000, np.float64),
            ("a piece far below the others", (3, 3), 1, (0, -500), np.float64),
            ("scores far apart in one piece", (3, 3), 1, (np.array([-900.0, 0.0, 900.0]), 0), np.float64),
            ("a piece of only -inf", (3, 3), 4, (-INF, 0), np.float64), ("float32 scores near 20,000", (5, 4), 3, 20_000, np.float32)):
        shifts = shift if isinstance(shift, tuple) else (shift,) * len(sizes)
        parts = [(2 * rng.normal(size=n) + s).astype(dtype) for n, s in zip(sizes, shifts, strict=True)]
        given = [part.copy() for part in parts]
        with np.errstate(all="ignore"):
            value = call(answer, given, target)
        if not isinstance(value, (tuple, list)) or len(value) != 2 or any(v is None for v in value):
            raise Wrong("return (loss, gradients): a number, and a list with an array for each piece")
        if any(not np.array_equal(a, b) for a, b in zip(parts, given, strict=True)):
            raise Wrong("your function changed the pieces, which the caller still needs")
        loss, gradients = _array(value[0], (), "the loss"), value[1]
        if not isinstance(gradients, (tuple, list)) or len(gradients) != len(parts):
            raise Wrong(f"{case}: return one gradient for each of the {len(parts)} pieces")
        gradients = [_array(g, part.shape, "a gradient") for g, part in zip(gradients, parts, strict=True)]
        _explain_shards(case, [part.astype(np.float64) for part in parts], target, float(loss), gradients,
                        1e-8 if dtype == np.float64 else 1e-5)


def _explain_shards(case, parts, target, loss, gradients, rtol):
    want, right = _shards(parts, target)
    if not math.isfinite(loss) or not all(np.isfinite(g).all() for g in gradients):
        raise Wrong(f"{case}: not finite; exp(x) may overflow, or every exponential underflow: subtract the maximum of all pieces "
                    "(no maximum starts at 0)")

    def is_loss(value):
        return abs(loss - value) <= rtol * (1 + abs(value))

    x, tops = np.concatenate(parts), [float(part.max()) for part in parts]
    m, logit = max(tops), float(x[target])
    sums = [float(np.exp(part - (top if top > -INF else 0)).sum()) for part, top in zip(parts, tops, strict=True)]
    d = sum(s * math.exp(top - m) for s, top in zip(sums, tops, strict=True))
    if not is_loss(want):
        elsewhere = [0.0, *(float(part[target]) for part in parts if target < len(part))]
        told = [(-want, "the sign is turned round: loss = LSE - logit"), (m + math.log(d), "that is the LSE; subtract the target's logit"),
                (m - logit + math.log(sum(sums)), "the d of each piece must be rescaled to the common maximum before they are added"),
                (sum(top + math.log(s) for s, top in zip(sums, tops, strict=True) if s > 0) - logit,
                 "you added the LSEs of the pieces; their sums of exponentials add up, not their logarithms")]
        if all(top > -INF and m - top < 300 for top in tops):
            told.append((m - logit + math.log(sum(s * math.exp(m - top) for s, top in zip(sums, tops, strict=True))),
                         "the d of each piece must be rescaled by exp(m_i - m), not by exp(m - m_i)"))
        told += [(top - logit + math.log(s), "that is the m and d of one piece; merge the states of all pieces")
                 for s, top in zip(sums, tops, strict=True) if s > 0]
        told += [(m - other + math.log(d), "that is the wrong logit: it stands at target - start of the one piece that holds the target")
                 for other in elsewhere]
        for value, words in told:
            if is_loss(value):
                raise Wrong(f"{case}: {words}")
        if abs(loss - want) < 1e-6 * abs(m):
            raise Wrong(f"{case}: the loss is off by {abs(loss - want):.0e}: LSE and logit are both large, and their difference loses "
                        "digits; write (m - logit) + log d")
        raise Wrong(f"{case}: the loss should be {want:.6f}, the merged (m - logit) + log d, and yours is {loss:.6f}")
    if all(_near(g, r, rtol) for g, r in zip(gradients, right, strict=True)):
        return
    for factor, words in ((1.0, "the gradient is p - onehot; you return p"), (d, "exp(part - m) must still be divided by d")):
        plain = [factor * np.exp(part - m) / d for part in parts]
        if all(_near(g, p, rtol) or _near(g, p - (r < 0), rtol) for g, p, r in zip(gradients, plain, right, strict=True)):
            raise Wrong(f"{case}: {words}")
    totals = [float(np.sum(g)) for g in gradients]
    if len(totals) > 1 and all(min(abs(t), abs(t - 1)) < 1e-6 for t in totals):
        raise Wrong(f"{case}: each piece is divided by its own d; probabilities of the whole vocabulary need the merged d")
    raise Wrong(f"{case}: wrong gradients; the 1 is subtracted in one piece only, at target - start")


# --------------------------------------------------------------------------------------------------- 11-find

_FOUND = load("solutions/11_find.cu")
_BARRIER = "    __syncthreads();                                // 3: thread"
_STORED = "    if (t % 32 == 0) partial[t / 32] = sum;\n    __syncthreads();\n"
_START, _GRADIENT = "    float sum = 0;", "dx[j] = expf(x[j] - zero) * (dy[j] - partial[0]);"
_ADD = "    if (t == 0)\n        for (int w = 1; w < threads / 32; ++w) partial[0] += partial[w];\n"


def _explain_find(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind in ("barrier", "collective"):
        return (f"the barrier or shuffle{where} is not reached by all threads of the block: some have returned, but a thread without "
                "elements still has to work along")
    if error.kind == "race":
        lines = " and ".join(map(str, sorted({error.line, error.other_line} - {None})))
        return (f"a race on partial[{error.index}], line{'s' * (' and ' in lines)} {lines}: a thread reads the sum while "
                "another is still adding or storing")
    if error.kind == "uninitialized":
        return f"partial[{error.index}] is read{where} before any warp has stored it"
    if error.kind == "unwritten":
        return f"dx[{error.index}] is never written"
    return None


@exercise(
    "11-find", "Find the mistakes in a plausible kernel",
    hints=(
        "Ask of every return and every if: do all threads of the block still reach each barrier and each shuffle behind it?",
        "Ask of every number in shared memory: who wrote it last, who reads it, and which barrier lies between the two?",
        "Ask of every exponent: can it be -inf - -inf? reduce.h has origin(m) for that. "
        'show_diff("exercises/11_find.cu", "solutions/11_find.cu") shows a solution.',
    ),
    solution="solutions/11_find.cu",
    untouched="a491e79e",
    wrong={
        "early return left": (changed(_FOUND, (_START, "    if (t >= N) return;\n" + _START)), "not reached by all threads"),
        "barrier left out": (changed(_FOUND, (_BARRIER, "//")), "still adding"),
        "first barrier removed": (changed(_FOUND, (_STORED, _STORED.replace("__syncthreads();", ""))), "on partial["),
        "dead rows": (changed(_FOUND, ("origin(lse[blockIdx.x])", "lse[blockIdx.x]")), "-inf - -inf"),
        "dead rows skipped": (changed(_FOUND, (_START, "    if (lse[blockIdx.x] == NEG_INF) return;\n" + _START)), "never written"),
        "every NaN to 0": (changed(_FOUND, (_GRADIENT, f"{{ {_GRADIENT} if (dx[j] != dx[j]) dx[j] = 0; }}")), "hides"),
        "sum of one warp": (changed(_FOUND, (_ADD, ""), (_GRADIENT, _GRADIENT.replace("partial[0]", "partial[t / 32]"))), "own warp"),
        "sum of the first warp": (changed(_FOUND, (_ADD, "")), "first warp"),
        "lanes not added": (changed(_FOUND, ("warp_sum(sum)", "sum")), "differs"),
        "plain sum": (changed(_FOUND, ("sum += expf(x[j] - zero) * dy[j]", "sum += dy[j]")), "weighted"),
        "last element": (changed(_FOUND, ("j < N; j += threads) dx", "j < N - 1; j += threads) dx")), "never written"),
    },
)
def _judge_find(answer):
    kernel = build(answer, "softmax_backward")
    rng = np.random.default_rng(113)
    for name, M, N, threads in (("random rows", 2, 300, 64), ("random rows", 2, 500, 256), ("rows shorter than the block", 2, 40, 128),
                                ("one column", 3, 1, 32), ("one warp", 2, 70, 32), ("a masked row and one of only -inf", 3, 40, 64),
                                ("scores near 1000", 2, 65, 64), ("a NaN in dy", 2, 50, 64), ("one large dy", 1, 96, 96)):
        x, dy = (rng.standard_normal((M, N)).astype(np.float32) for _ in range(2))
        x += 1000 * ("1000" in name)
        if "-inf" in name:
            x[0, ::3], x[1] = -INF, -INF
        if "NaN" in name:
            dy[1, N - 1] = NAN
        if "large" in name:  # each element decides the sum in turn
            x, dy = np.zeros((N, N), np.float32), 1000 * np.eye(N, dtype=np.float32)
            M = N
        lse = np.where(np.isneginf(x).all(axis=1), -INF, np.logaddexp.reduce(x.astype(np.float64), axis=1)).astype(np.float32)
        case = f"{name}, M = {M}, N = {N}, {threads} threads"
        for seed in (0, 1, 2)[:1 if "large" in name else 3]:
            given = [cpu_device.asarray(a) for a in (x, lse, dy)]
            dx = cpu_device.empty((M, N), np.float32)
            run(kernel, case, (M,), (threads,), (*given, dx, np.int32(M), np.int32(N)), (dx,), _explain_find, seed)
            _compare_dx(case, x, lse, dy, dx.get(), threads)


def _compare_dx(case, x, lse, dy, got, threads):
    with np.errstate(invalid="ignore"):
        y = np.exp(x.astype(np.float64) - np.where(lse == -INF, 0, lse)[:, None])
        y[lse == -INF] = 0
        want = y * (dy - (y * dy).sum(axis=1, keepdims=True))
        near = (np.isnan(want) & np.isnan(got)) | (abs(got - want) <= 1e-5 * (1 + np.nanmax(abs(dy))) * np.maximum(y, 1e-3))
    if near.all():
        return
    row = int(np.flatnonzero(~near.all(axis=1))[0])
    if lse[row] == -INF:
        raise Wrong(f"{case}: row {row} is all -inf and its gradient should be 0: where is -inf - -inf computed?")
    if np.isnan(dy[row]).any():
        raise Wrong(f"{case}: row {row} has a NaN in dy, so all of its dx are NaN; turning every NaN into 0 hides it")
    warp = np.arange(x.shape[1]) % threads // 32
    own = np.array([(y[row] * dy[row])[warp == w].sum() for w in range(threads // 32)])
    for text, s in (("every thread subtracts the sum of its own warp", own[warp]),
                    ("every thread subtracts the sum of the first warp", own[0]),
                    ("the sum of dy must be weighted with y", dy[row].sum())):
        if np.allclose(got[row], y[row] * (dy[row] - s), rtol=1e-3, atol=1e-6):
            raise Wrong(f"{case}: row {row}: {text}")
    raise Wrong(f"{case}: row {row} differs from y * (dy - sum of y * dy)")

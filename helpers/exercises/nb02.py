"""Exercises of notebook 02: softmax of a matrix, the traffic of five NumPy lines, masking, a loss that keeps its digits."""

from __future__ import annotations

import numpy as np

from .. import reference
from . import Wrong, call, exercise

INF = np.inf


def _array(value, shape, dtype) -> np.ndarray:
    """The learner's answer as an array, or the hint that says how its form is wrong."""
    try:
        value = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise Wrong("your result is not an array of numbers") from error
    if value.shape != shape:
        raise Wrong(f"for an input of shape {shape} your result has shape {value.shape}")
    if value.dtype != dtype:
        raise Wrong(f"the input is {np.dtype(dtype).name}, your result is {value.dtype.name}; stay in the input's format")
    return value


def _close(got, truth, dtype) -> bool:
    """True if `got` equals the float64 truth as far as `dtype` allows: NaN and exact 0 of masked entries included."""
    if dtype == np.float32:
        return reference.agrees(got, truth)
    got = got.astype(np.float64)
    if not np.array_equal(np.isnan(got), np.isnan(truth)):
        return False
    ok = ~np.isnan(truth)
    return bool(np.all(np.abs(got[ok] - truth[ok]) <= 4e-3 * truth[ok] + 1e-7))


# ------------------------------------------------------------------------------------------ 02-rows


def _rows(x):
    """Safe softmax of every row of x [M, N], in x's own dtype."""
    m = x.max(axis=-1, keepdims=True)
    e = np.exp(x - m)
    return e / e.sum(axis=-1, keepdims=True)


def _one_max(x):
    e = np.exp(x - x.max())
    return e / e.sum(axis=-1, keepdims=True)


def _columns(x):
    e = np.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def _whole(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def _no_shift(x):
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)


def _max_from_zero(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=0))
    return e / e.sum(axis=-1, keepdims=True)


def _in_place(x):
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x


def _nan_to_zero(x):
    return np.nan_to_num(_rows(x))


def _float64(x):
    return _rows(x.astype(np.float64))


def _no_sum(x):
    return np.exp(x - x.max(axis=-1, keepdims=True))


def _ignores_nan(x):
    e = np.exp(x - np.nanmax(x, axis=-1, keepdims=True))
    return e / np.nansum(e, axis=-1, keepdims=True)


@exercise(
    "02-rows", "Safe softmax of a matrix",
    hints=("Every row needs its own maximum and its own sum.",
           "x.max(axis=-1) has shape [M]; to subtract it from [M, N] you need shape [M, 1]: keepdims=True.",
           "m = x.max(axis=-1, keepdims=True); e = np.exp(x - m); then divide by the sum, taken the same way."),
    solution=_rows,
    wrong={
        "one maximum for all rows": (_one_max, "its own maximum"),
        "along columns": (_columns, "columns"),
        "one sum for the matrix": (_whole, "whole matrix"),
        "naive": (_no_shift, "large scores"),
        "maximum started at 0": (_max_from_zero, "far below 0"),
        "in place": (_in_place, "changed its input"),
        "NaN hidden": (_nan_to_zero, "-inf everywhere"),
        "float64": (_float64, "stay in the input's format"),
        "not divided": (_no_sum, "sum to 1"),
        "NaN skipped": (_ignores_nan, "NaN in it"),
    })
def judge_rows(answer):
    rng = np.random.default_rng(20)
    base = rng.standard_normal((5, 7)) * 2

    def judge_one(x, text):
        before = x.copy()
        with np.errstate(all="ignore"):
            got = call(answer, x)
        if not np.array_equal(x, before, equal_nan=True):
            raise Wrong("your function changed its input; the caller still needs the scores")
        got = _array(got, x.shape, x.dtype)
        if not _close(got, reference.softmax(before), x.dtype):
            raise Wrong(text(got) if callable(text) else text)

    def ordinary(got):
        if np.allclose(got.sum(axis=0), 1, atol=1e-4):
            return "your columns sum to 1; a row of scores lies along the last axis"
        if abs(got.sum() - 1) < 1e-4:
            return "the whole matrix sums to 1; each row has to"
        if not np.allclose(got.sum(axis=-1), 1, atol=1e-4):
            return "your rows do not sum to 1"
        return "on an ordinary 5 x 7 matrix the values differ from float64's"

    judge_one(base.astype(np.float32), ordinary)
    judge_one((base + 500).astype(np.float32), "large scores (around 500) go wrong: shift before exp")
    judge_one((base - 500).astype(np.float32), "scores far below 0 (around -500) go wrong: where does your maximum start?")
    apart = base + np.array([[0], [-300], [300], [0], [-1000]])
    judge_one(apart.astype(np.float32), "rows at very different heights go wrong: each row needs its own maximum")
    judge_one((base + 20).astype(np.float16), "fp16 scores around 20 go wrong")
    special = base.astype(np.float32)
    special[1, 2:5] = -INF
    judge_one(special, "a row with some -inf entries: those are exactly 0 and the others share the 1")
    special[3] = -INF
    judge_one(special, "a row with -inf everywhere is NaN here, as in torch: 0 would hide that nothing is visible")
    special[0, 3] = np.nan
    judge_one(special, "a row with a NaN in it is NaN everywhere: a hidden NaN is a bug found a week later")
    special[4, 0] = INF
    judge_one(special, "a row with +inf in it is NaN everywhere, as in torch")
    judge_one(np.array([[-3e4], [0], [3e4]], np.float32), "rows of one score: the probability is 1")
    judge_one(base[:1].astype(np.float32), "a matrix of a single row goes wrong")
    judge_one(np.zeros((3, 3), np.float32), "equal scores in a square matrix: 1/3 each")


# ------------------------------------------------------------------------------------------ 02-traffic


@exercise(
    "02-traffic", "The traffic of five NumPy lines",
    hints=("Go line by line: which arrays of N elements does the line read, which does it write? Scalars do not count.",
           "x.max() reads x. x - m reads x and writes a new array.",
           "The reads are x, x, t, e, e. Which lines write?"),
    solution=(5, 3),
    wrong={
        "the fused loops": ((3, 1), "fused"),
        "only x counted": ((2, 3), "temporaries t and e are read"),
        "sum forgotten": ((4, 3), "e.sum()"),
        "only y written": ((5, 1), "t and e are written"),
        "m and d written": ((5, 5), "one number"),
        "swapped": ((3, 5), "reads first"),
        "not a pair": (8, "two whole numbers"),
    })
def judge_traffic(answer):
    if not (isinstance(answer, tuple | list) and len(answer) == 2 and all(type(v) is int for v in answer)):
        raise Wrong("give two whole numbers: (reads, writes)")
    reads, writes = answer
    if (reads, writes) == (5, 3):
        return
    if (reads, writes) == (3, 1):
        raise Wrong("3 and 1 is the fused loop; here every line is a pass of its own and stores its result")
    if (reads, writes) == (3, 5):
        raise Wrong("the numbers are there, but in the order reads first, then writes")
    if reads < 4:
        raise Wrong(f"{reads} reads are too few: the temporaries t and e are read too, not only x")
    if reads == 4:
        raise Wrong("one read is missing: both e.sum() and e / d read e")
    if reads > 5:
        raise Wrong(f"{reads} reads are too many: no line reads more than one array of N elements")
    if writes < 3:
        raise Wrong(f"5 reads is right; {writes} write(s) are too few: t and e are written like y")
    raise Wrong(f"5 reads is right; {writes} writes are too many: m and d are one number each, not N")


# ------------------------------------------------------------------------------------------ 02-mask


def _masked(row, visible):
    """Softmax of the visible entries of row [N]; 0 for the others, and all 0 if nothing is visible."""
    if not visible.any():
        return np.zeros_like(row)
    hidden = np.where(visible, row, row.dtype.type(-INF))
    e = np.exp(hidden - hidden.max())
    return e / e.sum()


def _finite_fill(row, visible):
    return reference.safe_softmax(np.where(visible, row, row.dtype.type(-10000)))


def _mask_after_exp(row, visible):
    e = np.exp(row - row.max()) * visible
    return (e / e.sum()).astype(row.dtype)


def _mask_after_softmax(row, visible):
    return (reference.safe_softmax(row) * visible).astype(row.dtype)


def _nan_when_empty(row, visible):
    return reference.safe_softmax(np.where(visible, row, row.dtype.type(-INF)))


def _inverted(row, visible):
    return _masked(row, ~visible)


def _times_mask(row, visible):
    return reference.safe_softmax((row * visible).astype(row.dtype))


def _nan_to_num(row, visible):
    return np.nan_to_num(reference.safe_softmax(np.where(visible, row, row.dtype.type(-INF))))


def _add_bias(row, visible):
    bias = np.where(visible, 0, -INF).astype(row.dtype)
    return reference.safe_softmax(row + bias) if visible.any() else np.zeros_like(row)


def _compress(row, visible):
    return _masked(row[visible], visible[visible])


def _visible_alone(row, visible):
    y = np.zeros_like(row)
    e = np.exp(row[visible] - row[visible].max())
    y[visible] = e / e.sum()
    return y


def _changes_row(row, visible):
    row[~visible] = -INF
    return _masked(row, visible)


@exercise(
    "02-mask", "Softmax under a mask",
    hints=("Which value makes exp exactly 0, whatever the maximum is?",
           "np.where(visible, row, -inf) replaces the hidden entries; take the maximum after that, not before.",
           "One case is left: nothing visible. Then the maximum is -inf, so treat it first and return zeros."),
    solution=_masked,
    wrong={
        "filled with -10000": (_finite_fill, "exactly 0"),
        "mask after exp": (_mask_after_exp, "hidden score"),
        "mask after softmax": (_mask_after_softmax, "visible entries must sum to 1"),
        "nothing visible gives NaN": (_nan_when_empty, "nothing is visible"),
        "mask inverted": (_inverted, "True means visible"),
        "score times mask": (_times_mask, "weight above 0"),
        "nan_to_num": (_nan_to_num, "visible NaN"),
        "bias added": (_add_bias, "replace, do not add"),
        "hidden entries dropped": (_compress, "shape"),
        "input changed": (_changes_row, "changed its input"),
        "maximum of nothing": (_visible_alone, "when nothing is visible, your function raised"),
    })
def judge_mask(answer):
    rng = np.random.default_rng(21)
    row = rng.standard_normal(8).astype(np.float32)
    visible = np.array([1, 1, 0, 1, 0, 1, 1, 0], bool)

    def judge_one(x, seen, text):
        before = x.copy()
        with np.errstate(all="ignore"):
            try:
                got = call(answer, x, seen.copy())
            except Wrong as wrong:
                if not seen.any() and "raised" in str(wrong):
                    raise Wrong(f"when nothing is visible, {wrong}") from None
                raise
        if not np.array_equal(x, before, equal_nan=True):
            raise Wrong("your function changed its input; the caller still needs the scores")
        got = _array(got, x.shape, x.dtype)
        truth = np.zeros(x.shape)
        if seen.any():
            truth[seen] = reference.softmax(before[seen])
        if not _close(got, truth, x.dtype) or not np.all(got[~seen] == 0):
            raise Wrong(text(got) if callable(text) else text)

    def ordinary(got):
        if np.all(got[visible] == 0) and np.all(got[~visible] > 0):
            return "the hidden entries got the weight; True means visible"
        if not np.all(got[~visible] == 0):
            return "a hidden entry has a weight above 0"
        return "the visible entries must sum to 1 among themselves"

    judge_one(row, visible, ordinary)
    for dtype, low in ((np.float16, -2e4), (np.float32, -5e6), (np.float32, -2e30)):
        judge_one((row.astype(np.float64) + low).astype(dtype), visible,
                  f"with visible scores around {low:g} a hidden entry must be exactly 0: no finite fill value is low enough")
    for big in (200, 3e4):
        judge_one(np.where(visible, row, np.float32(big)), visible,
                  f"a hidden score of {big:g} changes the result: take the maximum of the visible entries only")
    judge_one(row, np.zeros(8, bool), "when nothing is visible the result is all zeros: what is -inf - (-inf)?")
    for hidden in (INF, np.nan):
        judge_one(np.where(visible, row, np.float32(hidden)), visible,
                  f"a hidden {hidden} must not matter: replace, do not add or multiply")
    poisoned = row.copy()
    poisoned[0] = np.nan
    with np.errstate(all="ignore"):
        got = _array(call(answer, poisoned, visible.copy()), row.shape, row.dtype)
    if not np.isnan(got[visible]).all():
        raise Wrong("a visible NaN must show up as NaN in the visible entries, not be turned into a number")
    judge_one(row, np.ones(8, bool), "with everything visible this is plain softmax")
    one = np.zeros(8, bool)
    one[4] = True
    judge_one((row * 1000).astype(np.float32), one, "a single visible entry gets exactly 1")


# ------------------------------------------------------------------------------------------ 02-loss


def _loss(row, target):
    """Cross-entropy -log softmax(row)[target] of one row [N], in the row's own dtype."""
    shifted = row - row.max()
    return np.log(np.exp(shifted).sum()) - shifted[target]


def _log_of_softmax(row, target):
    return -np.log(reference.safe_softmax(row)[target])


def _lse_first(row, target):
    m = row.max()
    return (m + np.log(np.exp(row - m).sum())) - row[target]


def _naive_loss(row, target):
    return np.log(np.exp(row).sum()) - row[target]


def _sign(row, target):
    return -_loss(row, target)


def _probability(row, target):
    return reference.safe_softmax(row)[target]


def _clipped(row, target):
    return -np.log(np.maximum(reference.safe_softmax(row)[target], np.float32(1e-12)))


def _forgot_m(row, target):
    return np.log(np.exp(row - row.max()).sum()) - row[target]


def _all_losses(row, target):
    shifted = row - row.max()
    return np.log(np.exp(shifted).sum()) - shifted


def _log2(row, target):
    shifted = row - row.max()
    return np.log2(np.exp(shifted).sum()) - shifted[target]


@exercise(
    "02-loss", "A loss that keeps its digits",
    hints=("The loss is -log y[target]. Take the logarithm on paper first, so that no tiny probability is ever computed.",
           "log y = (x - m) - log d. Which two of these numbers are small, whatever m is?",
           "shifted = row - row.max(); the loss is log(sum(exp(shifted))) - shifted[target]."),
    solution=_loss,
    wrong={
        "log of softmax": (_log_of_softmax, "0 before you took its logarithm"),
        "clipped": (_clipped, "clipped"),
        "m + log d first": (_lse_first, "digits"),
        "naive": (_naive_loss, "without a shift"),
        "wrong sign": (_sign, "negative"),
        "the probability": (_probability, "not the probability"),
        "m only in one place": (_forgot_m, "both places"),
        "all entries": (_all_losses, "one number"),
        "base 2": (_log2, "natural logarithm"),
    })
def judge_loss(answer):
    rng = np.random.default_rng(22)
    base = (rng.standard_normal(100) * 2).astype(np.float32)

    def loss(row, target):
        with np.errstate(all="ignore"):
            got = call(answer, row.copy(), target)
        try:
            if np.shape(got) != ():
                raise Wrong(f"the loss of a target is one number, you returned shape {np.shape(got)}")
            return float(got), -float(reference.log_softmax(row)[target])
        except (TypeError, ValueError, OverflowError) as error:
            raise Wrong("the loss must be a number") from error

    def good(got, truth):
        return got == truth or abs(got - truth) <= 2e-6 * max(1.0, abs(truth))

    for target in (3, 41):
        got, truth = loss(base, target)
        if good(got, truth):
            continue
        if good(-got, truth):
            raise Wrong("your loss is negative; it is minus the logarithm of a number below 1")
        if abs(got - np.exp(-truth)) < 1e-5:
            raise Wrong("this is not the loss but the probability of the target, not the probability's logarithm")
        shifted = base.astype(np.float64) - base.max()
        if abs(got - (np.log2(np.exp(shifted).sum()) - shifted[target])) < 1e-4:
            raise Wrong("you mixed logarithms of base 2 and e; use the natural logarithm")
        if abs(got - (truth - float(base.max()))) < 1e-3:
            raise Wrong("the maximum must be subtracted in both places: under the sum and from the target's score")
        raise Wrong(f"on an ordinary row the loss is {truth:.4f}, you got {got:.4f}")
    got, truth = loss((base + 200).astype(np.float32), 3)
    if not np.isfinite(got):
        raise Wrong("scores around 200 give inf or NaN: without a shift the sum of exponentials overflows")
    far = base.copy()
    far[7] = -250
    got, truth = loss(far, 7)
    if got == INF:
        raise Wrong("for a very unlikely target the loss is inf: its probability was 0 before you took its logarithm")
    if abs(got - truth) > 100:
        raise Wrong(f"for a very unlikely target the loss is {truth:.1f}, you got {got:.1f}; was the probability clipped?")
    far[7] = -97  # its probability is subnormal in float32
    if not good(*loss(far, 7)):
        raise Wrong("for a probability near 1e-43 the loss is inexact: fp32 stores that probability with few digits")
    for height in (3e4, -3e4, 1e6, 1e8):
        row = (base + np.float32(height)).astype(np.float32)
        for target in (int(row.argmax()), 3, 41):
            got, truth = loss(row, target)
            if not good(got, truth):
                raise Wrong(f"with scores around {height:g} the loss is {truth:.4f}, you got {got:.4f}: digits are lost where a "
                            "small number is added to a large one")
    masked = base.copy()
    masked[5] = -INF
    if loss(masked, 5)[0] != INF:
        raise Wrong("a masked target (-inf) has probability 0, so its loss is +inf")
    if not np.isnan(loss(np.full(4, -INF, np.float32), 0)[0]):
        raise Wrong("in a row of -inf only, the loss is NaN, as in torch")
    poisoned = base.copy()
    poisoned[9] = np.nan
    if not np.isnan(loss(poisoned, 3)[0]):
        raise Wrong("a NaN anywhere in the row must make the loss NaN")
    if not good(*loss(np.array([123.0], np.float32), 0)):
        raise Wrong("a row of one score has probability 1 and loss 0")

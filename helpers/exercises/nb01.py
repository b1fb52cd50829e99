"""Exercises of notebook 01: predict the naive formula's outcome, leave room for the sum, break the scaling by sqrt(D)."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

from ..figures.overflow import outcome
from . import Unsolved, Wrong, call, exercise

# ------------------------------------------------------------------------------------------ 01-outcomes

ROWS = {
    "A": np.array([10, 10], np.float16),
    "B": np.array([10, 10, 10], np.float16),
    "C": np.array([-20, -20], np.float16),
    "D": np.array([-20, 5], np.float16),
    "E": np.array([12, 0], ml_dtypes.bfloat16),
    "F": np.array([89, 0], np.float32),
    "G": np.array([-16.5, -16.0], np.float16),
}
WORDS = ("right", "nan", "zeros", "wrong")

_WHY = {
    "A": "row A: two exponentials of 22,026 each; compare their sum with 65,504",
    "B": "row B: every exponential is finite, so look at the sum of the three, and at what a number divided by inf is",
    "C": "row C: exp(-20) lies below 2^-25, the half of fp16's smallest number; what remains to divide by?",
    "D": "row D: exp(-20) becomes 0, but the other entry does not; is 0 a bad answer for a probability of 1e-11?",
    "E": "row E is bf16, not fp16: its largest number is 3.4e38",
    "F": "row F: fp32 ends at 88.72, so one exponential is inf; then that entry is inf / inf",
    "G": "row G: both exponentials are subnormal in fp16, whole multiples of 2^-24; which multiples, and what is their ratio?",
}

_OUTCOMES = {"A": "right", "B": "zeros", "C": "nan", "D": "right", "E": "right", "F": "nan", "G": "wrong"}


@exercise(
    "01-outcomes", "Predict what the naive formula returns",
    hints=("Ask in this order: does an exponential overflow? does the sum overflow? is the sum 0? are digits lost?",
           "fp16: exp is inf above 11.09, subnormal below -9.70, 0 below -17.33. bf16 and fp32: inf above 88.72.",
           "If you are stuck, run reference.naive_softmax(row) on the row and explain what you see."),
    solution=_OUTCOMES,
    wrong={
        "only exponentials checked": ({**_OUTCOMES, "B": "right"}, "row B"),
        "any 0 is an error": ({**_OUTCOMES, "D": "nan"}, "row D"),
        "underflow gives zeros": ({**_OUTCOMES, "C": "zeros"}, "row C"),
        "bf16 taken for fp16": ({**_OUTCOMES, "E": "nan"}, "row E"),
        "inf entry taken for a 1": ({**_OUTCOMES, "F": "right"}, "row F"),
        "digits never lost": ({**_OUTCOMES, "G": "right"}, "row G"),
        "one row overcautious": ({**_OUTCOMES, "A": "zeros"}, "row A"),
        "unknown word": ({**_OUTCOMES, "A": "fine"}, "one of the words"),
        "row left out": ({k: v for k, v in _OUTCOMES.items() if k != "G"}, "an answer for every row"),
    })
def judge_outcomes(answer):
    if not isinstance(answer, dict) or set(answer) != set(ROWS):
        raise Wrong("give a dict with an answer for every row, A to G")
    if any(word is ... for word in answer.values()):
        raise Unsolved
    for name, word in answer.items():
        if word not in WORDS:
            raise Wrong(f"{word!r} for row {name} is not one of the words {', '.join(WORDS)}")
    for name, row in ROWS.items():
        if answer[name] != outcome(row):
            raise Wrong(_WHY[name])


# ------------------------------------------------------------------------------------------ 01-room


def _longest_row(top, dtype):
    """Largest N for which N scores of at most `top` cannot make the naive sum overflow in `dtype`."""
    largest = float(ml_dtypes.finfo(dtype).max)
    return int(largest / math.exp(top))


def _only_one_term(top, dtype):
    return 2**31 if math.exp(top) <= float(ml_dtypes.finfo(dtype).max) else 0


def _always_fp16(top, dtype):
    return int(65504 / math.exp(top))


def _without_exp(top, dtype):
    return int(math.log(float(ml_dtypes.finfo(dtype).max)) / top)


def _in_logs_rounded_up(top, dtype):
    return math.ceil(float(ml_dtypes.finfo(dtype).max) / math.exp(top))


def _at_least_one(top, dtype):
    return max(1, _longest_row(top, dtype))


def _as_float(top, dtype):
    return float(ml_dtypes.finfo(dtype).max) / math.exp(top)


def _sum_of_scores(top, dtype):
    return int(float(ml_dtypes.finfo(dtype).max) / top)


@exercise(
    "01-room", "How long may a row be?",
    hints=("The worst row has N equal scores, all of them `top`. Write its sum.",
           "N exp(top) must not exceed the largest number of the format: float(ml_dtypes.finfo(dtype).max).",
           "Divide, and round down. What should happen when one single exponential is already too large?"),
    solution=_longest_row,
    wrong={
        "sum forgotten": (_only_one_term, "the sum of all N"),
        "fp16 built in": (_always_fp16, "for every format"),
        "logs divided": (_without_exp, "too careful"),
        "rounded up": (_in_logs_rounded_up, "one too many"),
        "never 0": (_at_least_one, "not even a row of one"),
        "a float": (_as_float, "whole number"),
        "scores summed": (_sum_of_scores, "exponentials"),
    })
def judge_room(answer):
    cases = [(5.0, np.float16), (2.0, np.float16), (10.0, np.float16), (-3.0, np.float16), (80.0, np.float32),
             (87.0, ml_dtypes.bfloat16), (88.0, np.float32), (12.0, np.float16), (89.0, np.float32), (700.0, np.float64)]
    for top, dtype in cases:
        info = ml_dtypes.finfo(dtype)
        name = info.dtype.name
        got = call(answer, top, dtype)
        if isinstance(got, bool) or not isinstance(got, (int, np.integer)):
            raise Wrong(f"a length is a whole number; for top = {top:g} you returned {type(got).__name__}")
        exact = Fraction(float(info.max)) / Fraction(math.exp(top))
        right, got = int(exact), int(got)
        slack = right // 1000 if right > 10**6 else 0  # rounding of exp itself, where N is enormous anyway
        if abs(got - right) <= slack:
            continue
        if right == 0:
            raise Wrong(f"exp({top:g}) alone does not fit {name}: not even a row of one is safe, so the answer is 0")
        if got == right + 1:
            raise Wrong(f"for top = {top:g} in {name} you allow one too many: {got} x exp({top:g}) is above the largest number")
        if got == int(Fraction(float(info.max)) / Fraction(abs(top))):
            raise Wrong("you divided by the score; the sum is over exponentials")
        if got > right and got >= 2**31:
            raise Wrong("each exponential fits, but the sum of all N must fit too")
        if got == int(65504 / math.exp(top)) and dtype is not np.float16:
            raise Wrong(f"for {name} you returned fp16's answer; take the largest number from dtype, for every format")
        if got > right:
            raise Wrong(f"for top = {top:g} in {name}, {got} equal scores overflow the sum; at most {right} do not")
        raise Wrong(f"for top = {top:g} in {name} you are too careful: {got + 1} equal scores still fit")


# ------------------------------------------------------------------------------------------ 01-attack

_D, _SIZE = 64, 1.25


def _attack():
    """A query and a key of ordinary size whose scaled score overflows exp in fp16."""
    return np.full(64, 1.25), np.full(64, 1.25)


def _random():
    rng = np.random.default_rng(0)
    return rng.uniform(-1.25, 1.25, 64), rng.uniform(-1.25, 1.25, 64)


def _too_large():
    return np.full(64, 2.0), np.full(64, 2.0)


def _opposite():
    return np.full(64, 1.25), np.full(64, -1.25)


def _unit():
    return np.ones(64), np.ones(64)


def _longer():
    return np.ones(256), np.ones(256)


def _one_big_entry():
    q = np.zeros(64)
    q[0] = 1.25
    return q, q.copy()


def _not_finite():
    return np.full(64, np.nan), np.full(64, 1.25)


@exercise(
    "01-attack", "Overflow fp16 in spite of 1/sqrt(D)",
    hints=("The score is |q| |k| cos(angle) / sqrt(64). You may choose the angle.",
           "With every entry of q and k equal to a, the scaled score is a*a*64/8.",
           "Solve a*a*8 > 11.09: a must exceed 1.1774."),
    solution=_attack,
    wrong={
        "random vectors": (_random, "independent"),
        "entries too large": (_too_large, "at most 1.25"),
        "opposite direction": (_opposite, "harmless"),
        "not far enough": (_unit, "below 11.09"),
        "longer vectors": (_longer, "64 entries"),
        "one aligned entry": (_one_big_entry, "few entries"),
        "NaN": (_not_finite, "finite"),
    })
def judge_attack(answer):
    pair = call(answer)
    try:
        q, k = (np.asarray(v, dtype=np.float64) for v in pair)
    except (TypeError, ValueError) as error:
        raise Wrong("return two vectors of numbers, q and k") from error
    if q.shape != (_D,) or k.shape != (_D,):
        raise Wrong(f"q and k must have 64 entries each; yours have shapes {q.shape} and {k.shape}")
    if not (np.isfinite(q).all() and np.isfinite(k).all()):
        raise Wrong("every entry must be finite: overflow has to come out of ordinary numbers")
    if max(np.abs(q).max(), np.abs(k).max()) > _SIZE:
        raise Wrong("every entry must be at most 1.25 in absolute value")
    score = float(q @ k / math.sqrt(_D))
    with np.errstate(over="ignore"):
        if np.exp(np.float16(score)) == np.inf:
            return
    if score < -11:
        raise Wrong(f"the scaled score is {score:.2f}: exp of it underflows, which is harmless; the sign must be the other one")
    used = int(((q != 0) & (k != 0)).sum())
    if used < _D // 2:
        raise Wrong(f"the scaled score is {score:.2f}: few entries take part ({used} of 64), and each adds at most 1.25^2/8")
    cosine = score * math.sqrt(_D) / max(float(np.linalg.norm(q) * np.linalg.norm(k)), 1e-300)
    if cosine < 0.9:
        raise Wrong(f"the scaled score is {score:.2f}: q and k are nearly independent (cosine {cosine:.2f}); make them agree")
    raise Wrong(f"the direction is right, but the scaled score is {score:.2f}, below 11.09; you may use larger entries")

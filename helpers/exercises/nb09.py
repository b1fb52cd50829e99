"""Exercises of notebook 09: where a sum stops, log2 e folded into one multiply-add, a kernel whose state is half."""

from __future__ import annotations

import numpy as np

from helpers import cpu_device, reference
from helpers.exercises import Wrong, call, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

INF, NAN = np.inf, np.nan

# --------------------------------------------------------------------------------------------------- 09-stop


@exercise(
    "09-stop", "Where does it stop?",
    hints=(
        "From 2^k on, neighbours are 2^k times 2^(1 - digits) apart: 11 significant binary digits in fp16, 8 in bf16, 24 in fp32.",
        "A term is lost when it is less than half of the distance between neighbours, or exactly half and the sum is even.",
        "Row d: between 512 and 1024 bf16 numbers are 4 apart, and 3 still reaches the next one. From 1024 on they are 8 apart. "
        "Row e: each lane stops where a single sum stops, and 32 such sums are added without loss.",
    ),
    solution=(2048, 512, 2**24, 1024, 8192),
    wrong={
        "the last exact step": ((2047, 512, 2**24, 1024, 8192), "halfway"),
        "stored digits only": ((1024, 256, 2**23, 1024, 8192), "leading 1"),
        "the term forgotten": ((2048, 2048, 2**24, 1024, 8192), "a quarter of"),
        "terms instead of their sum": ((2048, 8192, 2**24, 1024, 8192), "number of terms"),
        "a whole distance": ((4096, 1024, 2**25, 1024, 8192), "half of the distance"),
        "the largest number": ((65504, 512, 2**24, 1024, 8192), "largest fp16 number"),
        "three times 256": ((2048, 512, 2**24, 768, 8192), "3 still moves"),
        "bf16 at 256 for every term": ((2048, 512, 2**24, 256, 8192), "larger term"),
        "one lane": ((2048, 512, 2**24, 1024, 256), "only one lane"),
        "lanes merged in bf16": ((2048, 512, 2**24, 1024, 2048), "fp32"),
        "fp32 never stops": ((2048, 512, INF, 1024, 8192), "every format"),
    },
)
def _judge_stop(answer):
    if not isinstance(answer, (tuple, list)) or len(answer) != 5:
        raise Wrong("give five numbers, for the rows a to e")
    try:
        a, b, c, d, e = (float(v) for v in answer)
    except (TypeError, ValueError):
        raise Wrong("give five plain numbers") from None
    known = [
        ("a", a, 2048, {
            2047: "2047 + 1 = 2048 is still a number of fp16; 2048 + 1 lies halfway between two, and which one is even?",
            2049: "2049 is no fp16 number: it lies halfway between 2048 and 2050",
            1024: "fp16 stores 10 digits, and a leading 1 that is not stored counts as well",
            4096: "the term need not be smaller than the distance between neighbours; half of the distance is enough to be lost",
            65504: "that is the largest fp16 number; the sum stops long before",
            256: "that is bf16; fp16 has 11 significant digits"}),
        ("b", b, 512, {
            2048: "the sum stops where the neighbours are far apart compared with the term; with a quarter of the term, that is earlier",
            8192: "with a term of 1/4 it is a quarter of row a, not four times as much",
            256: "fp16 stores 10 digits, and a leading 1 that is not stored counts as well",
            1024: "half of the distance between neighbours is enough to lose a term"}),
        ("c", c, 2**24, {
            2**23: "fp32 stores 23 digits, and a leading 1 that is not stored counts as well",
            2**25: "half of the distance between neighbours is enough to lose a term",
            INF: "every format stops, fp32 as well: it has 24 significant digits"}),
        ("d", d, 1024, {
            256: "256 is where a term of 1 is lost; a larger term goes further",
            512: "between 512 and 1024 bf16 numbers are 4 apart: 3 is more than half of that, so it still moves the sum",
            768: "between 512 and 1024 bf16 numbers are 4 apart: a term of 3 still moves the sum, by 4",
            2048: "from 1024 on bf16 numbers are 8 apart, and 3 is less than half of that"}),
        ("e", e, 8192, {
            256: "that is only one lane; 32 of them are added",
            2048: "the lanes' sums are added in fp32, which loses nothing; did you stop where fp16 does?",
            65536: "that is 32 times fp16; in bf16 a lane stops at 256"}),
    ]
    for row, got, want, told in known:
        if got == want:
            continue
        if row == "b" and got == 8192 and a == 2048:
            raise Wrong("row b: asked is the sum; 8192 is neither it nor the number of terms, which is 2048: a quarter of each is 512")
        raise Wrong(f"row {row}: {told.get(got, f'not {got:g}; from which number on are neighbours more than two terms apart?')}")


# --------------------------------------------------------------------------------------------------- 09-fold

LOG2_E = np.float32(1.44269504)


def _folded(x, m, fma, exp2):
    origin = np.float32(0) if m == -np.inf else m
    return exp2(fma(x, LOG2_E, -origin * LOG2_E))


def _no_guard(x, m, fma, exp2):
    return exp2(fma(x, LOG2_E, -m * LOG2_E))


def _guard_everything(x, m, fma, exp2):
    return np.nan_to_num(exp2(fma(x, LOG2_E, -m * LOG2_E)))


def _lost_nan(x, m, fma, exp2):
    origin = m if np.isfinite(m) else np.float32(0)
    return np.where(np.isfinite(x), exp2(fma(x, LOG2_E, -origin * LOG2_E)), np.float32(0))


def _element_by_element(x, m, fma, exp2):
    return np.array([_folded(v, m, fma, exp2) for v in x], np.float32)


@exercise(
    "09-fold", "One multiply-add",
    hints=(
        "e^(x - m) = 2^(x c - m c) with c = log2(e) = 1.442695. Which three numbers does fma get?",
        "fma(x, c, -m * c), and m * c is the same for all elements. Both are fp32: np.float32(1.44269504).",
        "With m = -inf, x c - m c is -inf + inf = NaN. Use 0 in the place of such an m: then every exponent is -inf. Test m == -inf, so "
        "that a NaN passes.",
    ),
    solution=_folded,
    wrong={
        "base 2 without the factor": (lambda x, m, fma, exp2: exp2(fma(x, np.float32(1), -m)), "2^(x - m)"),
        "ln 2 instead of log2 e": (lambda x, m, fma, exp2: exp2(fma(x, 1 / LOG2_E, -m / LOG2_E)), "upside down"),
        "m not scaled": (lambda x, m, fma, exp2: exp2(fma(x, LOG2_E, -m)), "m needs the factor"),
        "x not scaled": (lambda x, m, fma, exp2: exp2(fma(x, np.float32(1), -m * LOG2_E)), "x needs the factor"),
        "sign": (lambda x, m, fma, exp2: exp2(fma(x, LOG2_E, m * LOG2_E)), "sign"),
        "no guard": (_no_guard, "-inf + inf"),
        "guard swallows NaN": (_guard_everything, "NaN is gone"),
        "NaN treated as masked": (_lost_nan, "every weight is NaN"),
        "subtracts first": (lambda x, m, fma, exp2: exp2((x - (m if m > -np.inf else np.float32(0))) * LOG2_E), "without fma"),
        "no power of two": (lambda x, m, fma, exp2: np.exp(fma(x, np.float32(1), -m)), "without exp2"),
        "one call for each element": (_element_by_element, "once, with the whole array"),
        "two multiply-adds": (lambda x, m, fma, exp2: exp2(fma(fma(x, np.float32(1), -m), LOG2_E, np.float32(0))), "2 calls of fma"),
        "already divided": (lambda x, m, fma, exp2: (w := _folded(x, m, fma, exp2)) / max(w.sum(), np.float32(1e-30)), "not the results"),
        "in fp16": (lambda x, m, fma, exp2: _folded(x, m, fma, exp2).astype(np.float16), "digits"),
    },
)
def _judge_fold(answer):
    calls = {"fma": 0, "exp2": 0}

    def fma(a, b, c):
        calls["fma"] += 1
        with np.errstate(all="ignore"):
            return np.float32(np.asarray(a, np.float64) * np.float64(b) + np.float64(c))

    def exp2(t):
        calls["exp2"] += 1
        with np.errstate(all="ignore"):
            return np.float32(np.exp2(np.asarray(t, np.float64)))

    for name, row in _fold_rows():
        x = np.array(row, np.float32)
        m = x.max()
        calls.update(fma=0, exp2=0)
        with np.errstate(all="ignore"):
            got = call(answer, x.copy(), m, fma, exp2)
            try:
                got = np.asarray(got, dtype=np.float64)
            except (TypeError, ValueError):
                raise Wrong("return an array of weights, one for each element of x") from None
            if got.shape != x.shape:
                raise Wrong(f"return one weight for each element: {len(x)} of them, not an array of shape {got.shape}")
            _compare_fold(name, x.astype(np.float64), got)
        if calls["fma"] == 0:
            raise Wrong(f"{name}: right, but without fma: the subtraction and the product are two instructions and two roundings")
        if calls["exp2"] == 0:
            raise Wrong(f"{name}: right, but without exp2, the power that the hardware has")
        if calls["fma"] > 2 or calls["exp2"] > 1:
            raise Wrong(f"{name}: right, with {calls['fma']} calls of fma and {calls['exp2']} of exp2; call each once, "
                        "with the whole array")
        if calls["fma"] > 1:
            raise Wrong(f"{name}: right, with 2 calls of fma; one is enough, if m is scaled before")


def _fold_rows():
    rng = np.random.default_rng(9)
    yield "row 1, 2, 3", [1, 2, 3]
    yield "row 30, 31, 33", [30, 31, 33]
    yield "random scores", rng.standard_normal(200) * 10
    yield "scores far below 0", rng.standard_normal(50) - 500
    yield "a masked element", [-INF, 2, 1, -INF]
    yield "a row that is all masked", [-INF] * 4
    yield "a row with a NaN", [1, NAN, 2]
    yield "a NaN among masked elements", [-INF, NAN, -INF]


def _compare_fold(name, x, got):
    m = x.max()
    if np.isnan(m):
        if not np.isnan(got).any() and (got == 0).all():
            raise Wrong(f"{name}: you return 0, and the NaN is gone; guard against m = -inf only")
        if not np.isnan(got).all():
            raise Wrong(f"{name}: with m = NaN every weight is NaN, as in torch, not only some")
        return
    if m == -INF:
        if np.isnan(got).any():
            raise Wrong(f"{name}: you return NaN; x c - m c is -inf + inf, so m = -inf needs a guard")
        if (got != 0).any():
            raise Wrong(f"{name}: every weight must be 0, you return {got[0]:g}")
        return
    c = float(LOG2_E)
    want = np.exp(x - m)
    near = 1e-5 + abs(m) * 1e-6
    if np.allclose(got, want, rtol=near, atol=1e-30):
        return
    told = {
        "you compute 2^(x - m); the exponent needs the factor log2 e": np.exp2(x - m),
        "the factor is upside down: log2 e is 1.4427, and ln 2 is 0.6931": np.exp2((x - m) / c),
        "m needs the factor log2 e too": np.exp2(x * c - m),
        "x needs the factor log2 e too": np.exp2(x - m * c),
        "look at the sign: m log2 e is subtracted": np.exp2((x + m) * c),
        "these are the results y; asked are the weights, not the results": want / want.sum(),
    }
    for text, other in told.items():
        if np.allclose(got, other, rtol=near, atol=1e-30):
            raise Wrong(f"{name}: {text}")
    if np.allclose(got, want, rtol=2e-3, atol=1e-7):
        raise Wrong(f"{name}: digits are missing: the weights are right to {np.max(abs(got - want) / want):.0e} only; "
                    "keep everything fp32")
    at = int(np.flatnonzero(~np.isclose(got, want, rtol=near, atol=1e-30))[0])
    raise Wrong(f"{name}: the weight of x = {x[at]:g} is exp({x[at]:g} - {m:g}) = {want[at]:.5g}, you return {got[at]:.5g}")


# -------------------------------------------------------------------------------------------------- 09-state

_STATE = load("solutions/09_state.cu")
_SUM = "d += expf(__half2float(x[j]) - m);"
_MEET = "    for (int bit = 16; bit > 0; bit /= 2) d += __shfl_xor_sync(0xffffffff, d, bit);\n"
_STORE = "y[j] = __float2half(expf(__half2float(x[j]) - m) / d);"
_ROUNDED = "__half2float(__float2half({}))"
_DIFFERENCE = ("expf(__half2float(x[j]) - m)", "expf(__half2float(__hsub(x[j], __float2half(m))))")


def _half(text: str) -> str:
    return _ROUNDED.format(text)


def _with_difference_in_half(source: str) -> str:
    return changed(source, *((line, line.replace(*_DIFFERENCE)) for line in (_SUM, _STORE)))


def _explain_state(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind == "unwritten":
        return f"y[{error.index}] is never written"
    if error.kind == "collective":
        return f"the shuffle{where} is not executed by all 32 lanes that its mask names: keep it out of every branch"
    return None


@exercise(
    "09-state", "Repair a half kernel",
    hints=(
        "Go through the numbers of the notebook: x - m, the exponential, d, the exchange between lanes, the quotient. Which are half here?",
        "All of them. Turn each element into a float as soon as it is loaded: __half2float(x[j]) - m with a float m. Then take expf and a "
        "float d.",
        "Convert back in one place only, around the quotient: y[j] = __float2half(… / d). "
        'show_diff("exercises/09_state.cu", "solutions/09_state.cu") shows a solution.',
    ),
    solution="solutions/09_state.cu",
    untouched="1436462a",
    wrong={
        "half sum of each lane": (changed(_STATE, (_SUM, f"d = {_half('d + expf(__half2float(x[j]) - m)')};")), "stops growing"),
        "lanes added in half": (changed(_STATE, (_MEET, _MEET.replace("d += __shfl_xor_sync(0xffffffff, d, bit)",
                                                                      f"d = {_half('d + __shfl_xor_sync(0xffffffff, d, bit)')}"))),
                                "between the lanes"),
        "difference in half": (_with_difference_in_half(_STATE), "x - m"),
        "terms of the sum in half": (changed(_STATE, (_SUM, f"d += {_half('expf(__half2float(x[j]) - m)')};")), "terms of d"),
        "numerator in half": (changed(_STATE, (_STORE, f"y[j] = __float2half({_half('expf(__half2float(x[j]) - m)')} / d);")), "twice"),
        "factor in half": (changed(_STATE, (_STORE, f"y[j] = __float2half(expf(__half2float(x[j]) - m) * {_half('1 / d')});")), "1 / d"),
        "d rounded before the division": (changed(_STATE, (_STORE, _STORE.replace("/ d", f"/ {_half('d')}"))), "before the division"),
        "one lane's sum": (changed(_STATE, (_MEET, "")), "one lane"),
        "no maximum": (changed(_STATE, ("const float m = largest;", "const float m = 0;")), "maximum"),
        "starts at 0": (changed(_STATE, ("float largest = NEG_INF;", "float largest = 0;")), "far below 0"),
    },
)
def _judge_state(answer):
    kernel = build(answer, "softmax_half")
    for name, X in _state_rows():
        X = X.astype(np.float16)
        M, N = X.shape
        case = f"{name}, N = {N:,}"
        x, y = cpu_device.asarray(X), cpu_device.empty((M, N), np.float16)
        run(kernel, case, (M,), (32,), (x, y, np.int32(M), np.int32(N)), (y,), _explain_state)
        _compare_state(case, X, y.get())


def _state_rows():
    rng = np.random.default_rng(19)
    yield "ordinary rows", rng.standard_normal((6, 300)) * 2
    yield "rows of wide scores", rng.standard_normal((4, 300)) * 8 + 20
    yield "a long row", np.append(np.full((1, 32 * 2400 - 1), -3.0), [[0.0]], axis=1)
    yield "rows far above 0", rng.standard_normal((2, 40)) + 1000
    yield "rows far below 0", rng.standard_normal((2, 40)) - 1000
    yield "rows shorter than a warp", rng.standard_normal((3, 5))
    yield "one score far above the others", np.where(np.arange(40) == np.arange(40)[:, None], 1000.0, 0.0)
    yield "masked elements", np.where(rng.random((3, 100)) < 0.5, -INF, rng.standard_normal((3, 100)))


def _rounded(values):
    return values.astype(np.float16).astype(np.float64)


def _lane_sums(terms, half: bool):
    """Sums of every 32nd term, rounded to half after each addition if `half`; shape [M, 32]."""
    M, N = terms.shape
    lanes = np.pad(terms, ((0, 0), (0, -N % 32))).reshape(M, -1, 32)
    sums = np.zeros((M, 32))
    for step in lanes.swapaxes(0, 1):
        sums = _rounded(sums + step) if half else sums + step
    return sums


def _added_in_half(lanes):
    while lanes.shape[1] > 1:
        lanes = _rounded(lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2:])
    return lanes


def _compare_state(case, X, got):
    x, got = X.astype(np.float64), got.astype(np.float64)
    truth = reference.softmax(x)
    with np.errstate(all="ignore"):
        allowed = 1.01 * np.maximum(truth * 2.0**-11, 2.0**-25)
        bad = ~(abs(got - truth) <= allowed)
        if not bad.any():
            return
        m = x.max(axis=1, keepdims=True)
        e, e_diff = np.exp(x - m), np.exp(_rounded(x - m))
        d = e.sum(axis=1, keepdims=True)
        lanes = _lane_sums(e, half=False)
        told = [  # what was rounded, and what it gives
            ("everything is half; first of all the sum of a lane, which stops growing on long rows",
             _rounded(_rounded(e_diff) / _added_in_half(_lane_sums(_rounded(e_diff), half=True)))),
            ("the sum of a lane is half, and stops growing on long rows",
             _rounded(e / _lane_sums(e, half=True).sum(axis=1, keepdims=True))),
            ("the sums are rounded between the lanes: exchange floats", _rounded(e / _added_in_half(lanes))),
            ("x - m is half; its error is the relative error of the weight", _rounded(e_diff / e_diff.sum(axis=1, keepdims=True))),
            ("the terms of d are rounded to half before they are added", _rounded(e / _rounded(e).sum(axis=1, keepdims=True))),
            ("a result is rounded twice, as a numerator and as a quotient", _rounded(_rounded(e) / d)),
            ("1 / d is rounded to half; divide the floats", _rounded(e * _rounded(1 / d))),
            ("d is rounded to half before the division", _rounded(e / _rounded(d))),
            ("every lane divides by its own sum, that of one lane", _rounded(e / lanes[:, np.arange(x.shape[1]) % 32])),
        ]
        for text, other in told:
            same = np.isclose(got, other, rtol=2e-5, atol=1e-12, equal_nan=True)
            if same.mean() > 0.98:
                raise Wrong(f"{case}: {text}")
        row, j = (int(i) for i in np.argwhere(bad)[0])
        if case.startswith("rows far below 0") and (np.isnan(got).any() or (got == 0).all()):
            raise Wrong(f"{case}: nothing is left of rows far below 0; where does the maximum start?")
        if not np.isfinite(got).all():
            raise Wrong(f"{case}: y is not finite; is the maximum of the row subtracted?")
        raise Wrong(f"{case}: y[{row}, {j}] is {got[row, j]:.6g}, the exact softmax {truth[row, j]:.6g}: more than one rounding apart; "
                    "what is still half?")

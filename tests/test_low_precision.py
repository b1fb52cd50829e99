"""Kernels and plots of notebook 09: results rounded once, loads and instructions counted, three forms of the exponential."""

import re
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

from helpers import count, cp, load, reference
from helpers.figures import low_precision
from helpers.measure import Record

TYPES = {"float32": (np.float32, ()), "float16": (np.float16, ("-DHALF",)), "bfloat16": (ml_dtypes.bfloat16, ("-DBF16",))}
STEPS = ("element_by_element", "sixteen_bytes")
INF, NAN = np.inf, np.nan


def kernel(step, options=()):
    return cp.RawKernel(load(f"low_precision/{step}.cu"), f"softmax_{step}", options=("-std=c++17", *options))


def softmax(step, name, X, threads=64):
    """The rows X, an array of the type called `name`, through one of the kernels; the result as float64."""
    X = X.astype(TYPES[name][0])
    M, N = X.shape
    x, y = cp.asarray(X), cp.asarray(np.full_like(X, np.nan))
    kernel(step, TYPES[name][1])((M,), (threads,), (x, y, np.int32(M), np.int32(N)))
    return X, cp.asnumpy(y).astype(np.float64)


def rows(N):
    """Random, masked, empty, spoiled, constant, tiny and huge rows of N elements."""
    X = 4 * np.random.default_rng(N).standard_normal((10, N))
    X[1, : N // 2] = X[2] = -INF
    X[3, -1], X[4, 0] = NAN, INF
    X[5], X[6], X[7] = 7, -60_000, 60_000
    X[8, 0] = -INF
    return X


@pytest.mark.parametrize("N", (1, 7, 8, 9, 33, 100, 1000, 4097))
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("step", STEPS)
def test_every_result_is_the_softmax_rounded_once(step, name, N):
    X, y = softmax(step, name, rows(N))
    truth = reference.softmax(X)
    if name == "float32":
        assert reference.agrees(y, truth)
        return
    info = ml_dtypes.finfo(TYPES[name][0])
    allowed = 1.01 * np.maximum(truth * float(info.eps), float(info.smallest_subnormal)) / 2
    np.testing.assert_array_equal(np.isnan(y), np.isnan(truth))
    assert ((abs(y - truth) <= np.maximum(allowed, 2.0**-126)) | np.isnan(truth)).all()  # a GPU flushes what is smaller to 0
    assert (y[1, : N // 2] == 0).all()


@pytest.mark.parametrize("name", TYPES)
def test_both_kernels_agree_in_the_last_bit_but_one(name):
    (X, one), (_, other) = (softmax(step, name, 3 * np.random.default_rng(1).standard_normal((4, 777))) for step in STEPS)
    eps = float(ml_dtypes.finfo(X.dtype).eps)
    assert (abs(one - other) <= 2 * eps * one + 1e-7).all()


@pytest.mark.parametrize("name, step, loads, sectors", [
    ("float32", "element_by_element", 8192, 1024), ("float32", "sixteen_bytes", 2048, 1024),
    ("float16", "element_by_element", 8192, 512), ("float16", "sixteen_bytes", 1024, 512),
    ("bfloat16", "element_by_element", 8192, 512), ("bfloat16", "sixteen_bytes", 1024, 512)])
def test_loads_and_sectors_of_a_row_of_4096(name, step, loads, sectors):
    dtype, options = TYPES[name]
    x = cp.asarray(np.random.default_rng(2).standard_normal((2, 4096)).astype(dtype))
    y = cp.empty_like(x)
    c = count(kernel(step, options), (2,), (256,), (x, y, np.int32(2), np.int32(4096)), outputs=(y,), seed=1)
    assert (c.loads.instructions, c.loads.sectors) == (2 * loads, 2 * sectors)
    assert c.loads.bytes == 2 * x.nbytes and c.stores.bytes == x.nbytes


# ------------------------------------------------------------------------------------------------ the compiler


nvrtc_test = pytest.mark.skipif(find_spec("cuda") is None or find_spec("cuda.bindings") is None, reason="needs the package cuda-bindings")


@nvrtc_test
@pytest.mark.parametrize("arch", ("sm_75", "sm_80", "sm_90a"))
@pytest.mark.parametrize("option", ("-DHALF", "-DBF16"))
@pytest.mark.parametrize("step", STEPS)
def test_compiles_for_two_byte_types_without_spills(step, option, arch):
    from test_nvrtc import compile_for, spills

    log, ptx = compile_for(load(f"low_precision/{step}.cu"), arch, [option])
    assert set(spills(log)) == {("0", "0", "0")} and "warning" not in log, log
    assert ("ld.global.nc.v4" in ptx and "st.global.v4" in ptx) == (step == "sixteen_bytes")


@nvrtc_test
@pytest.mark.parametrize("entry, instructions", [("by_expf", 9), ("by_product", 3), ("by_fma", 3)])
def test_instructions_of_an_exponential(entry, instructions):
    """As CuPy compiles; of the three of by_fma one computes m log2 e, which is the same for the whole row."""
    from test_nvrtc import compile_for

    _, ptx = compile_for(load("low_precision/exponentials.cu"), "sm_90a", ["-ftz=true"])
    body = re.search(rf"\.entry {entry}\(.*?\n}}", ptx, re.S)[0]
    found = re.findall(r"^\s*((?:add|sub|mul|fma|ex2)\.[\w.]*f32|shl\.b32)\s", body, re.M)
    assert len(found) == instructions, found
    assert sum(name.startswith("ex2") for name in found) == 1
    if entry == "by_fma":
        assert found[0].startswith("mul") and found[1].startswith("fma")


# --------------------------------------------------------------------------------------------- exponentials


def weights(entry, x, m):
    x, w = cp.asarray(x.astype(np.float32)), cp.asarray(np.full(len(x), np.nan, np.float32))
    program = cp.RawKernel(load("low_precision/exponentials.cu"), entry, options=("-std=c++17",))
    program((-(-len(w) // 256),), (256,), (x, w, np.float32(m), np.int32(len(w))))
    return cp.asnumpy(w).astype(np.float64)


@pytest.mark.parametrize("m", (0.0, 20.0, 1000.3, -1000.3))
def test_forms_of_the_exponential(m):
    m = np.float32(m)
    x = (m - np.random.default_rng(3).random(5000) * 80).astype(np.float32)
    x[0] = m
    below = float(m) - x.astype(np.float64)
    truth = np.exp(-below)

    def ulps(got, exact=truth):
        return abs(got - exact) / np.spacing(exact.astype(np.float32))

    exact = x - m == -below                                                 # elsewhere every form starts from a rounded number
    assert ulps(weights("by_expf", x, m))[exact].max() <= 2.5
    assert (ulps(weights("by_expf", x, m)) <= 2.5 + below).all()
    assert (ulps(weights("by_product", x, m)) <= 3 + 2.5 * below).all()
    w = weights("by_fma", x, m)
    assert (ulps(w / w.sum(), truth / truth.sum()) <= 6 + 1.5 * below).all()  # the rounding of m log2 e has cancelled
    if abs(m) > 100:
        assert ulps(w)[0] > 10                                               # and it had spoiled the largest weight


@pytest.mark.parametrize("entry", ("by_product", "by_fma"))
def test_masked_and_huge_rows(entry):
    assert weights(entry, np.array([0, -INF]), 0).tolist() == [1, 0]
    assert np.isnan(weights(entry, np.array([-INF, -INF]), -INF)).all()
    huge = [weights(entry, np.array([m, 0]), m)[0] for m in (8_589_935_616, 8_589_938_688, 3e38, 2.0**29)]
    if entry == "by_product":
        assert huge == [1, 1, 1, 1]
    else:
        assert huge[:3] == [INF, 0, 0] and 2.0**-40 < huge[3] < 2.0**40


# --------------------------------------------------------------------------------------------------- plots


@pytest.fixture
def shown(monkeypatch):
    """Collect (figure, alt) instead of displaying."""
    seen = []
    monkeypatch.setattr(low_precision, "show", lambda fig, alt: seen.append((fig, alt)))
    return seen


def measured():
    rows = [{"name": name, "dtype": dtype, "shape": [2**27 // N, N], "us": us, "offset": 0}
            for N in (1024, 4096) for name, dtype, us in (("copy", "float32", 200.0), ("copy", "bfloat16", 100.0),
                                                            ("torch", "float32", 300.0), ("torch", "bfloat16", 240.0))]
    odd = {"name": "torch", "dtype": "bfloat16", "shape": [7, 4097], "us": 1.0, "offset": 0}
    shifted = {"name": "copy", "dtype": "bfloat16", "shape": [2**15, 4096], "us": 9.0, "offset": 1}
    return Record({"device": "H200", "date": "2026-11-30"}, [*rows, odd, shifted], "some.json")


def test_speedups_compare_the_same_rows():
    assert low_precision.speedups(measured(), "copy") == {1024: 2.0, 4096: 2.0}
    assert low_precision.speedups(measured(), "torch") == {1024: 1.25, 4096: 1.25}
    assert low_precision.speedups(measured(), "quack") == {}


def test_every_figure_draws_and_has_alt_text(shown):
    k = np.arange(1, 400.0)
    low_precision.partial_sums({"equal": {"exact": k, "fp16": k, "bf16": np.minimum(k, 256), "fp32": k}})
    errors = {(name, order): [low_precision.UNIT[name]] * 2 for name in low_precision.UNIT for order in ("chain", "tree")}
    low_precision.error_against_length([16, 64], errors)
    gaps = np.arange(0, 112, 0.5)
    low_precision.factors(gaps, {name: np.exp(-gaps).astype(np.float16) for name in ("fp16", "bf16", "fp32")})
    low_precision.folding([1, 2], {"weights": {"a": [1, 2], "b": [2, 4], "c": [9, 9]}})
    low_precision.half_the_time(measured(), {"copy": "a copy", "quack": "not measured", "torch": "torch"})
    assert len(shown) == 5 and all(len(alt) > 80 for _, alt in shown)
    assert "bf16 ends at 256 of 399" in shown[0][1] and "torch: 1.25 to 1.25" in shown[4][1] and "not measured" not in shown[4][1]
    for fig, _ in shown:
        fig.canvas.draw()

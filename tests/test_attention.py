"""Attention on tensor cores, and the features that all fused kernels share, against float64; refusals, repeats, races, compiling.

On a GPU the whole product of shapes, head dimensions, dtypes and steps runs; on the CPU device a part that meets each of them.
"""

import re
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from test_kernels import memory_that_held_nan
from test_nvrtc import compile_for, spills

from helpers import cpu_device, reference, snippets
from helpers.attention import attention
from helpers.device import cp, on_gpu
from helpers.ladder import STEPS
from helpers.snippets import load

NAN, INF = np.nan, np.inf
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
MMA = [key for key, step in STEPS.items() if "bfloat16" in step.dtypes]
FAST = MMA[-1]
FUSED = [("attention_tiled", "float32"), ("attention_tiled_normalized", "float32"), *((step, "bfloat16") for step in MMA)]
FEATURED = FUSED if on_gpu else [FUSED[0], FUSED[2], (FAST, "float16")]
SHAPES = [(1, 1), (1, 4096), (64, 128), (239, 1), (799, 3), (113, 203), (128, 217), (108, 256), (1023, 1024), (1024, 1023),
          (2, 5), (5, 2)]
DIMENSIONS = range(32, 129, 16)
each_fused = pytest.mark.parametrize("step, dtype", FUSED)
each_featured = pytest.mark.parametrize("step, dtype", FEATURED)
each_mma = pytest.mark.parametrize("step", MMA)


def cases():
    """(step, dtype, D, heads of q for one of k, Sq, Sk, causal)."""
    every = product(MMA, ("float16", "bfloat16"), DIMENSIONS, (1, 4), SHAPES, (False, True))
    for step, dtype, D, group, (Sq, Sk), causal in every:
        half = dtype == "float16"
        chosen = (on_gpu or (step == FAST and D == 64 and group == 1 and not half)                   # each shape
                  or (step == FAST and (Sq, Sk) == (113, 203) and (group == 4) == half)              # each D, either dtype, groups
                  or (step != FAST and D in (48, 128) and (Sq, Sk) in ((113, 203), (5, 2)) and group == 1 and half == (D == 48)))
        if chosen:
            yield pytest.param(step, dtype, D, group, Sq, Sk, causal, id=f"{step}-{dtype}-{D}-{group}-{Sq}x{Sk}{'-causal' * causal}")


def random(dtype, *shape, size=1.0):
    return (size * np.random.default_rng(shape).normal(size=shape)).astype(DTYPES[dtype])


def qkv(dtype, Sq, Sk, D, B=1, Hq=2, Hkv=2, size=1.0):
    return random(dtype, B, Hq, Sq, D, size=size), random(dtype, B, Hkv, Sk, D), random(dtype, Hkv, B, Sk, D).reshape(B, Hkv, Sk, D)


def run(step, q, k, v, bias=None, **how):
    """One call with memory that held NaN: (o, lse) as NumPy arrays, and nothing checked."""
    with memory_that_held_nan():
        o, lse = attention(*map(cp.asarray, (q, k, v)), step, bias=None if bias is None else cp.asarray(bias), **how)
    assert o.dtype == q.dtype and o.shape == q.shape and lse.dtype == np.float32 and lse.shape == q.shape[:-1]
    return cp.asnumpy(o), cp.asnumpy(lse)


def unfused(q, k, v, causal=False, scale=None, window=None, bias=0.0):
    """The same in separate steps: P is rounded to the dtype of q, k and v, sums are kept in float32."""
    D, dtype = q.shape[-1], q.dtype
    if q.shape[1] != k.shape[1]:
        k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = np.float32(D**-0.5 if scale is None else scale) * (q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2)) + bias
    i, j = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], np.arange(k.shape[2])
    seen = ((j <= i) | (not causal)) & (np.abs(i - j) < (window or 2**31))
    scores = np.where(seen, scores, -INF).astype(np.float32)
    m = scores.max(-1, keepdims=True, initial=-INF)
    p = np.exp(scores - np.where(m == -INF, 0, m))
    d = p.sum(-1, keepdims=True)
    p = (p / np.where(d == 0, 1, d)).astype(dtype)
    return (p.astype(np.float32) @ v.astype(np.float32)).astype(dtype)


def assert_right(step, q, k, v, bias=None, **how):
    """O within twice the error of the unfused computation, LSE within rounding of float32; NaN never passes."""
    o, lse = run(step, q, k, v, bias, **how)
    with_bias = how if bias is None else how | {"bias": bias}
    expected, expected_lse = reference.attention(q, k, v, **with_bias)
    error = np.abs(unfused(q, k, v, **with_bias).astype(np.float64) - expected).max(initial=0)
    assert reference.agrees(o, expected, atol=1e-6 + 2 * error, rtol=INF), (np.abs(o - expected).max(), error)
    largest = np.max(np.abs(expected_lse), where=np.isfinite(expected_lse), initial=1)
    assert reference.agrees(lse, expected_lse, atol=2e-6 * largest, rtol=INF)


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("step, dtype, D, group, Sq, Sk, causal", list(cases()))
def test_shapes(step, dtype, D, group, Sq, Sk, causal):
    with cpu_device.settings(checked=Sq * Sk < 30_000):
        assert_right(step, *qkv(dtype, Sq, Sk, D, Hq=group, Hkv=1), causal=causal)


def test_a_kernel_is_chosen_by_dtype():
    for dtype, name in (("float32", "attention_tiled"), ("float16", FAST), ("bfloat16", FAST)):
        inputs = qkv(dtype, 70, 40, 32)
        chosen, named = run(None, *inputs), run(name, *inputs)
        assert all(np.array_equal(a, b) for a, b in zip(chosen, named, strict=True))


@each_featured
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Sq, Sk, window", [(70, 150, 1), (70, 150, 33), (150, 70, 20), (100, 100, 100), (3, 300, 140), (300, 3, 2)])
def test_window(step, dtype, Sq, Sk, window, causal):
    assert_right(step, *qkv(dtype, Sq, Sk, 32), causal=causal, window=window)


@each_featured
@pytest.mark.parametrize("shape", [(), (1, 1), (3, 1), (1, 4), (3, 4)])
def test_bias(step, dtype, shape):
    Sq, Sk = 67, 70
    bias = random("float32", *shape, Sq, Sk, size=2)
    bias[..., 3:20, :50] = -INF
    for how in ({}, {"causal": True, "window": 40, "scale": -0.3}):
        assert_right(step, *qkv(dtype, Sq, Sk, 32, B=3, Hq=4, Hkv=2), bias, **how)


@each_featured
def test_groups_of_heads(step, dtype):
    for Hq, Hkv in ((4, 1), (6, 2)):
        assert_right(step, *qkv(dtype, 40, 70, 32, B=2, Hq=Hq, Hkv=Hkv), causal=True)


@each_featured
@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0, -0.2])
def test_scale(step, dtype, scale):
    assert_right(step, *qkv(dtype, 40, 90, 32), scale=scale, causal=True)


@each_featured
def test_queries_that_see_nothing(step, dtype):
    q, k, v = qkv(dtype, 150, 20, 32)
    o, lse = run(step, q, k, v, causal=True)
    assert (o[:, :, :130] == 0).all() and (lse[:, :, :130] == -INF).all() and np.isfinite(lse[:, :, 130:]).all()
    o, lse = run(step, q, k, v, np.full((150, 20), -INF, np.float32))
    assert (o == 0).all() and (lse == -INF).all()


@each_featured
def test_no_keys_no_queries_no_heads(step, dtype):
    q, k, v = qkv(dtype, 3, 4, 32)
    o, lse = run(step, q, k[:, :, :0], v[:, :, :0])
    assert (o == 0).all() and (lse == -INF).all()
    assert run(step, q[:, :, :0], k, v)[0].shape == (1, 2, 0, 32)
    assert run(step, q[:, :0], k[:, :0], v[:, :0])[1].shape == (1, 0, 3)


@each_featured
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("key", [0, 99])
def test_a_nan_or_inf_score_spoils_its_queries_only(step, dtype, key, value):
    q, k, v = qkv(dtype, 100, 100, 32)
    q[..., 0], k[0, 0, key, 0] = 1, value
    o, lse = run(step, q, k, v, causal=True)
    spoiled = np.arange(100) >= key
    assert np.isnan(o[0, 0, spoiled]).all() and np.isnan(lse[0, 0, spoiled]).all()
    assert np.isfinite(o[0, 0, ~spoiled]).all() and np.isfinite(o[0, 1]).all() and np.isfinite(lse[0, 1]).all()
    q, k, v = qkv(dtype, 40, 70, 32)
    q[0, 1, 3, 2] = NAN
    o, _ = run(step, q, k, v)
    assert np.isnan(o[0, 1, 3]).all() and np.isnan(o).sum() == 32


@each_featured
def test_leading_tiles_of_minus_infinity(step, dtype):
    q, k, v = qkv(dtype, 10, 200, 32)
    q[..., 0], k[:, :, :150, 0] = 1, -INF
    o, lse = run(step, q, k, v)
    expected, expected_lse = reference.attention(q, k[:, :, 150:], v[:, :, 150:])
    assert np.abs(o - expected).max() < 2e-2 and np.abs(lse - expected_lse).max() < 1e-5
    k[..., 0] = -INF
    o, lse = run(step, q, k, v)
    assert (o == 0).all() and (lse == -INF).all()


@each_featured
@pytest.mark.parametrize("size", [1e-6, 30.0, 3e4, 1e15])
def test_scores_of_any_magnitude(step, dtype, size):
    size = min(size, 1e4) if dtype == "float16" else size
    q, k, v = qkv(dtype, 20, 140, 32, size=size)
    o, lse = run(step, q, k, v)
    assert np.isfinite(o).all() and np.isfinite(lse).all() and (np.abs(o) <= np.abs(v).max()).all()
    if size < 100:                                        # above, the rounding of a score decides who wins
        assert_right(step, q, k, v)


@each_featured
@pytest.mark.parametrize("order", [1, -1])
def test_scores_that_rise_or_fall_all_along(step, dtype, order):
    q, k, v = qkv(dtype, 9, 300, 32)
    q[:], k[..., 0] = 0, order * np.linspace(-60, 60, 300)
    q[..., 0] = 4
    assert_right(step, q, k, v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_real_attention(dtype):
    from helpers.data import attention_qkv
    inputs = [t.astype(DTYPES[dtype])[None] for t in attention_qkv()]
    for causal in (False, True):
        assert_right(None, *inputs, causal=causal)


# ------------------------------------------------------------------------- repeats, counters, races


@each_mma
def test_repeats_are_bit_identical(step):
    inputs = [cp.asarray(t) for t in qkv("bfloat16", 150, 200, 64)]
    first = [cp.asnumpy(t).tobytes() for t in attention(*inputs, step, True)]
    for _ in range(100 if on_gpu else 1):
        assert [cp.asnumpy(t).tobytes() for t in attention(*inputs, step, True)] == first


@each_fused
def test_all_features_together_in_any_order(step, dtype):
    """Right values; on the CPU device without races or reads out of bounds, whatever the order of blocks, warps and lanes."""
    inputs, bias = qkv(dtype, 70, 150, 48, Hq=2, Hkv=1), random("float32", 70, 150)
    how = {"causal": True, "window": 90, "bias": bias}
    assert_right(step, *inputs, **how)
    results = set()
    for seed in (0, 1, 2):
        with cpu_device.settings(checked=True, seed=seed):
            results.add(b"".join(t.tobytes() for t in run(step, *inputs, **how)))
    assert len(results) == 1


def counted(step, Sq, Sk, D):
    """What the shared-memory loads and stores of one head cost."""
    with cpu_device.settings(checked=True) as settings:
        attention(*map(cp.asarray, qkv("bfloat16", Sq, Sk, D, Hq=1, Hkv=1)), step)
        return settings.last.shared_loads, settings.last.shared_stores


@pytest.mark.skipif(on_gpu, reason="the CPU device's counters")
@pytest.mark.parametrize("D", [32, 64, 80, 128])
def test_swizzled_tiles_have_no_bank_conflicts(D):
    assert counted("attention_mma", 64, 128, D)[0].extra_wavefronts > 0
    for step in MMA[1:]:
        assert [c.extra_wavefronts for c in counted(step, 64, 128, D)] == [0, 0]


@pytest.mark.skipif(on_gpu, reason="the CPU device's counters")
def test_two_bands_a_warp_halve_the_reads_of_keys_and_values():
    Sq, Sk, D, line = 128, 256, 64, 128                                 # line: bytes that 32 banks deliver at once
    keys_and_values, queries = 2 * Sk * D * 2 // line, 32 * D * 2 // line       # for one warp: of all tiles, and once
    assert counted("attention_mma_lean", Sq, Sk, D)[0].wavefronts == Sq // 16 * keys_and_values
    assert counted("attention_mma_bands", Sq, Sk, D)[0].wavefronts == Sq // 32 * (keys_and_values + Sk // 128 * queries)


# ------------------------------------------------------------------------------------------- refusals


def zeros(*shape, dtype="bfloat16"):
    return cp.asarray(np.zeros(shape, DTYPES[dtype]))


REFUSED = {
    "float64": (lambda: ([cp.asarray(np.zeros((1, 1, 2, 32)))] * 3, {}), TypeError, "float32"),
    "float16 for a float32 step": (lambda: ([zeros(1, 1, 2, 32)] * 3, {"step": "attention_tiled"}), TypeError, "float32"),
    "float32 for a 16-bit step": (lambda: ([zeros(1, 1, 2, 32, dtype="float32")] * 3, {"step": FAST}), TypeError, "float16 or bfloat16"),
    "two dtypes": (lambda: ([zeros(1, 1, 2, 32), *[zeros(1, 1, 2, 32, dtype="float16")] * 2], {}), TypeError, "one dtype"),
    "D = 16": (lambda: ([zeros(1, 1, 2, 16)] * 3, {}), ValueError, "none of 32, 48"),
    "D = 40": (lambda: ([zeros(1, 1, 2, 40)] * 3, {}), ValueError, "zero columns"),
    "D = 144": (lambda: ([zeros(1, 1, 2, 144)] * 3, {}), ValueError, "none of 32, 48"),
    "unaligned": (lambda: ([zeros(33)[1:].reshape(1, 1, 1, 32)] * 3, {}), ValueError, "16 bytes"),
    "five heads for two": (lambda: ([zeros(1, 5, 2, 32), *[zeros(1, 2, 2, 32)] * 2], {}), ValueError, "multiple"),
    "window 0": (lambda: ([zeros(1, 1, 2, 32)] * 3, {"window": 0}), ValueError, "at least 1"),
    "bias of another shape": (lambda: ([zeros(1, 1, 2, 32)] * 3, {"bias": zeros(2, 3, dtype="float32")}), ValueError, "does not fit"),
    "bias in bfloat16": (lambda: ([zeros(1, 1, 2, 32)] * 3, {"bias": zeros(2, 2)}), TypeError, "float32"),
    "bias for the naive step": (lambda: ([zeros(1, 1, 2, 32, dtype="float32")] * 3,
                                         {"bias": zeros(2, 2, dtype="float32"), "step": "attention_naive"}), ValueError, "attention_tiled"),
    "too many heads": (lambda: ([zeros(65_536, 1, 1, 32)] * 3, {}), ValueError, "65,535"),
    "no such step": (lambda: ([zeros(1, 1, 2, 32)] * 3, {"step": "attention_magic"}), ValueError, FAST),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    make, error, words = REFUSED[name]
    arrays, how = make()
    with pytest.raises(error, match=words):
        attention(*arrays, **how)


# ------------------------------------------------------------------------------------------ compiling


@pytest.mark.parametrize("step, D, arch", [(step, D, arch) for step, D, arch in product(MMA, DIMENSIONS, ("sm_80", "sm_90a"))
                                           if arch == "sm_90a" and step == FAST or D in (80, 128)])
def test_compiles_without_spills(step, D, arch):
    options = [f"-DD={D}", *STEPS[step].options(D), *(["-DHALF"] if D % 32 else [])]
    log, _ = compile_for(load(STEPS[step].file), arch, options)
    assert set(spills(log)) == {("0", "0", "0")} and "warning" not in log, log
    assert int(re.search(r"Used (\d+) registers", log)[1]) * STEPS[step].launch(1, 1, 1, D).block[0] <= 65536


@each_mma
def test_every_feature_compiles(step):
    log, _ = compile_for(load(STEPS[step].file), "sm_90a", ["-DD=64", "-DWINDOW", "-DBIAS", "-DGROUP=4", "-DANY_SCALE"])
    assert "warning" not in log, log


@each_mma
def test_an_older_gpu_is_told_what_it_lacks(step):
    with pytest.raises(AssertionError, match="need a GPU of compute capability 8.0 or later: use attention/tiled.cu"):
        compile_for(load(STEPS[step].file), "sm_75", [])


def test_snippets_are_short():
    for path in (snippets.ROOT / "attention").rglob("*.*"):
        assert len(path.read_text().splitlines()) <= 250

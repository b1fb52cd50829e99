"""Backward passes against float64 and against torch: every way of keeping rows, adversarial rows, types, gradcheck, refusals.

Outputs are prefilled with NaN, nothing around them may be written, and what is not a number is compared exactly.
"""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import cpu_device, gradients, snippets
from helpers.device import cp, on_gpu
from helpers.gradients import Way, plan_backward, plan_cross_entropy, plan_forward, prepare

NAN, INF = np.nan, np.inf
BIG = float(np.finfo(np.float32).max)
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
BACKWARD = ["softmax_backward", "softmax_backward_from_x", "log_softmax_backward", "log_softmax_backward_from_x"]
FORWARD = ["softmax_forward", "log_softmax_forward"]
every_type = pytest.mark.parametrize("dtype", TYPES)
every_backward = pytest.mark.parametrize("entry", BACKWARD)
TWO_PASSES = "two passes"


def rng(*seed):
    return np.random.default_rng(seed)


# ---------------------------------------------------------------------------------------------- truth, in float64


def probabilities(x: np.ndarray, dead: float = NAN) -> np.ndarray:
    """Softmax in float64; `dead` is what a row of only -inf gets."""
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        y = e / e.sum(-1, keepdims=True)
    return np.where(np.isneginf(x).all(-1, keepdims=True), dead, y)


def truth(entry: str, saved: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(dx, the size of the terms of which it is a sum), from the saved row: y, log y or x."""
    with np.errstate(all="ignore"):
        if entry.endswith("from_x"):
            p = probabilities(saved, dead=0)
        else:
            p = np.exp(saved) if entry.startswith("log") else saved
        if entry.startswith("log"):
            dx, size = dy - p * dy.sum(-1, keepdims=True), abs(dy) + p * abs(dy).sum(-1, keepdims=True)
        else:
            dx, size = p * (dy - (p * dy).sum(-1, keepdims=True)), p * (abs(dy) + abs(p * dy).sum(-1, keepdims=True))
        if entry == "log_softmax_backward_from_x":
            dx = np.where(np.isneginf(saved).all(-1, keepdims=True), 0, dx)
        return dx, size


def assert_near(got: np.ndarray, want: np.ndarray, size: np.ndarray, what="") -> None:
    """Within 1e-5 of the terms (1e-13 in float64) and one rounding of a 16-bit result; what is not finite, exactly.

    A float32 or 16-bit result may also overflow where float64 does not.
    """
    dtype = got.dtype
    limits = ml_dtypes.finfo(dtype)
    got = got.astype(np.float64)
    finite = np.isfinite(want) & np.isfinite(size) & (size < float(limits.max) / 8)
    special = ~np.isfinite(want)
    assert np.array_equal(got[special], want[special], equal_nan=True), f"{what}: not finite"
    assert np.isfinite(got[finite]).all(), f"{what}: should be finite"
    rounding = float(limits.eps) / 2 if dtype.itemsize == 2 else 0
    got, want, size = (np.where(finite, v, 0) for v in (got, want, size))
    allowed = (1e-13 if dtype == np.float64 else 1e-5) * size + rounding * abs(want) + max(float(limits.smallest_subnormal), 1e-36)
    assert (abs(got - want) <= allowed).all(), f"{what}: {np.max(abs(got - want) / allowed)} times what is allowed"


# ------------------------------------------------------------------------------------------------------ one launch


def place(rows: np.ndarray, start: int):
    """A device array of `rows` that begins `start` elements behind a multiple of 512 bytes, and the memory around it."""
    memory = cp.asarray(np.full(start + rows.size + 64, NAN, rows.dtype))
    inside = memory[start:start + rows.size]
    inside[...] = cp.asarray(np.ascontiguousarray(rows).ravel())
    return inside.reshape(rows.shape), memory


def fresh(shape, dtype, start: int = 0):
    return place(np.full(shape, NAN, dtype), start)


def result(array, memory, start: int = 0) -> np.ndarray:
    host = cp.asnumpy(memory)
    around = np.delete(host.astype(np.float64), slice(start, start + array.size))
    assert np.isnan(around).all(), "wrote around the output"
    return cp.asnumpy(array)


def run(entry: str, saved: np.ndarray, dy: np.ndarray, way=None, starts=(0, 0, 0)) -> np.ndarray:
    """One backward launch; states come from the forward kernel.  `way` is a Way, TWO_PASSES or None, the table's choice."""
    (M, N), dtype = saved.shape, saved.dtype
    (a, _), (g, _), (dx, memory) = place(saved, starts[0]), place(dy, starts[1]), fresh(saved.shape, dtype, starts[2])
    between = (gradients.softmax_forward(a)[1],) if entry.endswith("from_x") else ()
    plan = None
    if way is not None:
        plan = plan_backward(M, N, dtype.name, clusters=on_gpu, alike=way != TWO_PASSES, way=way if isinstance(way, Way) else None)
    prepare(entry, a, *between, g, dx, plan=plan)()
    return result(dx, memory, starts[2])


def rows_for(entry: str, x: np.ndarray) -> np.ndarray:
    """What the forward pass saves of x, in the type of x."""
    if entry.endswith("from_x"):
        return x
    with np.errstate(divide="ignore"):
        y = probabilities(x.astype(np.float64))
        return (np.log(y) if entry.startswith("log") else y).astype(x.dtype)


def assert_right(entry: str, x: np.ndarray, dy: np.ndarray, dtype="float32", **how) -> None:
    with np.errstate(over="ignore"):
        x, dy = np.asarray(x, TYPES[dtype]), np.asarray(dy, TYPES[dtype])
    saved = rows_for(entry, x)
    want, size = truth(entry, saved.astype(np.float64), dy.astype(np.float64))
    assert_near(run(entry, saved, dy, **how), want, size, f"{entry} {dtype} {x.shape} {how}")


def random(seed, M, N, scale=3.0):
    r = rng(*seed, M, N)
    return scale * r.normal(size=(M, N)), r.normal(size=(M, N))


# --------------------------------------------------------------------------------------------- softmax, log-softmax


@every_backward
def test_every_n_from_1_to_130(entry):
    for N in range(1, 131):
        assert_right(entry, *random((1,), 3, N))


@every_backward
@every_type
def test_n_around_the_ways(entry, dtype):
    width = 16 // np.dtype(TYPES[dtype]).itemsize
    for N in (1, 2 * width - 1, 32 * width + 1, 128 * width, 128 * width + 1, 300 * width - 3):
        assert_right(entry, *random((2,), 5, N), dtype)


@every_backward
@pytest.mark.parametrize("dtype, way", [
    ("float32", Way(1024, 4)), ("float32", Way(4096, 2)), ("float32", Way(4096, 8, parked=True)), ("float32", TWO_PASSES),
    ("bfloat16", Way(1024, 2)), ("bfloat16", Way(8192, 8, parked=True)), ("bfloat16", TWO_PASSES), ("float16", TWO_PASSES),
    ("float64", TWO_PASSES)])
def test_every_way(entry, dtype, way):
    for N in (5, 700, 1021, 4096) if getattr(way, "max_n", 4096) >= 4096 else (5, 700, 1021):
        assert_right(entry, *random((3,), 3, N), dtype, way=way)


@pytest.mark.parametrize("N", [8192, 8193, 20_000, 32_768, 32_769])
def test_long_rows(N):
    with cpu_device.settings(checked=False):
        assert_right("softmax_backward", *random((4,), 2, N))
        assert_right("softmax_backward_from_x", *random((4,), 2, N))


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu, reason="clusters need a GPU of compute capability 9.0")
@every_backward
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clusters(entry, dtype):
    for cluster in (2, 4, 8):
        for vectors, parked in ((4, False), (8, True)):
            for N in (1000 * cluster, 1024 * vectors * cluster + 3):
                assert_right(entry, *random((5,), 100, N), dtype, way=Way(2**20, vectors, cluster, parked))


@pytest.mark.parametrize("M", [1, 7, 15, 16, 17, 33, 300])
def test_rows_that_share_a_block(M):
    for entry, N in (("softmax_backward", 3), ("softmax_backward_from_x", 100), ("log_softmax_backward_from_x", 60)):
        assert_right(entry, *random((6,), M, N))


@pytest.mark.parametrize("start", range(4))
def test_rows_that_begin_anywhere(start):
    for N in (1, 2, 3, 6, 31, 64, 515):
        assert_right("softmax_backward", *random((7,), 5, N), starts=(start,) * 3)
        assert_right("softmax_backward_from_x", *random((7,), 5, N), starts=(start + 4, start, start + 8))


def test_rows_that_begin_anywhere_in_bf16():
    for start in range(8):
        for N in (5, 130, 1030):
            assert_right("softmax_backward_from_x", *random((8,), 3, N), "bfloat16", starts=(start,) * 3)


@pytest.mark.parametrize("starts", [(0, 0, 1), (0, 1, 0), (2, 0, 0), (1, 2, 3)])
def test_arrays_that_are_not_aligned_alike(starts):
    for N in (3, 64, 515):
        assert_right("softmax_backward", *random((9,), 4, N), starts=starts)


@every_backward
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_adverse_orders(entry, seed):
    with cpu_device.settings(seed=seed):
        for N in (50, 900, 2500):
            assert_right(entry, *random((10,), 3, N))
        assert_right(entry, *random((10,), 3, 900), way=TWO_PASSES)


@pytest.mark.parametrize("which", ["saved", "dy"])
@pytest.mark.parametrize("way", [None, TWO_PASSES])
def test_in_place(which, way):
    x, dy = (np.asarray(v, np.float32) for v in random((11,), 5, 333))
    y = rows_for("softmax_backward", x)
    a, g = cp.asarray(y), cp.asarray(dy)
    plan = plan_backward(5, 333, "float32", alike=way is None)
    prepare("softmax_backward", a, g, a if which == "saved" else g, plan=plan)()
    want, size = truth("softmax_backward", y.astype(np.float64), dy.astype(np.float64))
    assert_near(cp.asnumpy(a if which == "saved" else g), want, size)


SPECIAL = {
    "some -inf": [-INF, 1, -INF, 2, -INF],
    "leading -inf": [-INF] * 300 + [1, 2],
    "one finite among -inf": [-INF] * 70 + [-5] + [-INF] * 70,
    "all -inf": [-INF] * 5,
    "all -inf, long": [-INF] * 700,
    "NaN": [1, 2, NAN, 3],
    "NaN and -inf": [NAN, -INF, -INF],
    "+inf": [1, INF, 2],
    "+inf and -inf": [-INF, INF, -INF],
    "largest floats": [BIG, -BIG, 0, BIG],
    "far below 0": [-1000.0] * 512,
    "very far below 0": [-1e30, -1e30, -2e30],
    "far above 0": [20_000.0, 19_999.0, 20_001.5] * 50,
    "equal": [7.25] * 333,
    "one far ahead": [0.0] * 77 + [90.0],
    "alone": [3.0],
}


@every_backward
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("way", [None, TWO_PASSES])
def test_special_row(entry, name, way):
    x = np.asarray(SPECIAL[name], np.float32)[None]
    assert_right(entry, x, rng(12).normal(size=x.shape), way=way)


@every_backward
@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_special_upstream(entry, value):
    x, dy = random((13,), 3, 40)
    x[1, ::2], dy[0, 3], dy[1, 4] = -INF, value, value
    assert_right(entry, x, dy)


@pytest.mark.parametrize("entry", ["softmax_backward", "softmax_backward_from_x"])
def test_masked_entries_get_exactly_0(entry):
    x, dy = (np.asarray(v, np.float32) for v in random((14,), 4, 200))
    x[:, ::3] = -INF
    assert (run(entry, rows_for(entry, x), dy)[:, ::3] == 0).all()


@every_type
def test_a_dead_row_gets_0_from_x_and_nan_from_y_as_in_torch(dtype):
    x, dy = np.full((2, 37), -INF, TYPES[dtype]), np.ones((2, 37), TYPES[dtype])
    for entry in BACKWARD:
        got = run(entry, rows_for(entry, x), dy).astype(np.float64)
        assert (got == 0).all() if entry.endswith("from_x") else np.isnan(got).all()
    t = torch.full((1, 3), -INF, requires_grad=True)
    torch.softmax(t, -1).sum().backward()
    assert t.grad.isnan().all()


@every_backward
def test_a_bad_row_leaves_its_neighbours_alone(entry):
    x, dy = random((15,), 9, 90)
    x[1], x[3, 5], x[5, 0], dy[7, 7] = -INF, NAN, INF, NAN
    assert_right(entry, x, dy)


VALUES = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-INF, INF, NAN, 0.0, -104.0, 88.0, -1e4, 1e4]))


@every_backward
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row(entry, data):
    N = data.draw(st.integers(1, 70))
    x, dy = (data.draw(arrays(np.float32, (2, N), elements=e)) for e in (VALUES, st.floats(-100, 100, width=32)))
    assert_right(entry, x, dy)


# ---------------------------------------------------------------------------------------------------------- states


@every_type
@pytest.mark.parametrize("log", [False, True])
def test_forward(dtype, log):
    for N in (1, 7, 500, 3001):
        x = np.asarray(random((16,), 4, N)[0], TYPES[dtype])
        x[1, ::2], x[2] = -INF, -INF
        y, states = gradients.softmax_forward(cp.asarray(x), log)
        with np.errstate(divide="ignore", invalid="ignore"):
            want = probabilities(x.astype(np.float64))
            want = np.log(want) if log else want
            assert_near(cp.asnumpy(y), want, abs(want) + 10 * log, f"forward {dtype} {N}")
            lse, expected = cp.asnumpy(gradients.lse(states)), np.logaddexp.reduce(x.astype(np.float64), axis=-1)
        assert_near(lse, expected, abs(expected) + 1, "lse")
        assert (cp.asnumpy(states)[2] == [-INF, 0]).all()


@pytest.mark.parametrize("entry", ["softmax_backward_from_x", "log_softmax_backward_from_x"])
def test_an_lse_is_as_good_as_a_state(entry):
    x, dy = (np.asarray(v, np.float32) for v in random((17,), 6, 300))
    x[2], x[3, ::2] = -INF, -INF
    a, g = cp.asarray(x), cp.asarray(dy)
    _, states = gradients.softmax_forward(a)
    got = cp.asnumpy(getattr(gradients, entry)(a, gradients.states_from_lse(gradients.lse(states)), g))
    want, size = truth(entry, x.astype(np.float64), dy.astype(np.float64))
    assert_near(got, want, size)


def test_a_float32_lse_of_large_scores_is_not():
    x, dy = np.float32(20_000) + rng(18).normal(size=(1, 300)).astype(np.float32), rng(19).normal(size=(1, 300)).astype(np.float32)
    a, g = cp.asarray(x), cp.asarray(dy)
    _, states = gradients.softmax_forward(a)
    want, size = truth("softmax_backward_from_x", x.astype(np.float64), dy.astype(np.float64))
    assert_near(cp.asnumpy(gradients.softmax_backward_from_x(a, states, g)), want, size)
    with pytest.raises(AssertionError, match="times what is allowed"):
        assert_near(cp.asnumpy(gradients.softmax_backward_from_x(a, gradients.states_from_lse(gradients.lse(states)), g)), want, size)


# --------------------------------------------------------------------------------------------------- cross-entropy


def assert_cross_entropy(x: np.ndarray, targets: np.ndarray, ignored: int = -100, start: int = 0, out: bool = False,
                         plans=(None, None)) -> None:
    """Loss and gradient of one batch, each of both kernels launched once."""
    M, N = x.shape
    (a, memory), t = place(x, start), cp.asarray(targets)
    compute = np.float64 if x.dtype == np.float64 else np.float32
    (loss, loss_memory), states = fresh(M, compute), cp.asarray(np.full((M, 2), NAN, compute))
    prepare("cross_entropy_forward", a, t, loss, states, ignore_index=ignored, plan=plans[0])()
    scale = rng(20).normal(size=M).astype(compute)
    dx, dx_memory = (a, memory) if out else fresh(x.shape, x.dtype, start)
    prepare("cross_entropy_backward", a, states, t, cp.asarray(scale), dx, ignore_index=ignored, plan=plans[1])()

    X = x.astype(np.float64)
    valid, skipped = (targets >= 0) & (targets < N), targets == ignored
    hit = X[np.arange(M), np.where(valid, targets, 0)]
    with np.errstate(all="ignore"):
        m = np.where(np.isneginf(X.max(-1)), 0, X.max(-1))
        lse = m + np.log(np.exp(X - m[:, None]).sum(-1))
        want = np.where(skipped, 0, np.where(valid, lse - hit, NAN))
        onehot = np.arange(N) == targets[:, None]
        dead = np.isneginf(X).all(-1)
        p = probabilities(X, dead=0)
        factor = np.where(skipped | dead, 0, np.where(valid, scale, NAN))[:, None]
        dx_want, size = (p - onehot) * factor, (p + onehot) * abs(factor)
        dx_want = np.where((skipped | dead)[:, None], 0, dx_want)
        largest = np.max(np.where(np.isfinite(X), abs(X), 0), -1)
    assert_near(result(loss, loss_memory), want, largest + 1, f"loss {x.dtype} {x.shape}")
    got = result(dx, dx_memory, start)
    assert_near(got, dx_want, size, f"gradient {x.dtype} {x.shape}")
    assert (got[skipped | dead] == 0).all()


@every_type
def test_cross_entropy(dtype):
    width = 16 // np.dtype(TYPES[dtype]).itemsize
    for N in (1, 7, 129, 128 * width, 128 * width + 5, 1111 * width):
        x = np.asarray(random((21,), 5, N)[0], TYPES[dtype])
        assert_cross_entropy(x, np.array([0, N - 1, N // 2, N // 3, 0]))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cross_entropy_of_special_rows(dtype, seed):
    x = np.asarray(random((22,), 12, 601)[0], TYPES[dtype])
    targets = rng(23).integers(0, 601, 12)
    targets[:5], targets[9] = [-100, 601, -1, 2**40, 5], 7
    x[4], x[5], x[6, 3], x[7, 5], x[8, ::2], x[9, 7] = -INF, -INF, NAN, INF, -INF, -INF
    x[0, 9] = NAN                                           # in an ignored row
    targets[5] = -100                                       # ignored and all -inf: torch gives NaN here
    with cpu_device.settings(seed=seed):
        assert_cross_entropy(x, targets)
        assert_cross_entropy(x[:, :40], np.minimum(targets, 41))
        assert_cross_entropy(x, np.where(targets == -100, 3, targets), ignored=3)


@pytest.mark.parametrize("start", [0, 1, 3, 6])
def test_cross_entropy_anywhere_and_in_place(start):
    for dtype, N in (("float32", 33), ("float32", 2050), ("bfloat16", 515)):
        x = np.asarray(random((24,), 3, N)[0], TYPES[dtype])
        assert_cross_entropy(x, np.array([0, N - 1, 1]), start=start, out=start > 1)


@pytest.mark.parametrize("threads, loads", [(32, 1), (64, 2), (256, 4)])
def test_cross_entropy_at_other_launches(threads, loads):
    x = np.asarray(random((25,), 3, 5003)[0], np.float32)
    plans = [plan_cross_entropy(3, 5003, "float32", backward, threads, loads) for backward in (False, True)]
    assert_cross_entropy(x, np.array([0, 5002, 1]), plans=plans)


def test_cross_entropy_of_large_scores_keeps_its_digits():
    x = (20_000 + rng(26).normal(size=(4, 300))).astype(np.float32)
    loss, _ = gradients.cross_entropy_forward(cp.asarray(x), cp.asarray(np.arange(4)))
    want = -np.log(probabilities(x.astype(np.float64)))[np.arange(4), np.arange(4)]
    assert abs(cp.asnumpy(loss) - want).max() < 1e-5        # LSE - x would be off by 1e-3


# ----------------------------------------------------------------------------------------- for torch: the functions

DEVICE = "cuda" if on_gpu else "cpu"


def tensor(*shape, dtype=torch.float64, seed=27):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype).requires_grad_()


@pytest.mark.parametrize("save", gradients.SAVED)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 5), (11,), (1, 1)])
def test_gradcheck(name, save, shape):
    assert torch.autograd.gradcheck(lambda x: getattr(gradients, name)(x, save), tensor(*shape))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck_of_cross_entropy(reduction):
    targets = torch.tensor([0, 6, -100, 3], device=DEVICE)
    assert torch.autograd.gradcheck(lambda x: gradients.cross_entropy(x, targets, reduction=reduction), tensor(4, 7))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_as_torch(name, kind):
    x = tensor(4, 3, 50, dtype=kind)
    upstream = tensor(50, 4, 3, dtype=kind, seed=28).detach().permute(1, 2, 0)          # not contiguous
    near = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}[kind]
    exact = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(getattr(torch, name)(exact, -1), exact, upstream.double())
    for save in gradients.SAVED:
        y = getattr(gradients, name)(x, save)
        (dx,) = torch.autograd.grad(y, x, upstream)
        assert y.dtype == dx.dtype == kind and dx.shape == x.shape
        assert torch.allclose(y.double(), getattr(torch, name)(exact, -1), rtol=near, atol=near / 10)
        assert torch.allclose(dx.double(), want, rtol=near, atol=near if "log" in name else near / 10)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_as_torch(kind, reduction):
    x, targets = tensor(6, 200, dtype=kind), torch.tensor([0, 199, -100, 5, 7, -100], device=DEVICE)
    exact = x.detach().double().requires_grad_()
    got = gradients.cross_entropy(x, targets, reduction=reduction)
    want = torch.nn.functional.cross_entropy(exact, targets, reduction=reduction)
    assert got.dtype == torch.float32 and torch.allclose(got.double(), want, rtol=1e-5, atol=1e-6)
    (dx,), (dx_want,) = torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), exact)
    near = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[kind]
    assert dx.dtype == kind and torch.allclose(dx.double(), dx_want, rtol=near, atol=1e-6)


def test_16_bit_gradients_from_x_do_not_see_the_rounding_of_y():
    x = tensor(20, 500, dtype=torch.bfloat16)
    upstream, error = torch.ones(20, 500, device=DEVICE).bfloat16(), {}
    exact = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(torch.log_softmax(exact, -1), exact, upstream.double())
    for save in gradients.SAVED:
        (dx,) = torch.autograd.grad(gradients.log_softmax(x, save), x, upstream)
        error[save] = (dx.double() - want).norm() / want.norm()
    assert error["x"] < error["y"] / 3


def test_a_masked_row_does_not_poison_what_comes_before_it():
    x = tensor(3, 5, dtype=torch.float32).detach()
    x[1] = -INF
    for function, poisoned in ((lambda t: torch.softmax(t, -1), True), (lambda t: gradients.softmax(t, "y"), True),
                               (gradients.softmax, False), (gradients.log_softmax, False)):
        leaf = x.clone().requires_grad_()
        alive = torch.where(torch.isneginf(leaf).all(-1, keepdim=True), 0.0, function(leaf))
        (alive ** 2).sum().backward()
        assert bool(leaf.grad[1].isnan().all()) == poisoned and leaf.grad[[0, 2]].isfinite().all()
        assert poisoned or (leaf.grad[1] == 0).all()


def test_all_targets_ignored_is_nan_with_gradient_0_as_in_torch():
    x, targets = tensor(3, 5, dtype=torch.float32), torch.full((3,), -100, device=DEVICE)
    loss = gradients.cross_entropy(x, targets)
    assert loss.isnan()
    loss.backward()
    assert (x.grad == 0).all()


def test_a_layer_trains():
    torch.manual_seed(0)
    w, data, targets = torch.zeros(6, 4, requires_grad=True), torch.randn(50, 6), torch.randint(4, (50,))
    losses = []
    for _ in range(5):
        loss = gradients.cross_entropy(data @ w, targets)
        losses.append(loss.item())
        (step,) = torch.autograd.grad(loss, w)
        w = (w - step).detach().requires_grad_()
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(np.log(4), abs=1e-6)


def test_empty_tensors():
    for shape in ((0, 5), (5, 0), (2, 0, 3)):
        x = torch.zeros(shape, requires_grad=True)
        y = gradients.softmax(x)
        assert y.shape == shape
        y.sum().backward()
        assert x.grad.shape == shape
    assert gradients.cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), reduction="sum") == 0


def test_not_differentiable_twice():
    x = tensor(2, 3)
    (dx,) = torch.autograd.grad(gradients.softmax(x), x, tensor(2, 3, seed=31), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


# -------------------------------------------------------------------------------------------------- refused input


def rows(*shape, dtype=np.float32):
    return cp.asarray(np.zeros(shape, dtype))


REFUSED = {
    "a NumPy array": (lambda: gradients.softmax_backward(np.zeros((2, 3), np.float32), rows(2, 3)), TypeError, "cp.asarray"),
    "integers": (lambda: gradients.softmax_forward(rows(2, 3, dtype=np.int32)), TypeError, "astype"),
    "one dimension": (lambda: gradients.softmax_forward(rows(3)), ValueError, r"\[M, N\]"),
    "not contiguous": (lambda: gradients.softmax_forward(rows(2, 8)[:, ::2]), ValueError, "ascontiguousarray"),
    "dy not contiguous": (lambda: gradients.softmax_backward(rows(2, 4), rows(2, 8)[:, ::2]), ValueError, "dy is not contiguous"),
    "dy of another shape": (lambda: gradients.softmax_backward(rows(2, 3), rows(2, 4)), ValueError, r"dy must have shape \(2, 3\)"),
    "dy of another type": (lambda: gradients.softmax_backward(rows(2, 3), rows(2, 3, dtype=np.float16)), TypeError, "dy must be float32"),
    "an LSE for states": (lambda: gradients.softmax_backward_from_x(rows(2, 3), rows(2), rows(2, 3)), ValueError, r"\(2, 2\)"),
    "int32 targets": (lambda: gradients.cross_entropy_forward(rows(2, 3), rows(2, dtype=np.int32)), TypeError, "int64"),
    "too few targets": (lambda: gradients.cross_entropy_forward(rows(2, 3), rows(1, dtype=np.int64)), ValueError, r"\(2,\)"),
    "no classes": (lambda: gradients.cross_entropy_forward(rows(2, 0), rows(2, dtype=np.int64)), ValueError, "no columns"),
    "a list for a tensor": (lambda: gradients.softmax([1.0]), TypeError, "torch tensor"),
    "an integer tensor": (lambda: gradients.softmax(torch.zeros(2, 3, dtype=torch.int64)), TypeError, r"x.float\(\)"),
    "a number": (lambda: gradients.softmax(torch.tensor(1.0)), ValueError, "no axis"),
    "an unknown save": (lambda: gradients.softmax(torch.zeros(2, 3), "z"), ValueError, "x, y"),
    "an unknown reduction": (lambda: gradients.cross_entropy(torch.zeros(2, 3), torch.zeros(2).long(), reduction="max"), ValueError,
                             "none"),
    "three dimensions": (lambda: gradients.cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2).long()), ValueError, r"\[M, N\]"),
    "float targets": (lambda: gradients.cross_entropy(torch.zeros(2, 3), torch.zeros(2)), TypeError, "int64"),
    "a target out of range": (lambda: gradients.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])), IndexError, "0 … 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        make()


def test_overlap_is_refused():
    memory = rows(20)
    x, out = memory[:12].reshape(3, 4), memory[4:16].reshape(3, 4)
    states, t, scale = rows(3, 2), rows(3, dtype=np.int64), rows(3)
    with pytest.raises(ValueError, match="overlaps"):
        gradients.cross_entropy_backward(x, states, t, scale, out=out)


# ------------------------------------------------------------------------------------------------ plans and traffic


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("clusters", [False, True])
def test_plans_hold_every_row(dtype, clusters):
    width = 16 // np.dtype(TYPES[dtype]).itemsize
    for N in [*range(1, 3000), *range(3000, 600_000, 997), *(2**k + e for k in range(12, 20) for e in (-1, 0, 1))]:
        for shared in (64 << 10, 99 << 10, 232_448):
            plan = plan_backward(1000, N, dtype, shared, clusters)
            macros = dict(re.fullmatch(r"-D(\w+)(?:=(\d+))?", m).groups() for m in plan.macros)
            assert plan.threads <= 1024 and plan.threads % 32 == 0 and plan.shared_mem <= shared - 4096
            if plan.file == "backward/two_passes.cu":
                continue
            lanes, cluster, vectors = (int(macros.get(name) or 0) for name in ("LANES", "CLUSTER", "VECTORS"))
            team = lanes or plan.threads * max(1, cluster)
            assert team * vectors * width >= N and team >= 2 * width and (clusters or cluster <= 1)
            assert plan.grid == (-(-1000 * lanes // plan.threads) if lanes else 1000 * max(1, cluster))
            assert not plan.shared_mem or plan.shared_mem == 16 * plan.threads * vectors


def test_a_shorter_row_leaves_the_shared_memory_of_a_longer_one():
    ready = []
    for N in (65_536, 32_768):                              # one kernel, with two amounts of shared memory
        plan = plan_backward(1, N, "bfloat16", way=Way(65_536, 8, parked=True))
        x, dy = (v.astype(ml_dtypes.bfloat16) for v in random((28,), 1, N))
        saved = rows_for("softmax_backward", x)
        dx, memory = fresh((1, N), ml_dtypes.bfloat16)
        ready.append((prepare("softmax_backward", cp.asarray(saved), cp.asarray(dy), dx, plan=plan), plan, saved, dy, dx, memory))
    assert ready[0][1].macros == ready[1][1].macros and ready[0][1].shared_mem > ready[1][1].shared_mem > 48 << 10
    with cpu_device.settings(checked=False):
        for launch, _, saved, dy, dx, memory in ready:      # on a GPU, a kernel has one limit for all its launches
            launch()
            assert_near(result(dx, memory), *truth("softmax_backward", saved.astype(np.float64), dy.astype(np.float64)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype, N", [("float32", 64), ("float32", 333), ("float32", 4096), ("float32", 9000), ("bfloat16", 1000)])
def test_counted_traffic(dtype, N, seed):
    M, kind = 5, TYPES[dtype]
    x, dy = (cp.asarray(v.astype(kind)) for v in random((29,), M, N))
    dx = cp.empty((M, N), dtype=kind)
    y, states = gradients.softmax_forward(x)
    t, scale = cp.asarray(np.arange(M)), cp.asarray(np.ones(M, np.float32))
    loss, one = cp.empty(M, dtype=np.float32), x.nbytes
    for entry, arrays_, reads, output in (
            ("softmax_backward", (y, dy, dx), 2, dx), ("softmax_backward_from_x", (x, states, dy, dx), 2, dx),
            ("log_softmax_backward", (y, dy, dx), 2, dx), ("cross_entropy_forward", (x, t, loss, states), 1, loss),
            ("cross_entropy_backward", (x, states, t, scale, dx), 1, dx)):
        launch = prepare(entry, *arrays_, plan=None if entry.startswith("cross") else plan_backward(M, N, dtype))
        c = launch.count(outputs=(output,), seed=seed)
        rows_read = sum(c.of(name)[0].bytes for name in {r.array for r in c.rows if r.space == "global"} & {"x", "y", "log_y", "dy"})
        assert rows_read == reads * one + (M * x.itemsize if entry == "cross_entropy_forward" else 0)       # and x[target]
        assert c.loads.bytes == rows_read or "from_x" in entry or "cross" in entry                          # states, targets
        assert c.stores.bytes == (one if output is dx else M * 12)
    two = prepare("softmax_backward", y, dy, dx, plan=plan_backward(M, N, dtype, alike=False)).count(seed=seed)
    assert two.loads.bytes == 4 * one and two.stores.bytes == one


@pytest.mark.parametrize("file", ["two_passes", "registers", "forward", "cross_entropy"])
def test_header_comment(file):
    text = snippets.text(f"backward/{file}.cu")
    assert all(f"// {word}:" in text for word in ("New", "Traffic", "Launch", "Limits"))


def test_forward_plans():
    for N in (1, 5, 1000, 8192, 8193, 10**6):
        plan = plan_forward(3, N, "bfloat16")
        assert 32 <= plan.threads <= 1024 and plan.threads % 32 == 0 and plan.grid == 3

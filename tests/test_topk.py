"""Softmax + top-k against a stable sort in float64: every kernel, every width, adversarial rows, refused input.

Outputs are prefilled with NaN and -1, nothing may be written behind them, and `reference.agrees` never lets a NaN pass.
"""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ml_dtypes import bfloat16

from helpers import cpu_device, ladder, reference, topk
from helpers.device import cp
from helpers.measure import count
from helpers.topk import Plan, oracle, plan, softmax_and_topk, softmax_topk

NAN, INF = np.nan, np.inf
BIG = float(np.finfo(np.float32).max)
OPTIONS = {"float32": (), "float16": ("-DHALF",), "bfloat16": ("-DBF16",)}


def rng(*seed):
    return np.random.default_rng(seed)


def short(M, k, group, loads, options=()):
    return Plan("short_rows.cu", (*options, f"-DK={k}", f"-DGROUP={group}", f"-DLOADS={loads}"), (-(-M * group // 128),), (128,))


def online(M, k, warps, loads=4, rows=None, file="online_fused.cu", options=()):
    rows = rows or (4 if warps == 1 else 1)
    return Plan(file, (*options, f"-DK={k}", f"-DWARPS={warps}", f"-DROWS={rows}", f"-DLOADS={loads}"), (-(-M // rows),),
                (32 * warps * rows,))


def split(M, k, warps, splits, loads=4, options=()):
    return Plan("split_rows.cu", (*options, f"-DK={k}", f"-DWARPS={warps}", f"-DLOADS={loads}"), (splits, M), (32 * warps,), splits)


def run(x: np.ndarray, k: int, chosen: Plan | None = None, temperature: float = 1.0, shift: int = 0):
    """One launch into prefilled memory: (p, indices, lse).  `shift` logits lie before the first row, so that it starts anywhere."""
    M, N = x.shape
    memory = cp.asarray(np.concatenate([np.full(shift, 99, x.dtype), np.ascontiguousarray(x).reshape(-1)]))
    device = memory[shift:].reshape(M, N)
    p, indices = cp.asarray(np.full((M + 3, k), NAN, np.float32)), cp.asarray(np.full((M + 3, k), -1, np.int32))
    lse = cp.asarray(np.full(M + 3, NAN, np.float32))
    for launch in topk.launches(device, p, indices, lse, temperature, chosen=chosen):
        launch()
    p, indices, lse = (cp.asnumpy(a) for a in (p, indices, lse))
    assert np.isnan(p[M:]).all() and (indices[M:] == -1).all() and np.isnan(lse[M:]).all(), "wrote behind the end"
    return p[:M], indices[:M], lse[:M]


def assert_right(x, k, chosen=None, temperature=1.0, shift=0, rtol=1e-5):
    x = np.asarray(x)
    x = x if x.dtype in (np.float16, bfloat16) else x.astype(np.float32)
    p, indices, lse = run(x, k, chosen, temperature, shift)
    expected, order, row_lse = oracle(x, k, temperature)
    where = f"{x.shape} {x.dtype}, k={k}, {chosen or plan(*x.shape, k, x.dtype)}"
    assert np.array_equal(indices, order), f"columns, {where}"
    assert reference.agrees(p, expected, rtol=rtol), f"probabilities, {where}"
    size = np.max(np.abs(row_lse), where=np.isfinite(row_lse), initial=1)
    assert reference.agrees(lse, row_lse, atol=2e-6 * size, rtol=INF), f"lse, {where}"


KERNELS = {  # a plan for M rows and k candidates; all of them reach rows of 1 to 1,000
    "short, 8 lanes": lambda M, k: short(M, k, 8, 16),
    "short, 16 lanes": lambda M, k: short(M, k, 16, 8),
    "short, 32 lanes": lambda M, k: short(M, k, 32, 8),
    "online, 1 warp": lambda M, k: online(M, k, 1),
    "online, 2 warps": lambda M, k: online(M, k, 2, loads=2),
    "online, 8 warps": lambda M, k: online(M, k, 8, loads=1),
    "safe, 1 warp": lambda M, k: online(M, k, 1, file="safe_fused.cu"),
    "safe, 4 warps": lambda M, k: online(M, k, 4, loads=1, file="safe_fused.cu"),
    "split, 2 warps": lambda M, k: split(M, k, 2, 5, loads=1),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def reach(name):
    """The longest row of fp32."""
    return 8 * 64 - 3 if name in ("short, 8 lanes", "short, 16 lanes") else 1000


def most(name):
    """The most candidates."""
    return int(name.split()[1]) if name.startswith("short") else 64


# ---------------------------------------------------------------------------------------------- right rows


@every_kernel
def test_every_n_and_every_start(name):
    for N in [*range(1, 18), 31, 33, 64, 129, 255, 257, 509, 511, 512, 513, 1000]:
        if N <= reach(name):
            k = 5 if N >= 5 else 1
            assert_right(3 * rng(1, N).normal(size=(5, N)), k, KERNELS[name](5, k), shift=N % 4)


@pytest.mark.parametrize("name", ["short, 32 lanes", "online, 1 warp", "online, 2 warps", "split, 2 warps"])
@pytest.mark.parametrize("k", [2, 31, 32, 33, 64])
def test_every_k(name, k):
    if k > most(name):
        return
    assert_right(4 * rng(2, k).normal(size=(6, 300)), k, KERNELS[name](6, k))
    assert_right(4 * rng(3, k).normal(size=(2, k)), k, KERNELS[name](2, k))             # the whole row, sorted


@every_kernel
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_logits(name, dtype):
    options, loads = OPTIONS[dtype], int(re.search(r"LOADS=(\d+)", str(KERNELS[name](1, 1).options))[1])
    loads = loads if name.startswith("short") else min(4, loads)
    for N, shift in ((1, 0), (7, 3), (64, 0), (203, 1), (500, 5)):
        k = 5 if N >= 5 else 1
        chosen = KERNELS[name](3, k)
        chosen = Plan(chosen.file, (*options, *chosen.options[:-1], f"-DLOADS={loads}"), chosen.grid, chosen.block, chosen.splits)
        x = (6 * rng(4, N).normal(size=(3, N))).astype(dtype if dtype == "float16" else bfloat16)
        assert_right(x, k, chosen, shift=shift)


def test_every_16_bit_number():
    x = np.arange(65536, dtype=np.uint16)
    for dtype, options in ((np.float16, ("-DHALF",)), (bfloat16, ("-DBF16",))):
        numbers = x.view(dtype)
        numbers = numbers[np.isfinite(numbers.astype(np.float32))]
        rows = numbers[: len(numbers) // 64 * 64].reshape(-1, 64)
        assert_right(rows, 64, online(len(rows), 64, 1, loads=1, options=options))


KINDS = {"float16": np.float16, "bfloat16": bfloat16}


@pytest.mark.parametrize("dtype", KINDS)
def test_short_16_bit_rows_at_every_n(dtype):
    for N in range(1, 258):
        k, shift = min(N, (1, 2, 3, 5, 8)[N % 5]), N * 3 % 8
        assert plan(7, N, k, dtype, aligned=shift == 0).file == "short_rows.cu"
        assert_right(np.round(2 * rng(13, N).normal(size=(7, N)), 1).astype(KINDS[dtype]), k, shift=shift)


@pytest.mark.parametrize("dtype", KINDS)
def test_longer_16_bit_rows(dtype):
    """Several bits' words a lane, every number of loads, and many logits at the bar."""
    for loads in range(1, 17):
        for N, shift in ((256 * loads, 0), (256 * loads - 8, 3), (256 * loads - 77, 0)):
            assert plan(7, N, 20, dtype, aligned=shift == 0).options[-3:-1] == (f"-DLOADS={loads}", "-DGROUP=32")
            x = 3 * rng(18, N).normal(size=(3, N))
            for rows in (x, np.round(x), np.where(rng(19, N).random((3, N)) < 0.99, -INF, x)):
                assert_right(rows.astype(KINDS[dtype]), 20, shift=shift)
    for N in (300, 500, 512, 700, 1024):
        assert_right(np.round(3 * rng(20, N).normal(size=(11, N)), 1).astype(KINDS[dtype]), 8)


@pytest.mark.parametrize("dtype", KINDS)
def test_short_16_bit_rows_of_special_numbers(dtype):
    limits = ml_dtypes.finfo(KINDS[dtype])
    values = np.array([NAN, -NAN, INF, -INF, 0.0, -0.0, 1, -1, float(limits.max), float(limits.min), float(limits.smallest_subnormal)])
    for seed, N in enumerate((5, 8, 77, 128, 201, 256) * 4):
        few = rng(14, seed).choice(values, size=rng(15, seed).integers(1, 5))
        x = rng(16, seed).choice(few, size=(40, N)).astype(KINDS[dtype])
        assert_right(x, 5)
        x = np.where(rng(17, seed).random((40, N)) < 0.9, -INF, x.astype(np.float32)).astype(KINDS[dtype])
        _, indices, _ = run(x, 5)
        assert ((0 <= indices) & (indices < N)).all() and all(len(set(row)) == 5 for row in indices.tolist())


SPECIAL = {
    "some -inf": [-INF, 1, -INF, 2, -INF, -INF, 0],
    "one finite among -inf": [-INF] * 70 + [-5] + [-INF] * 70,
    "fewer finite than k": [-INF] * 200 + [1, 2] + [-INF] * 200,
    "leading -inf": [-INF] * 300 + [1, 2],
    "trailing -inf": [1, 2] + [-INF] * 300,
    "all -inf": [-INF] * 5,
    "all -inf, long": [-INF] * 460,
    "a NaN first": [NAN, 1, 2, 3, 4, 5],
    "a NaN last": [1, 2, 3, 4, 5, NAN],
    "a NaN in the middle of a long row": [0.5] * 200 + [NAN] + [0.5] * 200,
    "a NaN behind its lane's maximum": [0.5] * 128 + [9] * 128 + [NAN] + [7] * 30,
    "more NaN than k": [1.0, NAN] * 150,
    "only NaN": [NAN] * 300,
    "NaN and -inf": [NAN] + [-INF] * 30,
    "+inf": [1, INF, 2, 3, 4, 5],
    "more +inf than k": [INF, 1] * 100,
    "+inf and -inf": [-INF] * 40 + [INF] + [-INF] * 40,
    "+inf and NaN": [INF, NAN, 0, NAN, INF, 1],
    "largest floats": [BIG, -BIG, 0, BIG, -BIG, 1],
    "far below 0": [-1000.0] * 300,
    "far above 0": [1000.0, 999.0, 1001.0] * 50,
    "1e30": [1e30, -1e30, 1e30, 0, 5, 6],
    "subnormal": [1e-40, -1e-40, 0, 2e-40, -0.0, 1e-45],
    "0 and -0": [-0.0, 0.0] * 60,
    "equal": [7.25] * 333,
    "equal 0": [0.0] * 500,
    "two values": [1.0, 2.0, 1.0, 1.0, 2.0] * 90,
    "ties at the k-th place": [5.0] * 3 + [4.0] * 200 + [3.0] * 100,
    "ties at the k-th place, best last": [3.0] * 100 + [4.0] * 200 + [5.0] * 3,
    "ascending": np.linspace(-30, 30, 450),
    "descending": np.linspace(30, -30, 500),
    "ascending in pairs": np.repeat(np.arange(220.0), 2),
    "maximum last": [0.0] * 477 + [50.0],
    "maximum first": [50.0] + [0.0] * 477,
    "half a float sum's ulp": [0.0] + [-0.28] * 500,
    "one large lane": np.r_[np.tile(np.r_[np.full(4, -5.0), np.arange(60.0)], 7)],
    "the six numbers of the articles": [-0.3, 0.2, 0.5, 0.7, 0.1, 0.8],
}


@every_kernel
@pytest.mark.parametrize("row", SPECIAL)
def test_special_row(name, row):
    x = np.asarray(SPECIAL[row], np.float32)[None]
    for k in (5, min(16, most(name)) if x.size >= 16 else 1):
        assert_right(x, k, KERNELS[name](1, k))


@every_kernel
def test_indices_are_distinct_and_in_range_whatever_the_row(name):
    values = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0], np.float32)
    x, k = rng(5).choice(values, size=(40, 77)), min(16, most(name))
    _, indices, _ = run(x, k, KERNELS[name](40, k))
    assert ((0 <= indices) & (indices < 77)).all() and all(len(set(row)) == k for row in indices.tolist())


@every_kernel
def test_a_bad_row_leaves_its_neighbours_alone(name):
    x = rng(6).normal(size=(13, 90)).astype(np.float32)
    x[1], x[3, 5], x[5, 0], x[6] = -INF, NAN, INF, 3
    assert_right(x, 5, KERNELS[name](13, 5))


@every_kernel
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.3, 50.0])
def test_temperature(name, temperature):
    assert_right(3 * rng(7).normal(size=(4, 333)), 5, KERNELS[name](4, 5), temperature, rtol=2e-5)


VALUES = st.one_of(st.floats(width=32), st.sampled_from([-INF, INF, NAN, 0.0, -0.0, 1.0, -104.0, 88.0, BIG, -BIG]),
                   st.integers(-3, 3).map(float))


@every_kernel
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row(name, data):
    k = data.draw(st.sampled_from([1, 5, min(16, most(name))]))
    N = data.draw(st.integers(k, 80))
    assert_right(data.draw(arrays(np.float32, (2, N), elements=VALUES)), k, KERNELS[name](2, k), shift=data.draw(st.integers(0, 3)))


@pytest.mark.parametrize("M, N, k", [(3, 20_000, 5), (2, 30_001, 64), (1, 128_256, 8), (5, 4096, 8), (4300, 130, 8), (200, 1500, 1),
                                     (4300, 1100, 20), (60, 3000, 32), (60, 2100, 40)])
def test_the_chosen_kernel(M, N, k):
    x = 3 * rng(8).normal(size=(M, N)).astype(np.float32)
    assert_right(x, k)
    if M < 100:
        assert_right(np.sort(x, axis=1), k)
        assert_right((x / 8).astype(np.float16), k, rtol=1e-5)                           # many ties


def test_the_plan_reaches_every_shape():
    for dtype in topk.TYPES:
        for N in (1, 5, 200, 1024, 1025, 25_000, 128_256, 10**6, 2**30):
            for M in (1, 10, 512, 4000, 65_536, 10**6):
                for k in {1, min(8, N), min(64, N)}:
                    chosen = plan(M, N, k, dtype)
                    macros = dict(re.findall(r"-D(\w+)=(\d+)", " ".join(chosen.options)))
                    width = 4 if dtype == "float32" else 8
                    if chosen.file == "short_rows.cu":
                        lanes = int(macros["GROUP"])
                        assert k <= lanes and N <= lanes * int(macros["LOADS"]) * width <= 8192 and chosen.grid[0] * 128 >= M * lanes
                    elif chosen.splits > 1:
                        assert chosen.grid == (chosen.splits, M) and M < 65_536
                    else:
                        assert chosen.grid[0] * chosen.block[0] >= 32 * int(macros["WARPS"]) * M


def test_a_row_of_ones_is_summed_exactly():
    x = np.zeros((1, 70_001), np.float32)
    p, _, lse = run(x, 3, online(1, 3, 1))
    assert reference.agrees(p, np.full((1, 3), 1 / 70_001), rtol=2e-7) and abs(lse[0] - np.log(70_001)) < 2e-6


# -------------------------------------------------------------------------------------- variants and traffic


@pytest.mark.parametrize("variant", topk.VARIANTS)
@pytest.mark.parametrize("M, N", [(5, 700), (2, 3001)])
def test_variants_agree(variant, M, N):
    x = 3 * rng(9).normal(size=(M, N)).astype(np.float32)
    p, indices = softmax_topk(cp.asarray(x), 5, variant=variant)
    expected, order, _ = oracle(x, 5)
    assert np.array_equal(cp.asnumpy(indices), order) and reference.agrees(cp.asnumpy(p), expected)


@pytest.mark.parametrize("M, N, dtype", [(3, 700, np.float32), (2, 3001, np.float32), (5, 90, np.float16), (4, 77, bfloat16)])
def test_the_whole_softmax_beside_the_candidates(M, N, dtype):
    x = (3 * rng(10).normal(size=(M, N))).astype(dtype)
    x[0, :5] = -INF
    y, p, indices = (cp.asnumpy(a) for a in softmax_and_topk(cp.asarray(x), 6, temperature=1.5))
    expected, order, _ = oracle(x, 6, 1.5)
    assert np.array_equal(indices, order) and reference.agrees(p, expected)
    assert reference.agrees(y, reference.softmax(x.astype(np.float64) / 1.5))
    assert np.array_equal(np.take_along_axis(y, indices.astype(np.int64), axis=1), p)


def test_a_row_without_finite_logits_is_nan_in_both():
    y, p, _ = softmax_and_topk(cp.asarray(np.full((2, 50), -INF, np.float32)), 3)
    assert np.isnan(cp.asnumpy(y)).all() and np.isnan(cp.asnumpy(p)).all()


TRAFFIC = {  # file -> bytes read and written per element of 4 bytes, beside the results
    "online_fused.cu": (4, 0),
    "safe_fused.cu": (8, 0),
    "online_whole.cu": (8, 4),
    "topk.cu": (4, 0),
    "short_rows.cu": (4, 0),                        # and what reaches the bar once more
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("file", TRAFFIC)
def test_counted_traffic_and_adverse_schedules(file, seed):
    M, N, k = 8, 605, 5                             # 8 rows fill the blocks
    x = cp.asarray(rng(11).normal(size=(M, N)).astype(np.float32))
    p, indices, lse = cp.empty((M, k), dtype=np.float32), cp.empty((M, k), dtype=np.int32), cp.empty((M,), dtype=np.float32)
    y, outputs, sizes = cp.empty((M, N), dtype=np.float32), [p, indices, lse], (np.int32(M), np.int32(N), np.float32(1))
    entry, args = {
        "online_fused.cu": ("softmax_topk_online", (x, p, indices, lse, *sizes)),
        "safe_fused.cu": ("softmax_topk_safe", (x, p, indices, lse, *sizes)),
        "online_whole.cu": ("softmax_topk_whole", (x, y, p, indices, lse, *sizes)),
        "topk.cu": ("topk", (x, p, indices, *sizes[:2])),
        "short_rows.cu": ("softmax_topk_short", (x, p, indices, lse, *sizes)),
    }[file]
    outputs += [y] * (file == "online_whole.cu")
    outputs = outputs[:2] if file == "topk.cu" else outputs
    plans = [online(M, k, 1, file=file), online(M, k, 4, loads=1, file=file)]
    for chosen in [short(M, k, 16, 16), short(M, k, 32, 5)] if file == "short_rows.cu" else plans:
        kernel = ladder.kernel(f"topk/{file}", entry, chosen.options)
        counters = count(kernel, chosen.grid, chosen.block, args, outputs=outputs, seed=seed)
        reads, writes = TRAFFIC[file]
        results = M * (8 * k + (0 if file == "topk.cu" else 4))
        again = counters.loads.bytes - reads * M * N
        assert M * 4 * k <= again <= M * 4 * 3 * k if file == "short_rows.cu" else again == 0
        assert counters.stores.bytes == writes * M * N + results
        text = ladder.load(f"topk/{file}")
        assert f"{reads // 4} read" in text and ("are read again" in text) == (again > 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_split_rows_in_adverse_schedules(seed):
    M, N, k, splits = 2, 1500, 7, 3
    x = cp.asarray(rng(12).normal(size=(M, N)).astype(np.float32))
    keys, states = cp.empty((M * splits, k), dtype=np.uint64), cp.empty((M * splits, 2), dtype=np.float32)
    p, indices, lse = cp.empty((M, k), dtype=np.float32), cp.empty((M, k), dtype=np.int32), cp.empty((M,), dtype=np.float32)
    chosen = split(M, k, 2, splits, loads=1)
    part, merge = (ladder.kernel("topk/split_rows.cu", f"softmax_topk_{name}", chosen.options) for name in ("part", "merge"))
    counters = count(part, chosen.grid, chosen.block, (x, keys, states, np.int32(N), np.float32(1)), outputs=(keys, states), seed=seed)
    assert counters.loads.bytes == 4 * M * N
    part(chosen.grid, chosen.block, (x, keys, states, np.int32(N), np.float32(1)))
    count(merge, (M,), chosen.block, (keys, states, p, indices, lse, np.int32(splits), np.float32(1)), outputs=(p, indices, lse), seed=seed)


# ---------------------------------------------------------------------------------------------------- calls


def zeros(*shape, dtype=np.float32):
    return cp.asarray(np.zeros(shape, dtype))


REFUSED = {
    "a NumPy array": (lambda: softmax_topk(np.ones((2, 9), np.float32), 3), TypeError, "cp.asarray"),
    "float64": (lambda: softmax_topk(zeros(2, 9, dtype=np.float64), 3), TypeError, "astype"),
    "one dimension": (lambda: softmax_topk(zeros(9), 3), ValueError, r"\[M, N\]"),
    "a view": (lambda: softmax_topk(zeros(2, 9)[:, ::2], 3), ValueError, "ascontiguousarray"),
    "k = 0": (lambda: softmax_topk(zeros(2, 9), 0), ValueError, "1 to 64"),
    "k = 65": (lambda: softmax_topk(zeros(2, 90), 65), ValueError, "1 to 64"),
    "k above N": (lambda: softmax_topk(zeros(2, 9), 10), ValueError, "more than the N = 9"),
    "k above an N of 0": (lambda: softmax_topk(zeros(2, 0), 1), ValueError, "more than the N = 0"),
    "k = 2.0": (lambda: softmax_topk(zeros(2, 9), 2.0), TypeError, "integer"),
    "k = True": (lambda: softmax_topk(zeros(2, 9), True), TypeError, "integer"),
    "temperature 0": (lambda: softmax_topk(zeros(2, 9), 1, 0.0), ValueError, "argmax"),
    "temperature below 0": (lambda: softmax_topk(zeros(2, 9), 1, -1.0), ValueError, "positive"),
    "temperature NaN": (lambda: softmax_topk(zeros(2, 9), 1, NAN), ValueError, "positive"),
    "temperature inf": (lambda: softmax_topk(zeros(2, 9), 1, INF), ValueError, "finite"),
    "temperature 1e-40": (lambda: softmax_topk(zeros(2, 9), 1, 1e-40), ValueError, "float32"),
    "an unknown variant": (lambda: softmax_topk(zeros(2, 9), 1, variant="fast"), ValueError, "safe_separate, online_separate"),
    "separate with a temperature": (lambda: softmax_topk(zeros(2, 9), 1, 2.0, variant="safe_separate"), ValueError, "online_fused"),
    "separate with lse": (lambda: softmax_topk(zeros(2, 9), 1, variant="online_separate", lse=True), ValueError, "LSE"),
    "k above N, whole": (lambda: softmax_and_topk(zeros(2, 9), 10), ValueError, "more than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        call()


def test_a_row_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(topk, "MAX_N", 7)
    with pytest.raises(ValueError, match="in pieces"):
        softmax_topk(zeros(1, 8), 2)


def test_no_rows(monkeypatch):
    monkeypatch.setattr(topk, "kernel", lambda *_: pytest.fail("launched"))
    for variant in ("auto", *topk.VARIANTS):
        p, indices = softmax_topk(zeros(0, 9), 3, variant=variant)
        assert p.shape == indices.shape == (0, 3) and indices.dtype == np.int32
    assert softmax_and_topk(zeros(0, 9), 3)[0].shape == (0, 9)


def test_results_and_lse():
    x = cp.asarray(rng(13).normal(size=(3, 50)).astype(np.float32))
    p, indices, lse = softmax_topk(x, 4, 0.8, lse=True)
    assert (p.dtype, indices.dtype, lse.dtype) == (np.float32, np.int32, np.float32) and p.shape == (3, 4) and lse.shape == (3,)
    assert all(isinstance(a, cp.ndarray) for a in (p, indices, lse))


def test_k_above_the_lanes_of_a_row_does_not_compile():
    with pytest.raises(Exception, match="see Limits"):
        ladder.kernel("topk/short_rows.cu", "softmax_topk_short", ("-DK=17", "-DGROUP=16")).compile()
    with pytest.raises(Exception, match="see Limits"):
        ladder.kernel("topk/online_fused.cu", "softmax_topk_online", ("-DK=65",)).compile()


# ----------------------------------------------------------------------------------------------- the oracle


def test_the_oracle_sorts_as_a_stable_sort_does():
    x = np.array([[1.0, NAN, 3.0, 3.0, INF, -INF, NAN, 0.0, -0.0]])
    assert oracle(x, 9)[1].tolist() == [[1, 6, 4, 2, 3, 0, 7, 8, 5]]
    y = rng(14).integers(0, 9, size=(20, 100)).astype(np.float64)
    assert np.array_equal(oracle(y, 100)[1], np.argsort(-y, axis=1, kind="stable"))


def test_the_oracle_against_torch():
    torch = pytest.importorskip("torch")
    x = 3 * rng(15).normal(size=(6, 300))
    p, indices, lse = oracle(x, 10, 0.7)
    t = torch.from_numpy(x) / 0.7
    values, columns = torch.topk(torch.softmax(t, -1), 10)
    assert np.array_equal(columns.numpy(), indices) and np.allclose(values.numpy(), p, rtol=1e-12)
    assert np.allclose(torch.logsumexp(t, -1).numpy(), lse)


def test_it_is_the_cpu_device_that_checks():
    assert cpu_device.current.checked

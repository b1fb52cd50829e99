"""The fast softmax against float64: every kernel on special rows, the table, refused input, and compilation for three GPUs.

Runs on whichever device `cp` is; the kernels that need thread-block clusters run on a GPU only.
"""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from helpers import fast, reference
from helpers.cpu_device import CompileException
from helpers.device import cp, on_gpu
from helpers.fast import MAX_N, WAYS, Way
from helpers.measure import count
from helpers.snippets import load

NAN, INF, BIG = np.nan, np.inf, float(np.finfo(np.float32).max)
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def rng(*seed):
    return np.random.default_rng(seed)


def right(got: np.ndarray, x: np.ndarray, log: bool = False) -> bool:
    """`got` is softmax(x): the course's tolerance for float32, one rounding for the 16-bit types; NaN exactly where it belongs."""
    exact = (reference.log_softmax if log else reference.softmax)(x.astype(np.float64))
    if got.dtype == np.float32:
        if not log:
            return reference.agrees(got, exact)
        largest = np.max(np.abs(exact), where=np.isfinite(exact), initial=1)
        return reference.agrees(got, np.where(exact < -BIG, -INF, exact), atol=2e-7 * largest + 1e-6, rtol=INF)
    info = ml_dtypes.finfo(got.dtype)
    got = got.astype(np.float64)
    exact = np.where(exact < -float(info.max) * (1 + 2.0 ** (-info.nmant - 2)), -INF, exact)
    if not np.array_equal(np.isnan(got), np.isnan(exact)) or not np.array_equal(np.isinf(got), np.isinf(exact)):
        return False
    finite = np.isfinite(exact)
    size = np.abs(exact[finite])
    ulp = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(size, 1e-300))) - info.nmant), float(info.smallest_subnormal))
    # CuPy compiles every RawKernel with -ftz=true: a result that is subnormal in float32, as bf16 can hold it, becomes 0.
    flushed = (size < 1.2e-38) & (got[finite] == 0)
    return bool(np.all(flushed | (np.abs(got[finite] - exact[finite]) <= 0.5 * ulp + 1e-5 * size + 1e-6 * log)))


def run(way: Way, x: np.ndarray, *, log: bool = False, offset: int = 0, y_offset: int | None = None) -> np.ndarray:
    """Launch one line of a table on rows that begin `offset` elements off; y is prefilled with NaN and watched at both ends."""
    M, N = x.shape
    y_offset = offset if y_offset is None else y_offset
    aligned = offset == y_offset == 0 and N * x.itemsize % 16 == 0
    p = fast.plan(way, M, N, x.dtype.name, aligned, log)
    flat_x = cp.asarray(np.concatenate([np.zeros(offset, x.dtype), x.ravel()]))
    flat_y = cp.asarray(np.full(y_offset + M * N + 64, NAN, x.dtype))
    data, out = flat_x[offset:], flat_y[y_offset:]
    kernels, n = p.compiled(), np.int32(N)
    if p.kernel == "split":
        states = cp.empty(2 * p.grid, dtype=np.float32)
        kernels[0]((p.grid,), (p.threads,), (data, states, np.int32(p.parts), n))
        kernels[1]((p.grid,), (p.threads,), (data, out, states, np.int32(p.parts), n))
    else:
        kernels[0]((p.grid,), (p.threads,), (data, out, np.int32(M), n), shared_mem=p.shared_mem)
    y = cp.asnumpy(flat_y)
    assert np.isnan(y[:y_offset].astype(np.float32)).all() and np.isnan(y[y_offset + M * N:].astype(np.float32)).all(), "wrote outside y"
    return y[y_offset:y_offset + M * N].reshape(M, N)


SMALL = {                                               # a way of each kernel, small enough that short rows have several parts
    "warp": Way(MAX_N, "warp", vectors=2, threads=64), "block": Way(MAX_N, "block", vectors=2),
    "block, many threads": Way(MAX_N, "block", vectors=1, ahead=1), "shared": Way(MAX_N, "shared", threads=64),
    "split": Way(MAX_N, "split", vectors=1, threads=32)}
every_way = pytest.mark.parametrize("way", SMALL)


def special_rows(N: int, dtype: np.dtype) -> np.ndarray:
    """Rows of N elements that have made some softmax fail."""
    r = rng(N)
    random = 3 * r.normal(size=N)
    big = min(float(ml_dtypes.finfo(dtype).max), 3e38)
    at = [0, N // 2, N - 1]
    rows = [random, 20 * random, np.full(N, -INF), np.full(N, 7.25), np.full(N, -1000.0), np.sort(random), -np.sort(random)]
    for where in at:
        for value in (NAN, INF, big, -INF, 50.0):
            rows.append(np.where(np.arange(N) == where, value, random))
        rows.append(np.where(np.arange(N) == where, 1.5, -INF))
        rows.append(np.where(np.arange(N) == where, NAN, -INF))
        rows.append(np.where(np.arange(N) == where, INF, -INF))
    rows += [np.where(np.arange(N) % 3 == 0, -INF, random), np.where(np.arange(N) < N // 2, -INF, random), big / 100 * random,
             np.where(np.arange(N) % 2 == 0, big, -big), np.where(np.arange(N) % 2 == 0, INF, NAN)]
    with np.errstate(over="ignore"):
        return np.array(rows).astype(dtype)


@every_way
@every_dtype
def test_special_rows(way, dtype):
    for N, log in ((64, False), (203, True), (203, False), (400, False)):
        x = special_rows(N, DTYPES[dtype])
        assert right(run(SMALL[way], x, log=log), x, log), (N, log)


@every_way
@every_dtype
def test_rows_begin_anywhere(way, dtype):
    for offset, y_offset in ((1, 1), (3, 3), (7, 7), (1, 0), (0, 5)):
        x = (4 * rng(offset).normal(size=(5, 96))).astype(DTYPES[dtype])
        assert right(run(SMALL[way], x, offset=offset, y_offset=y_offset), x), (offset, y_offset)


@every_dtype
def test_any_n(dtype):
    more = {"float32": (33, 257, 1000, 1025, 4097), "float16": (1024, 4095), "bfloat16": (8191,)}
    for N in [*range(1, 10), 15, 16, 17, 31, 127, 129, *more[dtype]]:
        x = (5 * rng(N).normal(size=(2, N))).astype(DTYPES[dtype])
        assert right(cp.asnumpy(fast.softmax(cp.asarray(x))), x), N


@every_dtype
@pytest.mark.parametrize("N", [50257, 128256])
def test_vocabularies(dtype, N):
    x = (5 * rng(N).normal(size=(2, N))).astype(DTYPES[dtype])
    for log in (False, True):
        assert right(cp.asnumpy(fast.softmax(cp.asarray(x), log=log)), x, log)


@pytest.mark.gpu
@pytest.mark.skipif(not (on_gpu and fast.largest_cluster() > 1), reason="needs a GPU with thread-block clusters")
@every_dtype
@pytest.mark.parametrize("N", [33_000, 65_536, 100_001, 131_072, 151_936, 262_144, 262_145, 400_000, 1_000_000])
def test_long_rows_on_clusters(dtype, N):
    for M in (1, 3, 70, 300) if N <= 262_145 else (1, 3, 70):
        x = (5 * rng(N, M).normal(size=(M, N))).astype(DTYPES[dtype])
        rows = special_rows(N, DTYPES[dtype])
        x[: M // 2] = rows[np.arange(M // 2) % len(rows)]
        assert right(cp.asnumpy(fast.softmax(cp.asarray(x))), x), M


@every_dtype
def test_n_1_is_exactly_1(dtype):
    x = np.array([[0.0], [-1e30], [1e4], [-1e-7]]).astype(np.float32).clip(-6e4).astype(DTYPES[dtype])
    assert (cp.asnumpy(fast.softmax(cp.asarray(x))) == 1).all()
    assert (cp.asnumpy(fast.softmax(cp.asarray(x), log=True)) == 0).all()


def test_masked_entries_are_exactly_0():
    x = rng(7).normal(size=(4, 2000)).astype(np.float32)
    x[:, ::3] = -INF
    assert (cp.asnumpy(fast.softmax(cp.asarray(x)))[:, ::3] == 0).all()
    assert (cp.asnumpy(fast.softmax(cp.asarray(x), log=True))[:, ::3] == -INF).all()


def test_relative_error_of_tiny_probabilities():
    for top in (30, 60, 69):
        x = np.concatenate([[0.0], -top * rng(top).random(4000)]).astype(np.float32)[None]
        for way in ("block", "shared", "split"):
            assert reference.agrees(run(SMALL[way], x + np.float32(1e-3)), reference.softmax(x + np.float32(1e-3)))


# ------------------------------------------------------------------------------------------------- the call


@every_dtype
def test_in_place_into_out_and_along_the_last_axis(dtype):
    X = (3 * rng(1).normal(size=(2, 3, 300))).astype(DTYPES[dtype])
    x = cp.asarray(X)
    out = cp.empty(X.shape, dtype=X.dtype)
    assert fast.softmax(x, out=out) is out and right(cp.asnumpy(out), X)
    assert cp.asnumpy(fast.softmax(x)).tobytes() == cp.asnumpy(out).tobytes()
    assert fast.softmax(x, out=x) is x and cp.asnumpy(x).tobytes() == cp.asnumpy(out).tobytes()
    row = cp.asarray(X[0, 0])
    assert right(cp.asnumpy(fast.softmax(row)), X[0, 0])


def test_a_view_that_begins_anywhere_gets_an_output_aligned_like_it():
    for dtype in DTYPES.values():
        flat = (3 * rng(2).normal(size=1 + 4 * 256)).astype(dtype)
        x = cp.asarray(flat)[1:].reshape(4, 256)
        y = fast.softmax(x)
        assert y.data.ptr % 16 == x.data.ptr % 16 and right(cp.asnumpy(y), flat[1:].reshape(4, 256))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), (2, 0, 7)])
def test_empty_result_without_a_launch(shape, monkeypatch):
    monkeypatch.setattr(fast, "kernel", lambda *_: pytest.fail("launched"))
    y = fast.softmax(cp.asarray(np.empty(shape, np.float32)))
    assert y.shape == shape and y.dtype == np.float32


def test_rows_that_do_not_fit_the_cache_are_split_in_turns(monkeypatch):
    monkeypatch.setattr(fast, "L2_SHARE", 3 * 70_000 * 4)
    monkeypatch.setattr(fast, "WAYS", {"float32": (Way(MAX_N, "split", vectors=4, threads=512),)})
    monkeypatch.setattr(fast, "_launches", {})
    x = rng(3).normal(size=(7, 70_000)).astype(np.float32)
    assert right(cp.asnumpy(fast.softmax(cp.asarray(x))), x)


def ones(*shape, dtype=np.float32):
    return cp.asarray(np.ones(shape, dtype))


REFUSED = {
    "a NumPy array": (lambda: (np.ones((2, 3), np.float32),), TypeError, "cp.asarray"),
    "float64": (lambda: (ones(2, 3, dtype=np.float64),), TypeError, "astype"),
    "integers": (lambda: (ones(2, 3, dtype=np.int32),), TypeError, "astype"),
    "no axis": (lambda: (ones(),), ValueError, "last axis"),
    "a transposed view": (lambda: (ones(2, 3).T,), ValueError, "ascontiguousarray"),
    "every second column": (lambda: (ones(2, 8)[:, ::2],), ValueError, "ascontiguousarray"),
    "out of another shape": (lambda: (ones(2, 8), ones(2, 9)), ValueError, "like x"),
    "out of another dtype": (lambda: (ones(2, 8), ones(2, 8, dtype=np.float16)), ValueError, "like x"),
    "out on the host": (lambda: (ones(2, 8), np.ones((2, 8), np.float32)), TypeError, "cp array"),
    "out not contiguous": (lambda: (ones(2, 8), ones(2, 16)[:, ::2]), ValueError, "contiguous"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        fast.softmax(*make())


def test_refuses_an_out_that_overlaps_x():
    flat = ones(100)
    with pytest.raises(ValueError, match="overlaps"):
        fast.softmax(flat[:80].reshape(2, 40), out=flat[20:].reshape(2, 40))


def test_a_row_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(fast, "MAX_N", 7)
    with pytest.raises(ValueError, match="split x"):
        fast.softmax(ones(1, 8, dtype=np.float16))


def test_the_same_shape_is_planned_once(monkeypatch):
    x = ones(3, 123)
    fast.softmax(x)
    monkeypatch.setattr(fast, "_planned", lambda *_: pytest.fail("planned again"))
    fast.softmax(x)


def test_each_device_has_plans_of_its_own(monkeypatch):
    x, planned = ones(3, 124), []
    plan = fast._planned
    monkeypatch.setattr(fast, "_planned", lambda *args: planned.append(args) or plan(*args))
    for device in (7, 8, 7):
        monkeypatch.setattr(fast, "_device", lambda device=device: device)
        fast.softmax(x)
    assert len(planned) == 2


def test_another_view_of_the_same_memory_is_in_place():
    X = rng(6).normal(size=(4, 300)).astype(np.float32)
    x = cp.asarray(X)
    fast.softmax(x, out=x.reshape(4, 300))
    assert right(cp.asnumpy(x), X)


# ------------------------------------------------------------------------------------------------ the table

LENGTHS = sorted({max(1, 2**k + d) for k in range(31) for d in (-1, 0, 1) if 2**k + d <= MAX_N}
                 | {w.max_n + d for table in WAYS.values() for w in table for d in (-1, 0, 1) if w.max_n + d <= MAX_N})


@every_dtype
@pytest.mark.parametrize("clusters", [16, 8, 1])
def test_the_table_has_a_kernel_for_every_row(dtype, clusters):
    width = 16 // DTYPES[dtype].itemsize
    for N in LENGTHS:
        for M in (1, 40, 200, 5000):
            way = fast.way(M, N, dtype, clusters)
            assert way.cluster <= clusters
            for aligned in {N % width == 0, False}:
                p = fast.plan(way, M, N, dtype, aligned)
                macros = dict(m[2:].split("=") for m in p.macros if "=" in m)
                assert 32 <= p.threads <= 1024 and p.threads % 32 == 0 and 1 <= p.grid < 2**31
                fixed = 8 * p.threads // 32 * way.cluster        # the states of the warps
                assert p.shared_mem + fixed <= fast.MAX_SHARED
                threads_a_row = {"warp": int(macros.get("LANES", 0)), "split": p.parts * p.threads}.get(p.kernel, way.cluster * p.threads)
                room = p.shared_mem // 16 * way.cluster if p.kernel == "shared" else threads_a_row * int(macros["VECTORS"])
                assert room * width >= N and (aligned or threads_a_row >= min(N, 2 * width - 2))
                if p.kernel in ("block", "cluster", "shared"):
                    assert p.grid == M * way.cluster
                else:
                    rows = p.grid * p.threads // threads_a_row
                    assert M <= rows < M + p.threads // threads_a_row + 1


def test_lines_of_the_table_are_in_order():
    for table in WAYS.values():
        for clusters in (16, 8, 1):
            lines = [w for w in table if w.cluster <= clusters]
            assert lines[-1].max_n == MAX_N and lines[-1].min_rows == 0
        assert all(fast.way(w.min_rows or 1, w.max_n, dtype, w.cluster) for dtype, t in WAYS.items() for w in t)


@pytest.mark.skipif(on_gpu, reason="the CPU device's words")
def test_the_cpu_device_says_that_it_has_no_clusters():
    p = fast.plan(Way(MAX_N, "cluster", cluster=2), 1, 4096, "float32", True)
    with pytest.raises(CompileException, match="clusters need a GPU of compute capability 9.0"):
        p.compiled()[0].compile()


def test_a_shorter_row_leaves_the_shared_memory_of_a_longer_one():
    """Kernels are shared by plans with the same macros: the limit of dynamic shared memory may only grow."""
    way = Way(MAX_N, "shared", threads=1024)
    long, short = (fast.plan(way, 1, N, "float32", True) for N in (57_344, 20_480))
    (kernel,) = long.compiled()
    assert long.macros == short.macros and short.compiled() == [kernel] and long.shared_mem > short.shared_mem > 48 << 10
    assert kernel.max_dynamic_shared_size_bytes >= long.shared_mem


@pytest.mark.parametrize("way", ["warp", "block", "shared"])
def test_each_element_is_read_once_and_written_once(way):
    M, N = 6, 256
    for dtype in DTYPES.values():
        x = cp.asarray(rng(4).normal(size=(M, N)).astype(dtype))
        y = cp.empty((M, N), dtype=dtype)
        p = fast.plan(SMALL[way], M, N, dtype.name, True)
        for seed in (0, 1):
            c = count(p.compiled()[0], (p.grid,), (p.threads,), (x, y, np.int32(M), np.int32(N)), shared_mem=p.shared_mem,
                      outputs=(y,), seed=seed)
            assert c.loads.bytes == c.stores.bytes == x.nbytes and c.loads.instructions == x.nbytes // 16


# ------------------------------------------------------------------------- half and bf16 on the CPU device


def test_conversions_round_as_numpy_does():
    source = r"""
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void convert(const float* x, half* h, __nv_bfloat16* b, float* from_h, float* from_b, int n) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        h[i] = __float2half_rn(x[i]), b[i] = __float2bfloat16_rn(x[i]);
        from_h[i] = __half2float(h[i]), from_b[i] = __bfloat162float(b[i]);
    }"""
    every_half = np.arange(0, 65536, 7, dtype=np.uint16).view(np.float16).astype(np.float32)
    every_half = every_half[np.isfinite(every_half)]
    any_bits = rng(5).integers(0, 2**32, 5000, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([every_half, (every_half[1:] + every_half[:-1]) / 2, any_bits,
                        np.float32([NAN, INF, -INF, 65519.9, 65520, 1e-8, 2.98e-8])]).astype(np.float32)
    n = len(x)
    h, b = cp.empty(n, dtype=np.float16), cp.empty(n, dtype=DTYPES["bfloat16"])
    from_h, from_b = cp.empty(n, dtype=np.float32), cp.empty(n, dtype=np.float32)
    cp.RawKernel(source, "convert")((-(-n // 256),), (256,), (cp.asarray(x), h, b, from_h, from_b, np.int32(n)))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16), x.astype(DTYPES["bfloat16"])
    for got, back, want in ((h, from_h, expected[0]), (b, from_b, expected[1])):
        assert np.array_equal(cp.asnumpy(got).astype(np.float32), want.astype(np.float32), equal_nan=True)
        assert np.array_equal(cp.asnumpy(back), want.astype(np.float32), equal_nan=True)


# ---------------------------------------------------------------------------------- compiling without a GPU


def plans(arch: str):
    """The launches of the table at the longest row of each line, for GPUs like `arch`."""
    for dtype in DTYPES:
        for way in WAYS[dtype]:
            if way.cluster > 1 and arch != "sm_90a":
                continue
            unaligned, cases = way.max_n - 1, [(way.max_n, False), (way.max_n - 1, True)]
            if dtype == "float16" or arch != "sm_90a":
                cases = [(unaligned, True)]
            for N, log in cases:
                yield fast.plan(way, 1000, N, dtype, N == way.max_n, log)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_the_table_compiles_and_the_row_stays_in_registers(arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the test packages cuda-bindings and nvidia-cuda-nvrtc")
    for key, p in {(p.kernel, p.macros): p for p in plans(arch)}.items():
        log = ptxas_report(load(f"fast/{p.kernel}.cu"), arch, [*p.macros])
        registers, spilled = re.findall(r"Used (\d+) registers", log), re.findall(r"(\d+) bytes spill stores", log)
        assert len(registers) == len(p.entries()), log
        assert all(int(n) <= 8 for n in spilled), (key, log)                # a word or two, outside the loops over the row
        assert max(map(int, registers)) * p.threads <= 65536, (key, log)


def ptxas_report(source: str, arch: str, options: list[str]) -> str:
    import nvidia
    from cuda.bindings import nvrtc

    include = [f"-I{path}" for root in nvidia.__path__ for path in Path(root).glob("*/include")]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"snippet.cu", 0, [], [])
    flags = [flag.encode() for flag in ("-std=c++17", f"-arch={arch}", "--ptxas-options=-v", *options, *include)]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    return log.decode()

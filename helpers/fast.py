"""`softmax`: the fastest softmax of the course.  A table says which kernel a row gets; a call costs a few microseconds.

The kernels are in cuda_snippets/fast/.  `WAYS` is the table, made from measurements on an H200; `plan` turns one line of it
into a launch, and `softmax` keeps the plan for the next call with the same shape.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import NamedTuple

import numpy as np

from .device import cp, on_gpu
from .ladder import MAX_N, TYPES, allow_shared, kernel

MAX_SHARED = 232_448            # bytes of shared memory that one block may have: 227 KB
SMS = 132                       # multiprocessors of an H100 or H200
L2_SHARE = 24 << 20            # bytes of input that are likely to stay in the L2 cache between two kernels
_LARGE_CLUSTERS = 14            # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2           # CU_LAUNCH_PARAM_...: the arguments of a launch as bytes one after the other
_device: Callable[[], int] = cp.cuda.runtime.getDevice if on_gpu else lambda: 0     # the number of the present one


@dataclass(frozen=True)
class Way:
    """A line of the table: rows of up to `max_n` elements, at least `min_rows` of them, are computed like this.

    `kernel` names a file of cuda_snippets/fast/.  `vectors` is how many pieces of 16 bytes a thread may hold, `threads` the size
    of a block (0: as many as the row needs), `cluster` the blocks a row is spread over.  `ahead`: so many KB for each multiprocessor
    before a block's row the L2 cache is asked for another.  `registers` that a thread may use, so that more blocks share a
    multiprocessor (0: what the compiler likes; in a cluster, and there always if rows are not aligned, 32 more than what holds the row).
    """

    max_n: int
    kernel: str
    min_rows: int = 0
    vectors: int = 4
    threads: int = 0
    cluster: int = 1
    ahead: int = 0
    registers: int = 0


_FLOAT = (
    Way(128, "warp", vectors=1, threads=128),
    Way(256, "warp", vectors=2, threads=128),
    Way(512, "block", vectors=2),
    Way(1_024, "block", vectors=2, ahead=32),
    Way(2_048, "block", vectors=6, ahead=32),
    Way(4_096, "block", min_rows=264, vectors=5, ahead=48),
    Way(4_096, "block", vectors=4),
    Way(6_144, "block", vectors=6, ahead=32),
    Way(8_192, "block", vectors=2, ahead=32),
    Way(16_384, "block", min_rows=264, vectors=8, ahead=16),
    Way(16_384, "cluster", min_rows=64, cluster=4, vectors=4),
    Way(16_384, "cluster", cluster=8, vectors=4),
    Way(32_768, "cluster", min_rows=264, cluster=4, vectors=8, ahead=16),
    Way(32_768, "cluster", cluster=8, vectors=4),
    Way(65_536, "cluster", cluster=16, vectors=8, ahead=32),
    Way(524_288, "cluster", cluster=16, vectors=12, ahead=32),
    # clusters of 8 at most
    Way(262_144, "cluster", cluster=8, vectors=12),
    Way(458_752, "shared", cluster=8, threads=1024),
    # without clusters
    Way(49_152, "block", vectors=12),
    Way(57_344, "shared", threads=1024),
    Way(MAX_N, "split", vectors=4, threads=256),
)
_TWO_BYTES = (
    Way(128, "warp", vectors=1, threads=128),
    Way(512, "warp", vectors=2, threads=128),
    Way(1_024, "block", vectors=2, ahead=32),
    Way(2_048, "block", vectors=4, ahead=32),
    Way(4_096, "block", min_rows=264, vectors=2, ahead=32),
    Way(4_096, "block", vectors=2),
    Way(8_192, "cluster", cluster=2, vectors=4, ahead=32),
    Way(16_384, "block", min_rows=264, vectors=2, ahead=32, registers=32),
    Way(16_384, "cluster", min_rows=64, cluster=4, vectors=2),
    Way(16_384, "cluster", cluster=8, vectors=2),
    Way(32_768, "cluster", min_rows=264, cluster=4, vectors=4, ahead=32),
    Way(65_536, "cluster", min_rows=264, cluster=8, vectors=8, ahead=16, registers=80),
    Way(65_536, "cluster", min_rows=16, cluster=8, vectors=4),
    Way(65_536, "cluster", cluster=16, vectors=5),
    Way(262_144, "cluster", min_rows=16, cluster=16, vectors=8, ahead=32, registers=80),
    Way(524_288, "cluster", cluster=16, vectors=6),
    # clusters of 8 at most
    Way(262_144, "cluster", cluster=8, vectors=4),
    Way(917_504, "shared", cluster=8, threads=1024),
    # without clusters
    Way(32_768, "block", vectors=4),
    Way(114_688, "shared", threads=1024),
    Way(MAX_N, "split", vectors=2, threads=256),
)
WAYS: dict[str, tuple[Way, ...]] = {"float32": _FLOAT, "float16": _TWO_BYTES, "bfloat16": _TWO_BYTES}
"""The decision table: the first line that fits is taken.  A GPU skips the lines whose `cluster` is larger than it has."""


@dataclass(frozen=True)
class Plan:
    """One launch: a kernel file, the compiler's macros, and the launch's numbers."""

    kernel: str
    macros: tuple[str, ...]
    grid: int
    threads: int
    shared_mem: int = 0
    parts: int = 0

    def entries(self) -> tuple[str, ...]:
        """Names of the kernels that are launched one after the other."""
        return ("softmax_split_states", "softmax_split_write") if self.kernel == "split" else (f"softmax_{self.kernel}",)

    def compiled(self) -> list:
        """The kernels, ready to launch."""
        kernels = [kernel(f"fast/{self.kernel}.cu", entry, self.macros) for entry in self.entries()]
        for k in kernels:
            allow_shared(k, self.shared_mem)
            if "-DCLUSTER=16" in self.macros:                   # more than every GPU with clusters has: to be asked for
                cp.cuda.driver.funcSetAttribute(k.kernel.ptr, _LARGE_CLUSTERS, 1)
        return kernels


# ------------------------------------------------------------------------------------------------ the table, read


def largest_cluster() -> int:
    """Blocks in the largest thread-block cluster of this device: 16 on data-center GPUs, 8 on others from 9.0 on, 1 without."""
    capability = int(cp.cuda.Device().compute_capability) if on_gpu else 0
    return 16 if capability in (90, 100, 103) else 8 if capability >= 90 else 1


def way(M: int, N: int, dtype: str, clusters: int | None = None) -> Way:
    """The line of the table for M rows of N elements; `clusters`: the largest cluster of the GPU (default: this device)."""
    clusters = largest_cluster() if clusters is None else clusters
    return next(w for w in WAYS[dtype] if N <= w.max_n and M >= w.min_rows and w.cluster <= clusters)


def plan(w: Way, M: int, N: int, dtype: str, aligned: bool, log: bool = False) -> Plan:
    """The launch of line `w` for M rows of N elements; `aligned`: all rows of x and y begin and end at 16-byte boundaries."""
    width = 16 // np.dtype(np.float32 if dtype == "float32" else np.float16).itemsize
    pieces = _ceil_div(N, width)
    common = [*TYPES[dtype], *["-DALIGNED"] * aligned, *["-DLOG"] * log]
    macros, grid, threads, shared, parts = _LAUNCH[w.kernel](w, M, pieces, 1 if aligned else 2 * width - 2)
    roomy = macros.get("VECTORS", 1) * width + 32                           # registers: what holds the row, and 32 more
    limit = w.registers
    if w.kernel == "cluster" and not (limit and aligned):
        limit = roomy
    blocks = max(1, 32 * _warps_that_fit(limit or roomy) // threads)        # of a multiprocessor
    if limit:
        macros["BLOCKS"] = blocks
    if w.ahead:
        macros |= {"AHEAD": _rounded(SMS * w.ahead * 1024 * width // (16 * N)), "STARTED": SMS * blocks // w.cluster}
    macros = tuple(common + [f"-D{name}={value}" for name, value in macros.items()])
    return Plan(w.kernel, macros, grid, threads, shared, parts)


def _warps_that_fit(registers: int) -> int:
    """Warps of so many registers a thread on one multiprocessor, in its four quarters of 16,384 registers and 16 warps each."""
    return 4 * min(16, 16_384 // (32 * registers))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _rounded(n: int) -> int:
    """`n` rounded down to three binary digits, so that rows of about the same length share a compiled kernel."""
    step = 1 << max(0, n.bit_length() - 3)
    return n // step * step


def _warp(w, M, pieces, least):
    lanes = min(32, 1 << (max(least, _ceil_div(pieces, w.vectors)) - 1).bit_length())
    macros = {"LANES": lanes, "VECTORS": _ceil_div(pieces, lanes), "THREADS": w.threads}
    return macros, _ceil_div(M, w.threads // lanes), w.threads, 0, 0


def _block(w, M, pieces, least):
    threads = w.threads or 32 * _ceil_div(max(pieces, least), 32 * w.cluster * w.vectors)
    macros = {"THREADS": threads, "VECTORS": _ceil_div(pieces, w.cluster * threads)}
    return macros | ({"CLUSTER": w.cluster} if w.cluster > 1 else {}), M * w.cluster, threads, 0, 0


def _shared(w, M, pieces, least):
    macros = {"THREADS": w.threads} | ({"CLUSTER": w.cluster} if w.cluster > 1 else {})
    return macros, M * w.cluster, w.threads, 16 * w.threads * _ceil_div(pieces, w.cluster * w.threads), 0


def _split(w, M, pieces, least):
    parts = _ceil_div(max(pieces, least), w.threads * w.vectors)
    return {"THREADS": w.threads, "VECTORS": w.vectors}, M * parts, w.threads, 0, parts


_LAUNCH: dict[str, Callable] = {"warp": _warp, "block": _block, "cluster": _block, "shared": _shared, "split": _split}


# ------------------------------------------------------------------------------------------------------- the call


class Ready(NamedTuple):
    """A launch made beforehand, so that a call only writes the arrays' addresses into `arguments`, as bytes in the kernel's order.

    `function` is the driver's handle, `extra` the address of what tells the driver where the bytes are.  RawKernel's own call looks more
    up, and takes longer.  Each thread needs one of its own, since `arguments` is written before every launch.  Without `arguments`,
    `function` is one of (x, out).
    """

    function: int | Callable
    arguments: ctypes.Array | None = None
    grid: int = 0
    threads: int = 0
    shared_mem: int = 0
    extra: int = 0
    keeps: tuple = ()


_launches: dict[tuple, tuple] = {}                       # what is ready, as plain tuples, which Python takes apart sooner
if on_gpu:
    _driver_launch, _stream = cp.cuda.driver.launchKernel, cp.cuda.get_current_stream


def _array_maker() -> Callable:
    """What makes a new array of (shape, dtype): CuPy's constructor, or the compiled part of it alone, half a microsecond quicker."""
    def make(shape, dtype):
        array = compiled(cp.ndarray)
        array._init(shape, dtype)
        return array

    try:
        compiled = cp._core.core._ndarray_base.__new__
        make((1,), np.dtype(np.float32))
        return make
    except (AttributeError, TypeError):                 # the CPU device, or a CuPy that is made otherwise
        return cp.ndarray


_new_array = _array_maker()


def softmax(x, out=None, log: bool = False):
    """Softmax (`log`: its logarithm) along the last axis of `x`, a contiguous cp array of float32, float16 or bfloat16.

    Returns a new array, or `out` (of the same shape and dtype; `out=x` works in place).  bfloat16 is `ml_dtypes.bfloat16`; a
    torch tensor comes in without a copy by `cp.from_dlpack(tensor)`.  Rows may begin anywhere; an `out` whose rows are not
    aligned as those of `x` are is written element by element, which takes longer.  Raises TypeError or ValueError that names
    the limit.
    """
    try:
        shape, dtype, address = x.shape, x.dtype, x.data.ptr
        key = shape, dtype, x._c_contiguous, address % 16, log, _device(), get_ident()
    except AttributeError:
        if isinstance(x, cp.ndarray):
            raise
        raise TypeError(f"x must be a cp array, got {type(x).__name__}: cp.asarray(x) makes one") from None
    if out is None:
        out = _new_array(shape, dtype) if address % 16 == 0 else _empty_aligned_as(x)
    elif out is not x:
        key += _seen(x, out)
    ready = _launches.get(key)
    if ready is None:
        ready = _launches[key] = tuple(_planned(x, out, log))
    function, arguments, grid, threads, shared_mem, extra, _ = ready
    if arguments is None:
        function(x, out)
    else:                                               # as _go, written out to save a call
        arguments[0] = address
        arguments[1] = out.data.ptr
        _driver_launch(function, grid, 1, 1, threads, 1, 1, shared_mem, _stream().ptr, 0, extra)
    return out


def _seen(x, out) -> tuple:
    """What a plan must know of `out`; refuses what cannot be told from that."""
    if not isinstance(out, cp.ndarray):
        raise TypeError(f"out must be a cp array, got {type(out).__name__}")
    if 0 < abs(x.data.ptr - out.data.ptr) < x.nbytes:
        raise ValueError("out overlaps x: rows would be overwritten before they are read; pass out=x, or an array of its own")
    return out.shape, out.dtype, out._c_contiguous, out.data.ptr % 16


def _planned(x, out, log: bool) -> Ready:
    """Check `x` and `out`, and make ready what the table says."""
    name = x.dtype.name
    if name not in WAYS:
        raise TypeError(f"x must be float32, float16 or bfloat16, got {name}: use x.astype(cp.float32)")
    if x.ndim == 0:
        raise ValueError("x has no axis: softmax goes along the last axis of an array")
    if not x.flags.c_contiguous:
        raise ValueError("x is not contiguous, and a kernel gets only a pointer: use cp.ascontiguousarray(x)")
    if out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError(f"out has shape {out.shape} and dtype {out.dtype}; it must be like x, {x.shape} and {x.dtype}")
    if not out.flags.c_contiguous:
        raise ValueError("out is not contiguous, and a kernel gets only a pointer")
    M, N = int(np.prod(x.shape[:-1])), x.shape[-1]
    if N > MAX_N or M > 2**31 - 1:
        raise ValueError(f"{M:,} rows of {N:,}: the kernels count rows up to 2,147,483,647 and columns up to {MAX_N:,}; split x")
    if M == 0 or N == 0:
        return Ready(lambda x, out: None)
    aligned = x.data.ptr % 16 == out.data.ptr % 16 == N * x.itemsize % 16 == 0
    return _make_ready(plan(way(M, N, name), M, N, name, aligned, log), M, N, x.itemsize)


def launcher(p: Plan, M: int, N: int, itemsize: int) -> Callable:
    """A function of (x, out), M rows of N elements each, that launches `p` on the present device and stream; for one thread."""
    ready = _make_ready(p, M, N, itemsize)
    return ready.function if ready.arguments is None else lambda x, out: _go(ready, _from(x), _from(out))


def _make_ready(p: Plan, M: int, N: int, itemsize: int) -> Ready:
    if p.kernel == "split":
        return Ready(_split_launcher(p, M, N, itemsize))
    return _one_kernel(p.compiled()[0], p.grid, p.threads, p.shared_mem, 2, M, N)


def _split_launcher(p: Plan, M: int, N: int, itemsize: int) -> Callable:
    """Two kernels for as many rows at a time as the second is likely to find in the L2 cache."""
    at_once = max(1, L2_SHARE // (N * itemsize))
    turns = []
    for first in range(0, M, at_once):
        rows = min(at_once, M - first)
        both = [_one_kernel(k, rows * p.parts, p.threads, 0, arrays, p.parts, N) for k, arrays in zip(p.compiled(), (2, 3), strict=True)]
        turns.append((first * N, *both))

    def launch(x, out):
        states = cp.ndarray((min(at_once, M) * p.parts, 2), np.float32)
        for skip, states_of, write in turns:
            _go(states_of, _from(x, skip), _from(states))
            _go(write, _from(x, skip), _from(out, skip), _from(states))
    return launch


def _from(array, skip: int = 0):
    """What a kernel is given to begin at element `skip` of an array: an address on a GPU, a view on the CPU device."""
    return array.data.ptr + skip * array.itemsize if on_gpu else array.reshape(-1)[skip:]


def _go(ready: Ready, *given) -> None:
    """Launch with arrays as `_from` gives them."""
    if ready.arguments is None:
        ready.function(*given)
    else:
        ready.arguments[:len(given)] = given
        _driver_launch(ready.function, ready.grid, 1, 1, ready.threads, 1, 1, ready.shared_mem, _stream().ptr, 0, ready.extra)


def _one_kernel(k, grid: int, threads: int, shared_mem: int, arrays: int, first: int, second: int) -> Ready:
    """The launch of kernel `k`, whose parameters are so many arrays and two ints."""
    if not on_gpu:
        sizes = np.int32(first), np.int32(second)
        return Ready(lambda *given: k((grid,), (threads,), (*given, *sizes), shared_mem=shared_mem))
    arguments = (ctypes.c_uint64 * (arrays + 1))(*[0] * arrays, first | second << 32)
    nbytes = ctypes.c_size_t(ctypes.sizeof(arguments))
    extra = (ctypes.c_uint64 * 5)(_BUFFER_POINTER, ctypes.addressof(arguments), _BUFFER_SIZE, ctypes.addressof(nbytes), _END)
    function = k.kernel
    return Ready(function.ptr, arguments, grid, threads, shared_mem, ctypes.addressof(extra), (function, nbytes, extra))


def _empty_aligned_as(x):
    """A new array whose rows begin at the same offset from a multiple of 16 bytes as those of `x`: both can use 16-byte accesses."""
    skip = x.data.ptr % 16 // x.itemsize
    return cp.empty(x.size + skip, dtype=x.dtype)[skip:].reshape(x.shape)

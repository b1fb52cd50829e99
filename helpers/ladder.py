"""The catalogue of kernels: file, entry point, launch rule, limits and traffic of each step; calls that check input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from .device import cp, on_gpu
from .snippets import load

MAX_N = 2**30  # a row of 4 GiB; column numbers in the kernels are 32-bit
MAX_PER_THREAD = 32  # elements that each of 1024 threads can keep in registers without spilling
MAX_BH = 65_535  # the largest grid.y and grid.z
MAX_NAIVE_SQ = 8 * 65_535  # attention_scores puts 8 queries into a block, along grid.y


@dataclass(frozen=True)
class Launch:
    """How a kernel is started: blocks, threads a block, bytes of dynamic shared memory."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_mem: int = 0


@dataclass(frozen=True)
class Step:
    """One rung of a ladder.

    `launch(M, N)` gives the launch of a softmax step, `launch(BH, Sq, Sk, D)` that of an attention step.  `reads` and
    `writes` are loads and stores of global memory per element of the row (softmax steps).  `chain(N)` is the longest
    chain of roundings behind a normalizer: its relative error is at most about `chain(N) / 2**24`.  `options(N)` are the
    compiler's options for rows of N (`options(D)` those of an attention step), `dtypes` its types of numbers, `max_n` is the
    longest row, and `instead` what to do with a longer one.
    """

    key: str
    file: str
    entry: str
    title: str
    new: str
    launch: Callable[..., Launch]
    limits: str
    reads: int | None = None
    writes: int | None = None
    chain: Callable[[int], int] | None = None
    options: Callable[[int], tuple[str, ...]] = lambda N: ()
    dtypes: tuple[str, ...] = ("float32",)
    max_n: int = MAX_N
    instead: str = "split the row and merge the states (notebook 04)"


# dtype -> how a kernel that includes types.h or attention/mma.h is told of it
TYPES = {"float32": (), "float16": ("-DHALF",), "bfloat16": ("-DBF16",)}


def numpy_type(dtype):
    """`dtype` for NumPy and CuPy, which know bfloat16 only by its type of ml_dtypes."""
    return ml_dtypes.bfloat16 if str(dtype) == "bfloat16" else dtype


# ---------------------------------------------------------------------------------------------- launch rules


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _thread_per_row(M: int, N: int) -> Launch:
    return Launch((_ceil_div(M, 256),), (256,))


def _block_per_row(M: int, N: int) -> Launch:
    return Launch((M,), (threads_for(N),))


def threads_for(N: int) -> int:
    """A power of two: a thread an element from 32 to 256, and 1024 threads above 8,192 elements."""
    if N <= 256:
        return max(32, 1 << (N - 1).bit_length())
    return 256 if N <= 8192 else 1024


def _vectors_per_row(M: int, N: int) -> Launch:
    return Launch((M,), (_threads_for_vectors(N),))


def _threads_for_vectors(N: int) -> int:
    """A power of two from 32 to 1024: up to 16 elements, four vectors, a thread."""
    return min(1024, max(32, 1 << (_ceil_div(N, 16) - 1).bit_length()))


def _row_in_registers(M: int, N: int) -> Launch:
    return Launch((M,), (32 * _ceil_div(N, 32 * _per_thread(N)),))


def _per_thread(N: int) -> int:
    """Elements that a thread of online V3 keeps: 16 as long as 1024 threads are enough, else the most there is room for."""
    return 16 if N <= 16 * 1024 else MAX_PER_THREAD


def _grid_stride(M: int, N: int) -> Launch:
    threads = _threads_for_vectors(N)
    return Launch((min(M, _resident_blocks(threads)),), (threads,))


@cache
def _resident_blocks(threads: int) -> int:
    """How many blocks of at most 32 registers a thread the GPU holds at once; on the CPU device, how many an H200 holds."""
    multiprocessors, resident = 132, 2048
    if on_gpu:
        attributes = cp.cuda.Device().attributes
        multiprocessors, resident = attributes["MultiProcessorCount"], attributes["MaxThreadsPerMultiProcessor"]
    return multiprocessors * min(32, resident // threads)


def lanes_per_query(D: int) -> int:
    """How many neighbouring threads of the tiled kernels share one query (LANES in the source)."""
    return 1 if D <= 64 else 2 if D <= 128 else 4


def _tiled(BH: int, Sq: int, Sk: int, D: int) -> Launch:
    return Launch((_ceil_div(Sq, 128 // lanes_per_query(D)), BH), (128,))


def _naive_scores(BH: int, Sq: int, Sk: int, D: int) -> Launch:
    return Launch((_ceil_div(Sk, 32), _ceil_div(Sq, 8), BH), (32, 8))


def _mma(BH: int, Sq: int, Sk: int, D: int) -> Launch:
    return Launch((_ceil_div(Sq, 64), BH), (128,))


def _row_bytes(D: int) -> int:
    """Bytes that a row of a swizzled tile takes (tile.h)."""
    return 2 * (32 if D <= 32 else 64 if D <= 64 else 128)


def _mma_pipeline(BH: int, Sq: int, Sk: int, D: int) -> Launch:
    return Launch((_ceil_div(Sq, 64), BH), (128,), 4 * 64 * _row_bytes(D))


def _keys(D: int) -> int:
    """Keys in a tile of mma_bands.cu: as many as the registers hold beside two bands."""
    return 128 if D <= 64 else 64


def _mma_bands(BH: int, Sq: int, Sk: int, D: int) -> Launch:
    return Launch((BH, _ceil_div(Sq, 128)), (128,), (4 * _keys(D) + 128) * _row_bytes(D))


# ------------------------------------------------------------------------------------------------ catalogue

_SOFTMAX_LIMITS = f"float32, contiguous, N up to {MAX_N:,}"
_TILED_LIMITS = (f"float32, contiguous, B*H up to {MAX_BH:,}, "
                  "D up to 256, a multiple of 4 (above 64 of 8, above 128 of 16)")
_MMA_LIMITS = f"float16 or bfloat16, contiguous, B*H up to {MAX_BH:,}, D = 32, 48, … 128; compute capability 8.0"
_TWO_BYTES = ("float16", "bfloat16")

STEPS: dict[str, Step] = {step.key: step for step in (
    Step("safe_v0", "safe/v0_thread_per_row.cu", "softmax_safe_v0", "Safe V0: one thread a row",
         "three passes, written as a C loop", _thread_per_row, _SOFTMAX_LIMITS, reads=3, writes=1,
         chain=lambda N: 8),
    Step("safe_v1", "safe/v1_block.cu", "softmax_safe_v1", "Safe V1: one block a row",
         "coalesced reads; trees in shared memory for the maximum and the sum", _block_per_row, _SOFTMAX_LIMITS,
         reads=3, writes=1, chain=lambda N: _ceil_div(N, threads_for(N)) + threads_for(N).bit_length() + 8),
    Step("safe_v2", "safe/v2_warp_shuffle.cu", "softmax_safe_v2", "Safe V2: warp shuffles",
         "shuffles instead of trees in shared memory", _block_per_row, _SOFTMAX_LIMITS, reads=3, writes=1,
         chain=lambda N: _ceil_div(N, threads_for(N)) + 18),
    Step("safe_v3", "safe/v3_float4.cu", "softmax_safe_v3", "Safe V3: float4",
         "16-byte loads and stores", _vectors_per_row, _SOFTMAX_LIMITS, reads=3, writes=1,
         chain=lambda N: _ceil_div(N, 4 * _threads_for_vectors(N)) + 21),
    Step("safe_v4", "safe/v4_two_passes.cu", "softmax_safe_v4", "Safe V4: two passes",
         "maximum and sum in one pass, each thread against its own maximum", _vectors_per_row, _SOFTMAX_LIMITS, reads=2,
         writes=1, chain=lambda N: 4 * _ceil_div(N, 4 * _threads_for_vectors(N)) + 25),
    Step("online_v0", "online/v0_thread_per_row.cu", "softmax_online_v0", "Online V0: one thread a row",
         "maximum and normalizer in one pass", _thread_per_row, _SOFTMAX_LIMITS, reads=2, writes=1,
         chain=lambda N: N + 8),
    Step("online_v1", "online/v1_block.cu", "softmax_online_v1", "Online V1: one block a row",
         "coalesced reads; states merge through shuffles", _block_per_row, _SOFTMAX_LIMITS, reads=2, writes=1,
         chain=lambda N: 4 * _ceil_div(N, threads_for(N)) + 25),
    Step("online_v2", "online/v2_float4.cu", "softmax_online_v2", "Online V2: float4",
         "16-byte loads and stores", _vectors_per_row, _SOFTMAX_LIMITS, reads=2, writes=1,
         chain=lambda N: 5 * _ceil_div(N, 4 * _threads_for_vectors(N)) + 25),
    Step("online_v3", "online/v3_registers.cu", "softmax_online_v3", "Online V3: the row in registers",
         "one pass: each element is read once and kept", _row_in_registers,
         f"float32, contiguous, N up to {1024 * MAX_PER_THREAD:,}: 1024 threads with {MAX_PER_THREAD} elements each",
         reads=1, writes=1, chain=lambda N: _per_thread(N) + 25, options=lambda N: (f"-DPER_THREAD={_per_thread(N)}",),
         max_n=1024 * MAX_PER_THREAD, instead="the registers of a block hold no longer row, so use step='online_v2'"),
    Step("online_v4", "online/v4_grid_stride.cu", "softmax_online_v4", "Online V4: grid-stride over rows",
         "a block goes from row to row", _grid_stride, _SOFTMAX_LIMITS, reads=2, writes=1,
         chain=lambda N: 5 * _ceil_div(N, 4 * _threads_for_vectors(N)) + 25),
    Step("online_v1_branch", "online/v1_branch.cu", "softmax_online_v1_branch", "Online V1 with a branch",
         "rescaling only when the maximum changes, for comparison", _block_per_row, _SOFTMAX_LIMITS, reads=2, writes=1,
         chain=lambda N: 4 * _ceil_div(N, threads_for(N)) + 25),
    Step("attention_naive", "attention/naive.cu", "attention_scores", "Attention in three kernels",
         "scores, softmax and weighted sum, with the score matrix in memory", _naive_scores,
         f"float32, contiguous, B*H up to {MAX_BH:,}, Sq up to {MAX_NAIVE_SQ:,}, D up to 1,024, "
         "memory for B*H*Sq*Sk floats"),
    Step("attention_tiled", "attention/tiled.cu", "attention_tiled", "Tiled attention",
         "one kernel; the state (m, d, O) in registers, tiles of K and V in shared memory", _tiled, _TILED_LIMITS),
    Step("attention_tiled_normalized", "attention/tiled_normalized.cu", "attention_tiled_normalized",
         "Tiled attention, normalised after every tile", "the articles' update of O, for comparison",
         _tiled, _TILED_LIMITS),
    Step("attention_mma", "attention/mma.cu", "attention_mma", "Tensor cores",
         "mma.sync for both products; S and P stay in registers", _mma, _MMA_LIMITS, dtypes=_TWO_BYTES),
    Step("attention_mma_swizzle", "attention/mma_swizzle.cu", "attention_mma_swizzle", "Swizzled tiles, matrix loads",
         "ldmatrix reads 8 rows from 32 different banks", _mma, _MMA_LIMITS, dtypes=_TWO_BYTES),
    Step("attention_mma_pipeline", "attention/mma_pipeline.cu", "attention_mma_pipeline", "The next tile under way",
         "cp.async into a second pair of tiles; one barrier a tile", _mma_pipeline, _MMA_LIMITS, dtypes=_TWO_BYTES),
    Step("attention_mma_lean", "attention/mma_lean.cu", "attention_mma_lean", "Fewer instructions between the products",
         "powers of two; masks and rescaling only where needed", _mma_pipeline, _MMA_LIMITS, dtypes=_TWO_BYTES),
    Step("attention_mma_bands", "attention/mma_bands.cu", "attention_mma_bands", "Two bands a warp",
         "what comes from shared memory serves two mma; heavy blocks first", _mma_bands, _MMA_LIMITS, dtypes=_TWO_BYTES,
         options=lambda D: (f"-DKEYS={_keys(D)}",)),
)}


def find_step(key: str, prefix: tuple[str, ...]) -> Step:
    """The step `key`, whose name begins with one of `prefix`; a ValueError that lists those there are."""
    known = [name for name in STEPS if name.startswith(prefix)]
    if key not in known:
        raise ValueError(f"no step {key!r} here; there are {', '.join(known)}")
    return STEPS[key]


@cache
def kernel(file: str, entry: str, options: tuple[str, ...] = ()):
    """The compiled kernel `entry` of a snippet, made once: `kernel(grid, block, args)` launches it."""
    return cp.RawKernel(load(file), entry, options=("-std=c++17", *options))


def allow_shared(run, nbytes: int) -> None:
    """Let kernel `run` have `nbytes` of dynamic shared memory, which above 48 KB must be asked for.

    Never less than before: launches made earlier share the kernel.
    """
    if nbytes > 48 << 10 and nbytes > run.max_dynamic_shared_size_bytes:
        run.max_dynamic_shared_size_bytes = nbytes


# ---------------------------------------------------------------------------------------------------- calls


def check_array(name: str, array, ndims: tuple[int, ...], shape: str, dtypes: tuple[str, ...] = ("float32",)) -> None:
    """Raise TypeError or ValueError, which says what to do, unless `array` is a contiguous cp array of these dimensions and dtypes."""
    if not isinstance(array, cp.ndarray):
        raise TypeError(f"{name} must be a cp array, got {type(array).__name__}: cp.asarray({name}) makes one")
    if array.dtype.name not in dtypes:
        allowed = " or ".join(filter(None, (", ".join(dtypes[:-1]), dtypes[-1])))
        raise TypeError(f"{name} must be {allowed}, got {array.dtype}: use {name}.astype(cp.{dtypes[0]})")
    if array.ndim not in ndims:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(array.shape)}: reshape it")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous, and a kernel gets only a pointer: "
                         f"use cp.ascontiguousarray({name})")


def softmax(x, step: str = "safe_v1"):
    """Softmax of every row of `x`, a contiguous float32 cp array [M, N], by one step of the ladder; a new array [M, N].

    M = 0 or N = 0 gives an empty result without a launch.  Raises TypeError or ValueError that names the limit.
    """
    chosen = find_step(step, ("safe", "online"))
    check_array("x", x, (2,), "[M, N]")
    M, N = x.shape
    if N > min(chosen.max_n, MAX_N):
        raise ValueError(f"N = {N:,} is above {min(chosen.max_n, MAX_N):,}, the limit of {step}: {chosen.instead}")
    y = cp.empty((M, N), dtype=np.float32)
    if M and N:
        launch = chosen.launch(M, N)
        run = kernel(chosen.file, chosen.entry, chosen.options(N))
        run(launch.grid, launch.block, (x, y, np.int32(M), np.int32(N)), shared_mem=launch.shared_mem)
    return y

"""Softmax and top-k together: the call that checks its input and chooses a kernel, and the float64 oracle it is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from .cpu_device.counters import Counters
from .device import cp, on_gpu
from .ladder import MAX_N, STEPS, TYPES, check_array, kernel, numpy_type
from .measure import ReadyLaunch

MAX_K = 64
VARIANTS = ("safe_separate", "online_separate", "safe_fused", "online_fused")  # the four of the paper
SEPARATE = {"safe_separate": "safe_v3", "online_separate": "online_v2"}  # which softmax comes before topk.cu
SHORT_THREADS = 128


@dataclass(frozen=True)
class Plan:
    """How a top-k is launched: the file in cuda_snippets/topk, its options, grid and block; `splits` blocks share a row."""

    file: str
    options: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    splits: int = 1


# --------------------------------------------------------------------------------------------------- plans


def plan(M: int, N: int, k: int, dtype="float32", variant: str = "auto", aligned: bool = True) -> Plan:
    """The kernel for M rows of N logits: short rows share a warp, few rows are split, all others have 1 to 8 warps each.

    `aligned` says that the first row starts at a multiple of 16 bytes.
    """
    types, width = TYPES[str(dtype)], 16 // np.dtype(numpy_type(dtype)).itemsize
    if variant == "auto" and (short := _short(M, N, k, types, width, aligned)):
        return short
    loads = 16 // width  # 16 logits a lane and step, which is what the splitting of rows is reckoned with
    steps = -(-(N + width - 1) // (32 * loads * width))
    warps = max(1, min(_warps_wanted() // M, steps))
    per_block = min(8, 1 << (warps - 1).bit_length())
    file = {"safe_fused": "safe_fused.cu", "whole": "online_whole.cu"}.get(variant, "topk.cu" if variant in SEPARATE else "online_fused.cu")
    rows = 1
    if per_block == 1:  # a warp a row
        rows = 8 if width == 4 and file == "online_fused.cu" else 4
        if width == 8 and N <= 8192:  # few steps: 32 logits a lane in each
            loads, rows = 4, 1
    options = (*types, f"-DK={k}", f"-DWARPS={per_block}", f"-DROWS={rows}", f"-DLOADS={loads}")
    splits = -(-min(warps, steps) // per_block)
    if variant == "auto" and splits > 1:
        return Plan("split_rows.cu", options, (splits, M), (32 * per_block,), splits)
    return Plan(file, options, (-(-M // rows),), (32 * per_block * rows,))


def _short(M: int, N: int, k: int, types, width: int, aligned: bool) -> Plan | None:
    """Rows that the registers of 8, 16 or 32 lanes hold: the fewest of them that need no more than 64 logits of 16 bits each, or 48 of
    32 bits; the 32 lanes take up to 128."""
    reach = N if aligned and N % width == 0 else N + width - 1
    few = 8 if width == 8 else 12
    for lanes, most in ((8, few), (16, few), (32, 128 // width)):
        loads = -(-reach // (lanes * width))
        if k <= lanes and loads <= most:
            blocks = min(12, 512 // (4 * loads + 34))  # what 65,536 registers hold: 4 a load and 34 more for each of 128 threads
            options = (*types, f"-DK={k}", f"-DLOADS={loads}", f"-DGROUP={lanes}", f"-DBLOCKS={blocks}")
            return Plan("short_rows.cu", options, (-(-M * lanes // SHORT_THREADS),), (SHORT_THREADS,))
    return None


@cache
def _warps_wanted() -> int:
    """How many warps of 64 registers a thread a GPU holds at once; on the CPU device, how many an H200 holds."""
    multiprocessors = cp.cuda.Device().attributes["MultiProcessorCount"] if on_gpu else 132
    return 32 * multiprocessors


# --------------------------------------------------------------------------------------------------- calls


def softmax_topk(x, k: int, temperature: float = 1.0, *, variant: str = "auto", lse: bool = False):
    """The k most probable entries of every row: (p, indices), or (p, indices, lse) with `lse=True`.

    `x` is a contiguous cp array [M, N] of logits in float32, float16 or bfloat16.  p, float32 [M, k], is softmax(x /
    temperature) over the whole row at the columns `indices`, int32 [M, k]; descending, among equal logits the lowest column
    first.  A NaN counts as the largest logit and makes the row's p NaN, as an all -inf row does; the columns are distinct all
    the same.  lse, float32 [M], is log sum exp(x / temperature).  `variant` forces one of VARIANTS instead of the fastest kernel.
    Raises TypeError or ValueError that names the limit.
    """
    _check(x, k, temperature, variant)
    if lse and variant in SEPARATE:
        raise ValueError(f"{variant} has no LSE: its softmax writes only probabilities; use variant='online_fused'")
    p, indices, row_lse = results(x.shape[0], k)
    for launch in launches(x, p, indices, row_lse, temperature, variant):
        launch()
    return (p, indices, row_lse) if lse else (p, indices)


def softmax_and_topk(x, k: int, temperature: float = 1.0):
    """As `softmax_topk`, and the whole softmax beside it: (y, p, indices), y a float32 array [M, N]."""
    _check(x, k, temperature, "auto")
    p, indices, row_lse = results(x.shape[0], k)
    y = cp.empty(x.shape, dtype=np.float32)
    for launch in launches(x, p, indices, row_lse, temperature, "whole", y=y):
        launch()
    return y, p, indices


def results(M: int, k: int):
    """Memory for (p, indices, lse) of M rows."""
    return cp.empty((M, k), dtype=np.float32), cp.empty((M, k), dtype=np.int32), cp.empty((M,), dtype=np.float32)


def counted(x, k: int, variant: str) -> list[Counters]:
    """What each launch of a variant (or of "whole", `softmax_and_topk`) does on the CPU device, in order."""
    _check(x, k, 1.0, "auto" if variant == "whole" else variant)
    counters = []
    for launch in launches(x, *results(x.shape[0], k), variant=variant):
        counters.append(launch.count())
        launch()                                # so that the next launch finds its input on a GPU too
    return counters


def launches(x, p, indices, lse, temperature: float = 1.0, variant: str = "auto", chosen: Plan | None = None, y=None) -> list[ReadyLaunch]:
    """The launches of one call into given arrays, unchecked; what they pass on to each other is taken here, once."""
    (M, N), k = x.shape, p.shape[1]
    if M == 0:
        return []
    inverse, rows, sizes = np.float32(1 / temperature), np.int32(M), np.int32(N)
    chosen = chosen or plan(M, N, k, x.dtype, variant, x.data.ptr % 16 == 0)

    def launch(entry, *arguments, grid=chosen.grid):
        return ReadyLaunch(kernel(f"topk/{chosen.file}", entry, chosen.options), grid, chosen.block, arguments)

    if variant in SEPARATE or (variant == "whole" and y is None):
        y = cp.empty((M, N), dtype=np.float32)
    if variant in SEPARATE:
        step = STEPS[SEPARATE[variant]]
        first = step.launch(M, N)
        return [ReadyLaunch(kernel(step.file, step.entry, step.options(N)), first.grid, first.block, (x, y, rows, sizes)),
                launch("topk", y, p, indices, rows, sizes)]
    if chosen.splits > 1:
        keys, states = cp.empty((M * chosen.splits, k), dtype=np.uint64), cp.empty((M * chosen.splits, 2), dtype=np.float32)
        return [launch("softmax_topk_part", x, keys, states, sizes, inverse),
                launch("softmax_topk_merge", keys, states, p, indices, lse, np.int32(chosen.splits), inverse, grid=(M,))]
    if chosen.file == "online_whole.cu":
        return [launch("softmax_topk_whole", x, y, p, indices, lse, rows, sizes, inverse)]
    entry = {"short_rows.cu": "softmax_topk_short", "safe_fused.cu": "softmax_topk_safe"}.get(chosen.file, "softmax_topk_online")
    return [launch(entry, x, p, indices, lse, rows, sizes, inverse)]


def _check(x, k, temperature, variant) -> None:
    check_array("x", x, (2,), "[M, N]", tuple(TYPES))
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, got {type(k).__name__}")
    M, N = x.shape
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k = {k} is outside 1 to {MAX_K}, what a warp keeps in its registers: sort the row instead")
    if k > N:
        raise ValueError(f"k = {k} is more than the N = {N} logits of a row: there are no {k} columns to return")
    if N > MAX_N:
        raise ValueError(f"N = {N:,} is above {MAX_N:,}: take the row in pieces and merge their results (notebook 04)")
    if not (temperature > 0 and math.isfinite(temperature) and 1e-38 < 1 / temperature < 1e38):
        raise ValueError(f"temperature = {temperature} must be positive and finite, and so must 1 / temperature in float32; "
                         "as it falls to 0 the result becomes the argmax: use k = 1")
    if variant not in ("auto", *VARIANTS):
        raise ValueError(f"no variant {variant!r}; there are auto, {', '.join(VARIANTS)}")
    if variant in SEPARATE and (temperature != 1 or x.dtype != np.float32):
        raise ValueError(f"{variant} takes float32 logits and temperature 1, as the ladder's softmax does: use variant='online_fused'")


# -------------------------------------------------------------------------------------------------- oracle


def oracle(x, k: int, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The truth, in float64: (p [M, k], indices [M, k], lse [M]) of rows `x`, by a stable sort of the logits.

    fp32 subnormals count as 0, as in a kernel that CuPy compiles (-ftz=true).
    """
    x = np.asarray(x).astype(np.float64)
    x = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0.0, x)
    order = np.lexsort((-np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf), ~np.isnan(x)))  # stable, NaN first
    indices = order[:, :k]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        m = np.where(np.isnan(x), -np.inf, x).max(axis=1, keepdims=True)
        d = np.exp((x - np.where(np.isneginf(m), 0, m)) / temperature).sum(axis=1, keepdims=True)
        p = np.exp((np.take_along_axis(x, indices, axis=1) - m) / temperature) / d
        return p, indices, (m / temperature + np.log(d))[:, 0]

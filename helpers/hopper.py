"""Attention on a Hopper GPU by the kernels of cuda_snippets/attention/hopper/: `attention`, tensor maps, and the wgmma wrappers.

`python -m helpers.hopper` writes cuda_snippets/attention/hopper/wgmma.h anew.
"""

from __future__ import annotations

import ctypes
import heapq
import textwrap
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from . import ladder, snippets
from .attention import Sizes, check_inputs
from .device import cp, on_gpu
from .ladder import TYPES
from .measure import ReadyLaunch

MAX_SHARED = 232_448  # bytes of shared memory that one block may have: 227 KB
HEAD_DIMENSIONS = (64, 128)
INSTEAD = "use helpers.attention.attention, whose attention_mma_bands"


@dataclass(frozen=True)
class Tuning:
    """How a kernel is cut: keys a tile, consumer warpgroups of 64 queries, tiles in the ring; and what a consumer does: look for maxima
    only where it must (lazy), overlap its own products and exponentials, take turns with the others, and compute so many of 16 powers of
    2 by FMA."""

    keys: int = 128
    consumers: int = 2
    stages: int = 2
    lazy: bool = False
    overlap: bool = False
    turns: bool = False
    by_fma: int = 0

    def macros(self) -> tuple[str, ...]:
        """The compiler's options."""
        return (f"-DKEYS={self.keys}", f"-DCONSUMERS={self.consumers}", *((f"-DSTAGES={self.stages}",) if self.stages > 1 else ()),
                *(("-DLAZY=1",) if self.lazy else ()), *(("-DOVERLAP=1",) if self.overlap else ()),
                *(("-DTURNS=1",) if self.turns else ()), *((f"-DBY_FMA={self.by_fma}",) if self.by_fma else ()))

    def shared_mem(self, D: int) -> int:
        """Bytes of `Memory` in ring.h: Q and O, K and V, and the barriers."""
        return 2 * D * (128 * self.consumers + 2 * self.keys * self.stages) + 8 * (2 * self.consumers + 4 * self.stages)


@dataclass(frozen=True)
class Step:
    """A rung of the ladder: file, entry point, title, what is new, and its tunings for (D, causal): the one up to MANY_KEYS keys, and the
    one for more."""

    file: str
    entry: str
    title: str
    new: str
    tunings: dict[tuple[int, bool], tuple[Tuning, Tuning]]

    def tuning(self, D: int, causal: bool, Sk: int) -> Tuning:
        """The one for this head dimension, mask and number of keys.

        Up to FEW_KEYS none is lazy: most tiles would ask for another origin anyway, and with the maximum the largest P of a row is 1, which
        the rounding to 16 bits leaves as it is.
        """
        chosen = self.tunings[D, bool(causal)][Sk > MANY_KEYS]
        return chosen if Sk > FEW_KEYS else replace(chosen, lazy=False, by_fma=0)


def _each_mask(D: int, few: Tuning, many: Tuning) -> dict[tuple[int, bool], tuple[Tuning, Tuning]]:
    return {(D, causal): (few, many) for causal in (False, True)}


def _by_dimension(d64: Tuning, d128: Tuning) -> dict[tuple[int, bool], tuple[Tuning, Tuning]]:
    return _each_mask(64, d64, d64) | _each_mask(128, d128, d128)


FEW_KEYS, MANY_KEYS = 512, 8192
_RING, _PERSISTENT = ("attention/hopper/ring.cu", "hopper_ring"), ("attention/hopper/persistent.cu", "hopper_persistent")
_LAZY_64, _LAZY_128 = Tuning(64, 4, 4, lazy=True), Tuning(64, 3, 4, lazy=True)
_OVER_64, _OVER_128 = replace(_LAZY_64, overlap=True, turns=True), replace(_LAZY_128, overlap=True, turns=True)
STEPS: dict[str, Step] = {
    "hopper_wgmma": Step("attention/hopper/wgmma.cu", "hopper_wgmma", "Tiles by TMA, products by wgmma",
                         "one thread copies a tile, four warps multiply it", _by_dimension(Tuning(stages=1), Tuning(stages=1))),
    "hopper_ring": Step(*_RING, "A producer and two consumers", "a ring of stages; registers go where they are needed",
                        _by_dimension(Tuning(stages=4), Tuning())),
    "hopper_three": Step(*_RING, "Three consumers", "one computes exponentials while two multiply",
                         _by_dimension(Tuning(consumers=3, stages=4), Tuning(consumers=3))),
    "hopper_lazy": Step(*_RING, "No maximum", "exponents from an origin that is rarely changed; smaller tiles, four consumers for D = 64",
                        _by_dimension(_LAZY_64, _LAZY_128)),
    "hopper_overlap": Step(*_RING, "Overlap in a consumer", "the next scores and the last output are computed during the softmax",
                           _by_dimension(replace(_LAZY_64, overlap=True), replace(_LAZY_128, overlap=True))),
    "hopper_turns": Step(*_RING, "Consumers take turns", "while one multiplies, the others compute exponentials",
                         _by_dimension(_OVER_64, _OVER_128)),
    "hopper_persistent": Step(*_PERSISTENT, "Persistent blocks", "a multiprocessor goes from one item of work to the next",
                              _each_mask(64, Tuning(64, 4, 6, True, True, True, 1), Tuning(192, 3, 3, True, by_fma=1))
                              | {(128, causal): (few, Tuning(80, 3, 3, True, True, True))
                                 for causal, few in ((False, Tuning(128, 2, 2, True, True, True)), (True, _OVER_128))}),
}
BEST = "hopper_persistent"


def attention(q, k, v, step: str = BEST, causal: bool = False, scale: float | None = None, tuning: Tuning | None = None):
    """softmax(scale * q k^T) v over the visible keys: (o, lse), like `helpers.attention.attention`.

    q is [B, Hq, Sq, D], k and v are [B, Hkv, Sk, D], or all of them [B*H, S, D]: contiguous cp arrays, all float16 or all bfloat16 (of
    ml_dtypes), D = 64 or 128.  Hq is a multiple of Hkv.  o has the shape and dtype of q; lse, the natural logarithm of the sum of
    exponentials, is float32 [B, Hq, Sq].  `scale` > 0 defaults to 1/sqrt(D).  `causal` hides key j from query i if j > i + Sk - Sq.  A
    query that sees no key gets o = 0 and lse = -inf; one with a NaN or +inf among its visible scores gets NaN.  `tuning` replaces the
    one of the step.  Raises TypeError or ValueError that names the limit, and what to use instead.
    """
    o, lse, launch = ready(q, k, v, step, causal, scale, tuning)
    if launch:
        launch()
    return o, lse


def ready(q, k, v, step: str = BEST, causal: bool = False, scale: float | None = None, tuning: Tuning | None = None):
    """What `attention` returns, not yet computed, and the launch that computes it (None: nothing is left to compute)."""
    sizes, scale = _check(q, k, v, step, scale)
    tuning = tuning or STEPS[step].tuning(sizes.D, causal, sizes.Sk)
    _check_tuning(step, tuning, sizes.D)
    _check_device()
    o, lse = cp.empty(q.shape, dtype=q.dtype), cp.empty(q.shape[:-1], dtype=np.float32)
    if sizes.BH == 0 or sizes.Sq == 0:
        return o, lse, None
    if sizes.Sk == 0:
        o.fill(0)
        lse.fill(-np.inf)
        return o, lse, None
    run = compiled(step, tuning, sizes.D, q.dtype.name, sizes.Hq // sizes.Hkv)
    maps = (tensor_map(q, 64), tensor_map(k, tuning.keys), tensor_map(v, tuning.keys), tensor_map(o, 64))
    numbers = np.int32(sizes.Sq), np.int32(sizes.Sk), np.int32(causal), np.float32(scale)
    grid, threads = geometry(step, tuning, sizes, _multiprocessors())
    more = (_schedule_there(sizes, tuning, bool(causal), grid[0]), np.int32(query_blocks(tuning, sizes))) if persistent(step) else ()
    launch = Launch(run, grid, (threads,), (*maps, lse, *numbers, *more), tuning.shared_mem(sizes.D))
    launch.output = o
    return o, lse, launch


class Launch(ReadyLaunch):
    """A launch that keeps its `output` alive: of that, the kernel's arguments hold only an address in a tensor map."""


def persistent(step: str) -> bool:
    """Do the blocks of this step go from item to item?"""
    return STEPS[step].file == _PERSISTENT[0]


def geometry(step: str, tuning: Tuning, sizes: Sizes, multiprocessors: int) -> tuple[tuple[int, ...], int]:
    """The grid, and the threads of a block."""
    blocks = query_blocks(tuning, sizes)
    if not persistent(step):
        return (sizes.BH, blocks), 128 * (tuning.consumers + (step != "hopper_wgmma"))
    return (min(multiprocessors, sizes.BH * blocks),), 128 * (tuning.consumers + 1)


def query_blocks(tuning: Tuning, sizes: Sizes) -> int:
    """How many blocks of 64 queries a consumer a head has: the items of a head."""
    return -(-sizes.Sq // (64 * tuning.consumers))


def schedule(sizes: Sizes, tuning: Tuning, causal: bool, blocks: int) -> np.ndarray:
    """What each of `blocks` blocks of the persistent kernel does: int32 [rounds + 1, blocks], with -1 after a block's last item.

    Heavy items come first, and each goes to the block that has least to do.  Items of one weight come head by head, so that blocks
    that run at the same time share K and V in the L2 cache.
    """
    weights = item_weights(sizes, tuning, causal)
    per_head = len(weights)
    order = np.argsort(-np.tile(weights, sizes.BH), kind="stable").tolist()
    load, lists = [(0.0, b) for b in range(blocks)], [[] for _ in range(blocks)]
    for item in order:
        done, b = load[0]
        lists[b].append(item)
        heapq.heapreplace(load, (done + float(weights[item % per_head]), b))
    table = np.full((max(map(len, lists)) + 1, blocks), -1, np.int32)
    for b, of_block in enumerate(lists):
        table[: len(of_block), b] = of_block
    return table


def item_weights(sizes: Sizes, tuning: Tuning, causal: bool) -> np.ndarray:
    """How long each item of a head takes: the tiles of its consumers' queries, averaged, and one tile's time for starting and writing."""
    return consumer_tiles(sizes, tuning, causal).mean(axis=1) + 1


def consumer_tiles(sizes: Sizes, tuning: Tuning, causal: bool, from_the_end: bool = True) -> np.ndarray:
    """Tiles that the 64 queries of each consumer of each block of a head need, int [blocks, consumers]; 0 where no queries are left.

    The kernels count blocks from the last 64 queries backwards; `from_the_end` = False: what it would be from the first query on.
    """
    Q, blocks = 64 * tuning.consumers, np.arange(query_blocks(tuning, sizes))[:, None]
    first = (-(-sizes.Sq // 64) * 64 - Q * (1 + blocks) if from_the_end else Q * blocks) + 64 * np.arange(tuning.consumers)
    keys = np.minimum(sizes.Sk, np.minimum(first + 64, sizes.Sq) + sizes.Sk - sizes.Sq) if causal else np.full_like(first, sizes.Sk)
    tiles = -(-np.maximum(keys, 0) // tuning.keys)
    return np.where((0 <= first) & (first < sizes.Sq), tiles, 0)


@cache
def _schedule_there(sizes: Sizes, tuning: Tuning, causal: bool, blocks: int):
    """The schedule in the GPU's memory, made once."""
    return cp.asarray(schedule(sizes, tuning, causal, blocks))


def options(step: str, tuning: Tuning, D: int, dtype: str, group: int = 1) -> tuple[str, ...]:
    """What the compiler is told."""
    return ("-arch=sm_90a", f"-DD={D}", *TYPES[dtype], *tuning.macros(), *((f"-DGROUP={group}",) if group > 1 else ()))


@cache
def compiled(step: str, tuning: Tuning, D: int, dtype: str, group: int):
    """The kernel, ready to launch with all the shared memory that it needs."""
    run = ladder.kernel(STEPS[step].file, STEPS[step].entry, options(step, tuning, D, dtype, group))
    ladder.allow_shared(run, tuning.shared_mem(D))
    return run


@cache
def _multiprocessors() -> int:
    return cp.cuda.Device().attributes["MultiProcessorCount"]


# ------------------------------------------------------------------------------------------------ checks


def _check(q, k, v, step: str, scale: float | None) -> tuple[Sizes, float]:
    """The sizes and the scale of valid input; TypeError or ValueError that names the limit."""
    if step not in STEPS:
        raise ValueError(f"no step {step!r} here; there are {', '.join(STEPS)}")
    for name, array in (("q", q), ("k", k), ("v", v)):
        ladder.check_array(name, array, (3, 4), "[B, H, S, D] or [B*H, S, D]", ("float16", "bfloat16"))
    if (D := q.shape[-1]) not in HEAD_DIMENSIONS:
        raise ValueError(f"D = {D} is neither 64 nor 128, as the Hopper kernels need it: {INSTEAD} takes D = 32, 48, … 128")
    scale = D**-0.5 if scale is None else scale
    if not scale > 0:
        raise ValueError(f"scale = {scale} is not above 0, as the Hopper kernels need it: {INSTEAD} takes any")
    return check_inputs(ladder.STEPS["attention_mma_bands"], q, k, v), scale  # same layouts and limits


def _check_tuning(step: str, tuning: Tuning, D: int) -> None:
    if tuning.keys not in KEYS:
        raise ValueError(f"keys = {tuning.keys} is none of {', '.join(map(str, KEYS))}, for which wgmma.h has a wrapper")
    if step == "hopper_wgmma" and tuning.stages != 1:
        raise ValueError(f"stages = {tuning.stages}, but hopper_wgmma has no ring: stages=1")
    if tuning.consumers not in (2, 3, 4):
        raise ValueError(f"consumers = {tuning.consumers} is not 2, 3 or 4")
    if tuning.shared_mem(D) > MAX_SHARED:
        raise ValueError(f"{tuning} takes {tuning.shared_mem(D):,} bytes of shared memory for D = {D}, above {MAX_SHARED:,}: "
                         "fewer stages, or fewer keys a tile")


def _check_device() -> None:
    if not on_gpu:
        raise ValueError(f"the Hopper kernels need a GPU of compute capability 9.0, and none is usable here: {INSTEAD} runs here too")
    if str(cp.cuda.Device().compute_capability) != "90":
        raise ValueError("the Hopper kernels need a GPU of compute capability 9.0, because wgmma exists on no other; this one has "
                         f"{int(cp.cuda.Device().compute_capability) / 10}: {INSTEAD} needs 8.0 or later")


# ------------------------------------------------------------------------------------------- tensor maps


TENSOR_MAP = np.dtype([("opaque", "<u8", (16,))])
_DATA_TYPES = {"float16": 6, "bfloat16": 9}  # CU_TENSOR_MAP_DATA_TYPE_…
_SWIZZLE_128_BYTES, _L2_128_BYTES, _NO_INTERLEAVE, _ZEROS = 3, 2, 0, 0


def map_fields(shape: tuple[int, ...], rows: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, strides in bytes and box of a tensor map: 64 columns and `rows` rows of an array [..., S, D] of two-byte numbers.

    The first dimension is the innermost one, whose stride is not told; all before S are one, the heads.  A box is at most 128 bytes
    wide, because so wide is the swizzle's pattern.
    """
    *heads, S, D = shape
    return (D, S, int(np.prod(heads))), (2 * D, 2 * D * S), (64, rows, 1)


def tensor_map(array, rows: int) -> np.ndarray:
    """The tensor map of a cp array as a kernel's argument: 128 bytes, which the driver wants aligned, as an array of one structure."""
    sizes, strides, box = map_fields(array.shape, rows)
    memory = np.zeros(256, np.uint8)
    encoded = memory[-memory.ctypes.data % 128:][:128]

    def numbers(kind, values):
        return (kind * len(values))(*values)

    error = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(encoded.ctypes.data), _DATA_TYPES[array.dtype.name], len(sizes), ctypes.c_void_p(array.data.ptr),
        numbers(ctypes.c_uint64, sizes), numbers(ctypes.c_uint64, strides), numbers(ctypes.c_uint32, box),
        numbers(ctypes.c_uint32, (1, 1, 1)), _NO_INTERLEAVE, _SWIZZLE_128_BYTES, _L2_128_BYTES, _ZEROS)
    if error:
        raise RuntimeError(f"cuTensorMapEncodeTiled refused sizes {sizes}, strides {strides}, box {box}: error {error}")
    return encoded.view(TENSOR_MAP)


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")


# -------------------------------------------------------------------------------------- wrappers of wgmma


KEYS = (64, 80, 96, 112, 128, 144, 160, 176, 192)
"""Keys a tile for which wgmma.h has a wrapper; any multiple of 16 up to 256 would do."""

_HEADER = """\
// wgmma: C += A B for A [64, 16], B [16, n], C [64, n], spread over a warpgroup.  Generated by `python -m helpers.hopper`.
//
// Warp w of the warpgroup holds rows 16 w ... 16 w + 15 of C and A, as attention/mma.h has them for mma.  B lies in shared memory: n rows
// of 16 (K), or, if A comes from registers, 16 rows of n (V).  With add == 0, C is overwritten.
#pragma once
#ifdef HALF
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "
#else
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "
#endif
"""


def wgmma_header() -> str:
    """The text of cuda_snippets/attention/hopper/wgmma.h: a wrapper for each number of keys a tile, and one for each D."""
    return _HEADER + "".join(wgmma_wrapper(n, False) for n in KEYS) + "".join(wgmma_wrapper(n, True) for n in HEAD_DIMENSIONS)


def wgmma_wrapper(n: int, a_in_registers: bool) -> str:
    """A function around one instruction: its n/2 results a thread are named one by one, which nobody wants to write by hand."""
    count = n // 2
    results = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(c[{i // 4}][{i % 4}])' for i in range(count))
    if a_in_registers:
        parameters, inputs = "const unsigned (&a)[4], u64 b", '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)'
        a, rest = f"{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}", f"%{count + 4}, 1, 1, 1, 1;"
    else:
        parameters, inputs = "u64 a, u64 b, int add", '"l"(a), "l"(b), "r"(add)'
        a, rest = f"%{count}", f"%{count + 1}, p, 1, 1, 0, 0;"
    predicate = "" if a_in_registers else f'        ".reg .pred p; setp.ne.b32 p, %{count + 2}, 0; "\n'
    return (f"\n__device__ __forceinline__ void wgmma(float (&c)[{n // 8}][4], {parameters}) {{\n    asm volatile(\"{{ \"\n{predicate}"
            f'{_lines(f"{{{results}}}, {a}, {rest} }}", f"WGMMA({n}) ")}\n{_lines(f": {outputs}")}\n        : {inputs});\n}}\n')


def _lines(text: str, before_string: str | None = None) -> str:
    """Text in lines of at most 132 columns; as a string of C if something comes before it."""
    lines = textwrap.wrap(text, 110 if before_string else 124)
    if before_string:
        lines = [f'{before_string}"{lines[0]} "', *(f'"{line} "' for line in lines[1:])]
    return textwrap.indent("\n".join(lines), " " * 8)


if __name__ == "__main__":
    (snippets.ROOT / "attention/hopper/wgmma.h").write_text(wgmma_header())

"""Decoding: `decode` computes attention of one query a head against a long cache of keys, which it splits over many blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from .device import cp, on_gpu
from .ladder import TYPES, check_array, kernel
from .measure import ReadyLaunch

MAX_SK = 2**30                          # keys have 32-bit numbers in the kernels
MAX_GROUP = 8                           # query heads that a block serves
MAX_SPLITS = 1024
START = 100                             # what a wave of blocks costs beside its keys, in keys: starting, merging, writing


@dataclass(frozen=True)
class Plan:
    """A launch of `file`.  Each of the `parts`, GROUP query heads that share K and V, has `splits` blocks of `chunk` keys.

    A block has `threads` threads; `resident` blocks run on the GPU at once, so the grid takes `waves` of them.
    """

    file: str
    options: tuple[str, ...]
    parts: int
    group: int
    splits: int
    chunk: int
    threads: int
    resident: int

    @property
    def waves(self) -> int:
        return -(-self.parts * self.splits // self.resident)

    @property
    def cost(self) -> int:
        """What `plan` makes small, in keys: every wave lasts as long as its blocks take for their keys, and to start and to merge."""
        return self.waves * (self.chunk + START)


# ------------------------------------------------------------------------------------------------------ plans


@cache
def plan(B: int, Hq: int, Hkv: int, Sk: int, D: int, dtype: str = "float32", splits: int | None = None, matrices: bool = True,
         multiprocessors: int | None = None) -> Plan:
    """The launch for q [B, Hq, D] and a cache [B, Hkv, Sk, D]; without `splits` the one of least cost.

    `matrices` False keeps off the tensor cores.  `multiprocessors` are by default those of this GPU, on the CPU device of an H200.
    """
    multiprocessors = multiprocessors or multiprocessors_here()
    group = group_size(Hq // Hkv)
    fits = matrices and on_tensor_cores(group, D, dtype)
    file, threads, blocks, step, more = tensor_cores(group, D) if fits else plain(group, D, dtype)
    options = (*TYPES[dtype], f"-DD={D}", f"-DGROUP={group}", f"-DTHREADS={threads}", f"-DBLOCKS={blocks}", *more)

    def of(wanted: int) -> Plan:
        chunk = step * max(1, -(-Sk // (wanted * step)))        # whole steps
        return Plan(file, options, B * Hq // group, group, max(1, -(-Sk // chunk)), chunk, threads, blocks * multiprocessors)

    most = max(1, min(MAX_SPLITS, -(-Sk // step)))
    return of(min(splits, most)) if splits else min((of(n) for n in range(1, most + 1)), key=lambda p: p.cost)


def plain(group: int, D: int, dtype: str):
    """File, threads, blocks a multiprocessor, keys a block takes at a time, and options for groups of any size, D and dtype."""
    threads, blocks, keys = (256, 2, 4) if group <= 2 else (128, 3, 4) if group <= 4 else (128, 2, 2)
    return "decode.cu", threads, blocks, keys * threads // lanes_per_key(D, dtype), (f"-DKEYS={keys}",)


def tensor_cores(group: int, D: int):
    """The same for tensor cores, where a warp takes 16 keys at a time."""
    threads, blocks = 256, 1 if D == 128 else 2
    return "decode_grouped.cu", threads, blocks, threads // 2, ()


def on_tensor_cores(group: int, D: int, dtype: str) -> bool:
    """Is there a matrix to multiply, for which decode_grouped.cu has a form, on this GPU?"""
    return group > 1 and dtype != "float32" and D in (64, 128) and capability() >= 80


def group_size(per_head: int) -> int:
    """Query heads that a block serves, of the `per_head` that share K and V: the largest divisor up to MAX_GROUP."""
    return next(g for g in range(min(per_head, MAX_GROUP), 0, -1) if per_head % g == 0)


def lanes_per_key(D: int, dtype: str) -> int:
    """Threads that share a key (LANES in the source): 16 bytes each, rounded up to a power of two."""
    pieces = D * (4 if dtype == "float32" else 2) // 16
    return max(2, 1 << (pieces - 1).bit_length())


@cache
def multiprocessors_here() -> int:
    return cp.cuda.Device().attributes["MultiProcessorCount"] if on_gpu else 132


@cache
def capability() -> int:
    """Compute capability of this GPU, 90 for 9.0; the CPU device runs every kernel."""
    return int(cp.cuda.Device().compute_capability) if on_gpu else 90


# ------------------------------------------------------------------------------------------------------ calls


def decode(q, k, v, lengths=None, scale: float | None = None, splits: int | None = None):
    """softmax(scale * q k^T) v for one query a head against a cache of keys: (o, lse).

    q is [B, Hq, D] or [B, Hq, 1, D], k and v are [B, Hkv, Sk, D]: contiguous cp arrays of one dtype, float32, float16 or bfloat16;
    D is a multiple of 16 up to 128.  Query head h reads head h // (Hq / Hkv) of the cache (grouped-query heads).  `lengths`, an
    int32 cp array [B], says how many keys of each sequence count: below 0 it is taken as 0, above Sk as Sk, and what lies behind
    is never read.  `scale` defaults to 1/sqrt(D).  `splits` blocks share a head of the cache; by default as many as the plan
    predicts to be fastest.

    o has the shape and dtype of q, lse is float32 [B, Hq].  Without a visible key o = 0 and lse = -inf.  Raises TypeError or
    ValueError that names the limit.
    """
    o, lse = results(q)
    launch(q, k, v, o, lse, lengths, scale, splits)()
    return o, lse


def results(q):
    """Memory for (o, lse)."""
    _check_array("q", q, (3, 4))
    return cp.empty(q.shape, dtype=q.dtype), cp.empty(q.shape[:2], dtype=np.float32)


def launch(q, k, v, o, lse, lengths=None, scale: float | None = None, splits: int | None = None, matrices: bool = True):
    """The launch that `decode` makes, ready to run, to count or to time; arguments as there and in `plan`, o and lse from `results`."""
    B, Hq, Hkv, Sk, D = _check(q, k, v, lengths, splits)
    if q.size == 0:
        return lambda: None
    p = plan(B, Hq, Hkv, Sk, D, str(q.dtype), splits, matrices)
    states, sums = cp.empty((B * Hq, p.splits, 2), dtype=np.float32), cp.empty((B * Hq, p.splits, D), dtype=np.float32)
    args = (q, k, v, o, lse, states, sums, _arrived(p.parts), _no_lengths() if lengths is None else lengths,
            np.int32(lengths is not None), np.int32(Sk), np.int32(p.splits), np.int32(p.chunk), np.int32(p.parts // (B * Hkv)),
            np.int32(p.parts // B), np.float32(D**-0.5 if scale is None else scale))
    return ReadyLaunch(kernel(f"attention/{p.file}", "attention_decode", p.options), (p.parts * p.splits,), (p.threads,), args)


@cache
def _no_lengths():
    """What stands in for lengths where all sequences are full; the kernel does not read it."""
    return cp.zeros(1, dtype=np.int32)


_counters: dict[tuple[int, int], object] = {}


def _arrived(parts: int):
    """A counter for each part, all 0, as the kernel leaves them.  Kernels of one stream run one after the other and can share them."""
    if not on_gpu:
        return cp.zeros(parts, dtype=np.uint32)         # a kernel that stops with an error may leave others
    key = cp.cuda.Device().id, cp.cuda.get_current_stream().ptr
    if key not in _counters or _counters[key].size < parts:
        _counters[key] = cp.zeros(max(parts, 4096), dtype=np.uint32)
    return _counters[key]


# ----------------------------------------------------------------------------------------------------- checks


def _check_array(name: str, array, ndims: tuple[int, ...]) -> None:
    check_array(name, array, ndims, "[B, Hq, D] or [B, Hq, 1, D]" if name == "q" else "[B, Hkv, Sk, D]", tuple(TYPES))
    if array.data.ptr % 16:
        raise ValueError(f"{name} does not start at a multiple of 16 bytes, as its 16-byte loads need: use {name}.copy()")


def _check(q, k, v, lengths, splits) -> tuple[int, int, int, int, int]:
    """(B, Hq, Hkv, Sk, D), or an error that names the limit."""
    for name, array in (("k", k), ("v", v)):
        _check_array(name, array, (4,))
        if array.dtype != q.dtype:
            raise TypeError(f"q is {q.dtype} and {name} is {array.dtype}: all three must have one dtype")
    B, Hq, *one, D = q.shape
    _, Hkv, Sk, _ = k.shape
    if one not in ([], [1]):
        raise ValueError(f"q has {one[0]} queries a head, and decode takes one: use helpers.attention for more")
    if k.shape != v.shape or k.shape != (B, Hkv, Sk, D):
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: "
                         "k and v are [B, Hkv, Sk, D] with the B and D of q")
    if D % 16 or not 16 <= D <= 128:
        raise ValueError(f"D = {D} is not a multiple of 16 up to 128: pad q, k and v with zero columns and pass scale=1/sqrt(the true D)")
    if Hkv == 0 and Hq or Hkv and Hq % Hkv:
        raise ValueError(f"{Hq} query heads cannot share {Hkv} heads of the cache evenly: Hq must be a multiple of Hkv")
    if Sk > MAX_SK:
        raise ValueError(f"Sk = {Sk:,} is above {MAX_SK:,}: decode parts of the cache and merge them by their LSE (notebook 04)")
    if splits is not None and splits < 1:
        raise ValueError(f"splits = {splits}: at least one block must read the cache")
    if lengths is not None:
        if not isinstance(lengths, cp.ndarray) or lengths.dtype != np.int32:
            raise TypeError("lengths must be an int32 cp array: cp.asarray(lengths, dtype=cp.int32) makes one")
        if lengths.shape != (B,) or not lengths.flags.c_contiguous:
            raise ValueError(f"lengths has shape {tuple(lengths.shape)}: it holds one length for each of the {B} sequences, contiguous")
    return B, Hq, Hkv, Sk, D

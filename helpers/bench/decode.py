"""What `python -m helpers.bench decode` measures: one query a head against long caches, beside SDPA and what only reads or copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..decode import launch, plan, results
from ..device import cp
from . import peer_row, row
from .topk import reading

CASES = (  # B, query heads, cache heads, Sk, D, dtype
    (1, 8, 8, 32_768, 64, "bfloat16"), (1, 8, 8, 32_768, 128, "bfloat16"), (1, 8, 8, 32_768, 128, "float16"),
    (1, 8, 8, 32_768, 64, "float32"), (1, 8, 8, 131_072, 128, "bfloat16"), (1, 32, 32, 32_768, 64, "bfloat16"),
    (1, 32, 32, 32_768, 128, "bfloat16"), (8, 16, 16, 32_768, 128, "bfloat16"), (1, 16, 8, 32_768, 128, "bfloat16"),
    (1, 32, 8, 32_768, 128, "bfloat16"), (1, 64, 8, 32_768, 128, "bfloat16"), (8, 32, 8, 32_768, 128, "bfloat16"),
    (8, 64, 8, 32_768, 128, "bfloat16"),
)
SPLITS = (1, 2, 4, 8, 16, 24, 33, 49, 66, 82, 99, 115, 132, 198, 256, 341, 512, 1024)
LENGTHS = tuple(2**e for e in range(9, 20))
RAGGED = (16, 8, 8, 65_536, 128, "bfloat16")


def rows() -> list[dict]:
    """The cases beside their peers; one of them over the splits and over the length of the cache; a ragged batch."""
    result = [large_copy()]
    for case in CASES:
        result += [r | {"part": "cases"} for r in beside_peers(case)]
    case = CASES[1]
    tensors = cache_of(case)
    for splits in sorted({plan(*case, n).splits for n in (*SPLITS, None)}):
        result.append(decode_row(case, tensors, splits=splits) | {"part": "splits"})
    for Sk in LENGTHS:
        case = (1, 8, 8, Sk, 128, "bfloat16")
        result += [r | {"part": "lengths"} for r in beside_peers(case, ("read", "sdpa_flash"))]
    return result + [r | {"part": "ragged"} for r in ragged()]


def large_copy() -> dict:
    """What a copy of 1 GiB reaches: bytes read and bytes written, a second."""
    x = cp.random.default_rng(0).random(2**28, dtype=np.float32)
    y = cp.empty_like(x)
    result = row("decode", "copy", True, [x.size], "float32", lambda: cp.copyto(y, x), tbs=2 * x.nbytes)
    return result | {"part": "copy"}


def ragged() -> list[dict]:
    """A batch of full sequences, and one whose lengths are anything from 1 to Sk."""
    B, Hq, Hkv, Sk, D, dtype = RAGGED
    tensors = cache_of(RAGGED)
    lengths = np.random.default_rng(16).integers(1, Sk + 1, B).astype(np.int32)
    least = int(lengths.sum()) * 2 * Hkv * D * 2
    return [decode_row(RAGGED, tensors), decode_row(RAGGED, tensors, "decode_ragged", cp.asarray(lengths), least)]


def beside_peers(case, wanted: tuple[str, ...] = ()) -> list[dict]:
    """`decode`, and what else there is (or what is `wanted` of it), for one case."""
    tensors = cache_of(case)
    result = [decode_row(case, tensors)]
    if plan(*case).file != plan(*case, matrices=False).file:
        result.append(decode_row(case, tensors, "decode_plain", matrices=False))
    for name, function in peer_calls(*tensors).items():
        if not wanted or name in wanted:
            measured = peer_row("decode", name, shape_of(case), case[5], function, flush_l2=read_past_the_l2(), tbs=nbytes(case))
            result.append(measured | {"kv_heads": case[2]})
    return result


def decode_row(case, tensors, name: str = "decode", lengths=None, least: int | None = None, splits=None, matrices: bool = True) -> dict:
    q, k, v = (cp.from_dlpack(t) for t in tensors)
    p = plan(*case, splits, matrices)
    ready = launch(q, k, v, *results(q), lengths, splits=splits, matrices=matrices)
    measured = row("decode", name, False, shape_of(case), case[5], ready, flush_l2=read_past_the_l2(), tbs=least or nbytes(case))
    return measured | {"kv_heads": case[2], "splits": p.splits, "chunk": p.chunk, "waves": p.waves}


def nbytes(case) -> int:
    """Bytes of K and V."""
    B, _, Hkv, Sk, D, dtype = case
    return 2 * B * Hkv * Sk * D * (4 if dtype == "float32" else 2)


def shape_of(case) -> list:
    B, Hq, _, Sk, D, _ = case
    return [B, Hq, 1, Sk, D, False]


def cache_of(case):
    """Random q [B, Hq, 1, D], k and v [B, Hkv, Sk, D] as torch tensors."""
    import torch

    B, Hq, Hkv, Sk, D, dtype = case
    generator = torch.Generator("cuda").manual_seed(Sk + D)
    return [torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))
            for shape in ((B, Hq, 1, D), (B, Hkv, Sk, D), (B, Hkv, Sk, D))]


def read_past_the_l2() -> Callable:
    """A call that reads 256 MB.  A decoding step finds in the cache what was read before; after writes, their way back to memory would
    be timed with it."""
    if not _flushed:
        _flushed.append(cp.random.default_rng(1).random(64 << 20, dtype=np.float32))
    return reading(_flushed[0])


_flushed: list = []


def peer_calls(q, k, v) -> dict[str, Callable]:
    """Only reading and only copying as many bytes, SDPA's backends, and three calls of torch that write scores and weights."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    half = cp.empty((k.nbytes // 4,), dtype=np.float32)
    both = cp.concatenate([cp.from_dlpack(t).view(np.uint8).ravel() for t in (k, v)])
    grouped = q.view(k.shape[0], k.shape[1], -1, k.shape[-1])
    scale = k.shape[-1]**-0.5

    def sdpa(backend):
        def call():
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        return call

    return {"read": reading(both), "copy": lambda: cp.copyto(half, cp.from_dlpack(k).view(np.float32).ravel()),
            "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION), "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
            "sdpa_efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION), "sdpa_math": sdpa(SDPBackend.MATH),
            "three_calls": lambda: torch.softmax(grouped @ k.mT * scale, -1) @ v}

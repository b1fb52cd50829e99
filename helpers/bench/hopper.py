"""Measure attention on a Hopper GPU: every step beside cuDNN, FlashAttention-2 and FlashAttention-4; `rows()` makes a record's rows.

`python -c "from helpers.bench.hopper import tunings; tunings()"` measures the last step over tiles, consumers and stages.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from ..device import cp
from ..hopper import BEST, HEAD_DIMENSIONS, KEYS, MAX_SHARED, STEPS, Tuning, compiled, ready
from ..measure import time_us, write_past_the_l2
from . import peer_module, peer_row, row, write
from .attention import BACKENDS

B_TIMES_S, H = 16_384, 16
LENGTHS = (1024, 4096, 16_384)


def rows() -> list[dict]:
    """Twelve cases: S x D x causal; each with every step and every peer.  A step's time is that of its launch, ready before."""
    compile_all([(step, tuning, D) for step, chosen in STEPS.items() for (D, _), both in chosen.tunings.items() for tuning in both])
    return [r for S, D in product(LENGTHS, HEAD_DIMENSIONS) for r in _rows(S, D)]


def _rows(S: int, D: int) -> list[dict]:
    tensors, found = _inputs(S, D), []
    flush = write_past_the_l2(4)                    # long enough for a peer's Python code to have launched its kernel when the clock starts
    arrays = [cp.from_dlpack(t) for t in tensors]
    for causal in (False, True):
        shape, operations = (B_TIMES_S // S, H, S, S, D, causal), _operations(S, D, causal)
        for step, chosen in STEPS.items():
            launch = ready(*arrays, step, causal)[2]
            timed = row("hopper", step, False, shape, "bfloat16", launch, flush_l2=flush, tflops=operations)
            found.append(timed | {"tuning": vars(chosen.tuning(D, causal, S))})
        for name, call in _peers(*tensors, causal).items():
            found.append(peer_row("hopper", name, shape, "bfloat16", call, flush_l2=flush, tflops=operations))
    return found


def _operations(S: int, D: int, causal: bool) -> float:
    return 4 * B_TIMES_S * H * S * D / (2 if causal else 1)


def _inputs(S: int, D: int):
    """Random q, k and v as torch tensors [B, H, S, D]."""
    import torch

    torch.manual_seed(S + D)
    return [torch.randn(B_TIMES_S // S, H, S, D, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def _peers(q, k, v, causal: bool) -> dict:
    """SDPA's backends, and FlashAttention-4 where it is to be had, which wants [B, S, H, D]."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def sdpa(backend):
        def call():
            with sdpa_kernel(getattr(SDPBackend, backend)):
                F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return call

    calls = {name: sdpa(BACKENDS[name]) for name in ("sdpa_cudnn", "sdpa_flash")}
    if fa4 := peer_module("flash_attn.cute.interface"):
        turned = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
        calls["fa4"] = lambda: fa4.flash_attn_func(*turned, causal=causal)
    return calls


# ------------------------------------------------------------------------------------------------ tuning


def fitting(D: int) -> list[Tuning]:
    """Tunings of the last step whose tiles fit the shared memory and whose O, S and P fit the registers."""
    ways = [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]
    found = []
    for consumers, keys, (lazy, overlap, turns), by_fma in product((2, 3, 4), KEYS, ways, (0, 1) if D == 64 else (0,)):
        most = max((s for s in range(2, 7) if Tuning(keys, consumers, s).shared_mem(D) <= MAX_SHARED), default=0)
        if most and keys <= _most_keys(D, consumers, overlap) and (lazy or not by_fma):
            found.append(Tuning(keys, consumers, min(most, 4), lazy, overlap, turns, by_fma))
    return found


def _most_keys(D: int, consumers: int, overlap: bool) -> int:
    """Above, the compiler spills (found with ptxas, see tests/test_hopper.py)."""
    if consumers == 2:
        return 176 if D == 128 and overlap else 192
    return {(64, 3, False): 192, (64, 3, True): 128, (64, 4, False): 96, (64, 4, True): 64, (128, 3, False): 128, (128, 3, True): 80,
            (128, 4, False): 0, (128, 4, True): 0}[D, consumers, overlap]


def compile_all(kernels: list[tuple[str, Tuning, int]]) -> None:
    """Fill CuPy's cache on all cores with these (step, tuning, D): one after the other, compiling takes longer than measuring."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, *zip(*dict.fromkeys(kernels), strict=True)))


def _compile(step: str, tuning: Tuning, D: int) -> None:
    compiled(step, tuning, D, "bfloat16", 1)


def tunings() -> None:
    """Measure the last step with every tuning that fits, write the record …-hopper-tunings.json, and print the best of each case."""
    every = [(tuning, D) for D in HEAD_DIMENSIONS for tuning in fitting(D)]
    compile_all([(BEST, tuning, D) for tuning, D in every])
    found = []
    for S, D in product(LENGTHS, HEAD_DIMENSIONS):
        arrays = [cp.from_dlpack(t) for t in _inputs(S, D)]
        for causal in (False, True):
            of_case = [_tuning_row(arrays, S, D, causal, tuning) for tuning, d in every if d == D]
            found += sorted(of_case, key=lambda measured: measured["us"])
            for best in found[-len(of_case):][:5]:
                print(f"D={D:3} S={S:5} causal={causal:d} {best['tflops']:5.0f} TFLOP/s  {Tuning(**best['tuning'])}", flush=True)
        cp.get_default_memory_pool().free_all_blocks()
    print(write("hopper-tunings", found))


def _tuning_row(arrays, S: int, D: int, causal: bool, tuning: Tuning) -> dict:
    t = time_us(ready(*arrays, BEST, causal, tuning=tuning)[2], repeats=9, warmup=2)
    return {"topic": "hopper-tunings", "name": BEST, "peer": False, "shape": [B_TIMES_S // S, H, S, S, D, causal], "dtype": "bfloat16",
            "us": round(t.us, 2), "us_p10": round(t.us_p10, 2), "us_p90": round(t.us_p90, 2), "repeats": t.repeats,
            "tflops": round(_operations(S, D, causal) / t.us / 1e6, 1), "tuning": vars(tuning)}

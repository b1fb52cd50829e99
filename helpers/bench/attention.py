"""Measure attention on a GPU: every step beside SDPA's backends, and the memory that a call takes; `rows()` makes a record's rows."""

from __future__ import annotations

from ..attention import BEST, attention
from ..device import cp
from ..ladder import STEPS
from . import row

BACKENDS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION", "sdpa_efficient": "EFFICIENT_ATTENTION", "sdpa_math": "MATH"}
FLOAT32 = [(1, 16, S, 64) for S in (512, 1024, 2048, 4096, 8192)]  # B, H, S, D
TENSOR_CORES = [(4, 16, 4096, 64), (4, 16, 4096, 128)]
OTHER_LENGTHS = [(4, 16, 1024, 64), (4, 16, 1024, 128), (1, 16, 16_384, 64), (1, 16, 16_384, 128)]  # the last step only
LONG = (16_384, 32_768)  # S whose memory is measured, and not the time


def rows() -> list[dict]:
    """float32 steps over S; steps on tensor cores in bfloat16 over D, the last of them over S too; memory of the longest."""
    last, tensor_cores = BEST["bfloat16"], _steps("bfloat16")
    return [*(r for shape in FLOAT32 for r in _timed(shape, "float32", _steps("float32"), ("sdpa_efficient", "sdpa_math"))),
            *(r for shape in TENSOR_CORES for r in _timed(shape, "bfloat16", tensor_cores, tuple(BACKENDS))),
            *(r for shape in OTHER_LENGTHS for r in _timed(shape, "bfloat16", [last], ("sdpa_flash", "sdpa_cudnn"))),
            *(_memory(S, dtype, step) for S in LONG for dtype, step in (("float32", "attention_naive"), ("float32", BEST["float32"]),
                                                                       ("bfloat16", last)))]


def _steps(dtype: str) -> list[str]:
    return [key for key, step in STEPS.items() if key.startswith("attention") and dtype in step.dtypes]


def _inputs(shape: tuple[int, ...], dtype: str):
    """Random q, k and v as torch tensors, and the same memory as cp arrays."""
    import torch

    torch.manual_seed(shape[2])
    tensors = [torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for _ in range(3)]
    return tensors, [cp.from_dlpack(t) for t in tensors]


def _timed(shape: tuple[int, ...], dtype: str, steps: list[str], peers: tuple[str, ...]) -> list[dict]:
    """Every step and peer at one shape, without and with the causal mask; steps with the memory of a call."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    (B, H, S, D), (tensors, arrays), found = shape, _inputs(shape, dtype), []
    for causal in (False, True):
        described = (B, H, S, S, D, causal)
        operations = 4 * B * H * S * S * D / (2 if causal else 1)
        for key in steps:
            timed = row("attention", key, False, described, dtype, lambda: attention(*arrays, key, causal), tflops=operations)
            found.append(timed | {"peak_bytes": peak_bytes(lambda: attention(*arrays, key, causal))})
        for name in peers:
            with sdpa_kernel(getattr(SDPBackend, BACKENDS[name])):
                found.append(row("attention", name, True, described, dtype,
                                 lambda: F.scaled_dot_product_attention(*tensors, is_causal=causal), tflops=operations))
    return found


def _memory(S: int, dtype: str, key: str) -> dict:
    shape = (1, 16, S, 64)
    _, arrays = _inputs(shape, dtype)
    return {"topic": "attention", "name": key, "peer": False, "shape": [1, 16, S, S, 64, False], "dtype": dtype, "us": None,
            "peak_bytes": peak_bytes(lambda: attention(*arrays, key))}


def peak_bytes(function) -> int:
    """Device memory that one call takes, results and scratch together: the size of a fresh pool after it."""
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        function()
    cp.cuda.Device().synchronize()
    return int(pool.total_bytes())

"""Topic tiles: the tiled fp32 attention kernel over queries and keys a tile, at S = 4096."""

from __future__ import annotations

import numpy as np

from ..device import cp
from ..ladder import STEPS, kernel
from . import row

HEADS, HEAD_DIM = 16, 64


def rows() -> list[dict]:
    """The record's rows: time, registers, shared memory, resident threads."""
    S, D = 4096, HEAD_DIM
    rng = cp.random.default_rng(1)
    q, k, v = (rng.standard_normal((HEADS, S, D), dtype=cp.float32) for _ in range(3))
    o, lse = cp.empty_like(q), cp.empty((HEADS, S), dtype=cp.float32)
    step, found = STEPS["attention_tiled"], []
    for queries in (32, 64, 128, 256):
        for keys in (4, 8, 16, 32, 64):
            name, shape = f"q{queries}_k{keys}", (1, HEADS, S, S, D, False)
            shared = 4 * keys * (2 * D + queries)
            if shared > 48 << 10:
                found.append({"topic": "tiles", "name": name, "peer": False, "shape": list(shape), "dtype": "float32", "us": None,
                             "shared_bytes": shared, "why": "more than 48 KB of fixed shared memory"})
                continue
            run = kernel(step.file, step.entry, (f"-DD={D}", f"-DQUERIES={queries}", f"-DKEYS={keys}"))
            args = (q, k, v, o, lse, np.int32(S), np.int32(S), np.int32(0), np.float32(D**-0.5))
            result = row("tiles", name, False, shape, "float32", lambda: run((S // queries, HEADS), (queries,), args),
                         tflops=4 * HEADS * S * S * D)
            registers = run.num_regs
            blocks = min(65536 // (-(-registers // 8) * 8 * queries), (228 << 10) // (shared + 1024), 2048 // queries, 32)
            found.append(result | {"registers": registers, "spilled_bytes": run.local_size_bytes, "shared_bytes": shared,
                                  "blocks_per_sm": blocks, "occupancy": blocks * queries / 2048})
    return found

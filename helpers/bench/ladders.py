"""Topic ladders: every softmax step beside torch.softmax, torch.compile and a device copy, at 2^27 float32 elements."""

from __future__ import annotations

import numpy as np

from ..device import cp
from ..ladder import STEPS, kernel
from . import row

ELEMENTS = 2**27
COLUMNS = (256, 1024, 4096, 8192, 16384, 65536)


def rows() -> list[dict]:
    """The record's rows."""
    return [row for N in COLUMNS for row in _rows_at(ELEMENTS // N, N)]


def _rows_at(M: int, N: int) -> list[dict]:
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(lambda t: torch.softmax(t, -1), dynamic=False)
    x = cp.random.default_rng(N).standard_normal((M, N), dtype=cp.float32)
    y, t = cp.empty_like(x), torch.from_dlpack(x)
    u = torch.empty_like(t)
    least = 2 * x.nbytes
    peers = {"copy": lambda: cp.copyto(y, x), "torch_copy": lambda: u.copy_(t), "torch": lambda: torch.softmax(t, -1),
             "compile": lambda: compiled(t)}
    found = [row("ladders", name, True, (M, N), "float32", function, tbs=least) for name, function in peers.items()]
    for key, step in STEPS.items():
        if step.reads is None or N > step.max_n:
            continue
        launch, run = step.launch(M, N), kernel(step.file, step.entry, step.options(N))
        args = (x, y, np.int32(M), np.int32(N))
        found.append(row("ladders", key, False, (M, N), "float32",
                         lambda: run(launch.grid, launch.block, args, shared_mem=launch.shared_mem), tbs=least))
    return found

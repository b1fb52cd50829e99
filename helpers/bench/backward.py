"""Measure the backward passes on a GPU beside torch, QuACK and plain copies: `rows()` makes the rows of a record.

QuACK takes part where it can be imported, also from the folder that the variable PEERS_SITE names.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import gradients
from ..device import cp
from . import peer_module, row

COLUMNS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
ELEMENTS = {"float32": 2**27, "bfloat16": 2**28}

_READ = r"""
extern "C" __global__ void read(const uint4* x, unsigned* y, long long n) {     // reads everything, writes nothing
    const long long start = (long long)blockIdx.x * blockDim.x * 8 + threadIdx.x;
    uint4 v[8];
    for (int i = 0; i < 8; ++i) v[i] = start + i * blockDim.x < n ? x[start + i * blockDim.x] : make_uint4(1, 0, 0, 0);
    unsigned all = 0;
    for (int i = 0; i < 8; ++i) all |= v[i].x | v[i].y | v[i].z | v[i].w;
    if (all == 0) y[threadIdx.x] = 1;                                           // never: the data are random
}"""


def rows(columns=COLUMNS, dtypes=tuple(ELEMENTS), peers: bool = True) -> list[dict]:
    """Time every kernel of cuda_snippets/backward/, for rows of `columns` elements, 2^27 float32 or 2^28 bfloat16 in all.

    Beside them: add (z = x + y, the bandwidth of two reads and a write), copy, read (reading alone) and, with `peers`, torch
    and QuACK.  `tbs` counts the least bytes.
    """
    found = []
    for dtype in dtypes:
        for N in columns:
            shape = (ELEMENTS[dtype] // N, N)
            for name, peer, nbytes, function in contenders(*shape, dtype, peers):
                found.append(row("backward", name, peer, shape, dtype, function, tbs=nbytes))
    return found


def contenders(M: int, N: int, dtype: str, peers: bool = True) -> list[tuple[str, bool, int, Callable]]:
    """(name, whether others made it, least bytes of a call, the call) of everything that is measured at one size."""
    import torch

    kind = getattr(torch, dtype)
    generator = torch.Generator("cuda").manual_seed(N)
    tx, tdy = (torch.randn((M, N), device="cuda", dtype=kind, generator=generator) for _ in range(2))
    tt = torch.randint(N, (M,), device="cuda", generator=generator)
    ty, tl, tz = torch.softmax(tx, -1), torch.log_softmax(tx, -1), torch.empty_like(tx)
    x, dy, y, log_y, dx, t = (gradients._array(a) for a in (tx, tdy, ty, tl, tz, tt))
    states, loss = cp.empty((M, 2), dtype=np.float32), cp.empty((M,), dtype=np.float32)
    scales = cp.asarray(np.full(M, 1 / M, np.float32))
    nbytes = x.nbytes
    forward = gradients.prepare("cross_entropy_forward", x, t, loss, states)
    forward()
    found = [
        ("add", True, 3 * nbytes, lambda: torch.add(tx, tdy, out=tz)),
        ("copy", True, 2 * nbytes, lambda: tz.copy_(tx)),
        ("read", True, nbytes, _reading(x)),
        ("softmax_backward", False, 3 * nbytes, gradients.prepare("softmax_backward", y, dy, dx)),
        ("softmax_backward_from_x", False, 3 * nbytes, gradients.prepare("softmax_backward_from_x", x, states, dy, dx)),
        ("log_softmax_backward", False, 3 * nbytes, gradients.prepare("log_softmax_backward", log_y, dy, dx)),
        ("cross_entropy", False, nbytes, forward),
        ("cross_entropy_backward", False, 2 * nbytes, gradients.prepare("cross_entropy_backward", x, states, t, scales, dx)),
    ]
    if peers:
        found += _torch(torch, tx, tdy, ty, tl, tt, kind, nbytes) + _quack(tx, tdy, ty, tt, torch.from_dlpack(scales), nbytes)
    return found


def _reading(x) -> Callable:
    kernel, y, n = cp.RawKernel(_READ, "read"), cp.zeros(256, dtype=np.uint32), x.nbytes // 16
    return lambda: kernel((-(-n // 2048),), (256,), (x, y, np.int64(n)))


def _torch(torch, x, dy, y, log_y, targets, kind, nbytes) -> list:
    leaf = x.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, targets)
    aten = torch.ops.aten

    def forward():
        with torch.no_grad():
            torch.nn.functional.cross_entropy(x, targets)

    return [
        ("torch_softmax_backward", True, 3 * nbytes, lambda: aten._softmax_backward_data(dy, y, -1, kind)),
        ("torch_log_softmax_backward", True, 3 * nbytes, lambda: aten._log_softmax_backward_data(dy, log_y, -1, kind)),
        ("torch_cross_entropy", True, nbytes, forward),
        ("torch_cross_entropy_backward", True, 2 * nbytes, lambda: torch.autograd.grad(loss, leaf, retain_graph=True)),
    ]


def _quack(x, dy, y, targets, scales, nbytes) -> list:
    losses, softmax = peer_module("quack.cross_entropy"), peer_module("quack.softmax")
    if not (losses and softmax):
        return []
    try:
        _, lse = losses.cross_entropy_fwd(x, targets, return_lse=True)
    except Exception as error:  # a peer that does not run is left out, and that is said
        print(f"QuACK is left out: {type(error).__name__}: {str(error)[:200]}")
        return []
    return [
        ("quack_softmax_backward", True, 3 * nbytes, lambda: softmax.softmax_bwd(dy, y)),
        ("quack_cross_entropy", True, nbytes, lambda: losses.cross_entropy_fwd(x, targets, return_lse=True)),
        ("quack_cross_entropy_backward", True, 2 * nbytes, lambda: losses.cross_entropy_bwd(x, targets, scales, lse)),
    ]

"""What the ranks of notebook beyond/many_gpus run: take this rank's part of whole arrays, compute, give arrays back.

A notebook cannot send its own functions to other processes, which import what they run; so they stand here.  Every function
gets the `Comm` of its rank first, and returns what it computed and what it sent: (results..., bytes, messages).
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import torch

from .. import many_gpus
from . import shard, tokens
from .group import Comm


def hello(comm: Comm) -> tuple[int, int, int]:
    """(rank, process, the sum of all ranks)."""
    total = comm.all_reduce(torch.tensor(comm.rank, device=comm.device))
    return comm.rank, os.getpid(), int(total)


# ------------------------------------------------------------------------------------------- columns over ranks


def softmax(comm: Comm, x: np.ndarray, cuts: list[int], merge: str, dtype: str = "float32"):
    """(this rank's columns of the softmax, bytes, messages); rank r holds the columns cuts[r] to cuts[r + 1] - 1 of x [M, N]."""
    part = _columns(comm, x, cuts, dtype)
    return _counted(comm, lambda: [many_gpus.softmax(comm, part, merge)])


def cross_entropy(comm: Comm, x: np.ndarray, targets: np.ndarray, cuts: list[int], dtype: str = "float32"):
    """(loss [M], this rank's columns of its gradient, bytes, messages)."""
    part, first, total = _columns(comm, x, cuts, dtype), cuts[comm.rank], x.shape[1]
    goals = torch.from_numpy(targets).to(comm.device)

    def forward_and_backward():
        loss, state = many_gpus.cross_entropy(comm, part, goals, first, total)
        return loss, many_gpus.cross_entropy_gradient(part, goals, state, torch.ones_like(loss), first, total)

    return _counted(comm, forward_and_backward)


def softmax_topk(comm: Comm, x: np.ndarray, k: int, cuts: list[int], dtype: str = "float32"):
    """(probabilities [M, k], columns [M, k], bytes, messages)."""
    part = _columns(comm, x, cuts, dtype)
    return _counted(comm, lambda: many_gpus.softmax_topk(comm, part, k, cuts[comm.rank], x.shape[1]))


# -------------------------------------------------------------------------------------------- tokens over ranks


def ring(comm: Comm, q, k, v, causal: bool = False, zigzag: bool = False, overlap: bool = True, dtype: str = "float32"):
    """(o, lse, the tokens they belong to, bytes, messages) from q, k, v [B, H, S, D] by ring attention."""
    S = q.shape[2]
    stretches = [tokens(S, comm.size, rank, zigzag) for rank in range(comm.size)]
    lengths = [[t.stop - t.start for t in mine] for mine in stretches]
    places = np.concatenate([np.arange(S)[t] for t in stretches[comm.rank]])
    parts = [_on(comm, t[:, :, places], dtype) for t in (q, k, v)]
    o, lse, *cost = _counted(comm, lambda: many_gpus.ring_attention(comm, *parts, lengths, causal, overlap))
    return o, lse, places, *cost


def gathered(comm: Comm, q, k, v, causal: bool = False, dtype: str = "float32"):
    """(o, lse, bytes, messages) for all queries: each rank attends to its keys, then (O, LSE) are gathered."""
    part = shard(k.shape[2], comm.size, comm.rank)
    q, k, v = (_on(comm, t, dtype) for t in (q, k[:, :, part], v[:, :, part]))
    return _counted(comm, lambda: many_gpus.gathered_attention(comm, q, k, v, part.start, causal))


# --------------------------------------------------------------------------------------------- what may go wrong


def fail(comm: Comm, rank: int) -> None:
    """One rank raises while the others wait for it."""
    if comm.rank == rank:
        raise ValueError("this shard is damaged")
    comm.barrier()


def die(comm: Comm, rank: int) -> None:
    """One rank is killed, as the system does with a process that takes too much memory."""
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def hang(comm: Comm, rank: int) -> None:
    """One rank never arrives."""
    while comm.rank == rank:
        time.sleep(1)
    comm.barrier()


# ------------------------------------------------------------------------------------------------ bytes on the wire


def traffic(comm: Comm, way: str, numbers: int) -> tuple[int, int | None]:
    """(bytes that all ranks should send, bytes that the system saw on its loopback interface) for one collective.

    `way` is all_reduce, all_gather or pass_on, of `numbers` float32.  The second is None where the system does not count.
    """
    data = torch.full((numbers,), comm.rank + 1.0)
    comm.barrier()
    before, comm.sent = _loopback_bytes(), 0
    comm.barrier()
    if way == "pass_on":
        comm.pass_on(data, torch.empty_like(data))()
    else:
        getattr(comm, way)(data)
    comm.barrier()
    after = _loopback_bytes()
    comm.barrier()
    return comm.sent * comm.size, None if before == after else after - before


def _loopback_bytes() -> int | None:
    try:
        with open("/proc/net/dev") as lines:
            return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))
    except (OSError, StopIteration):
        return None


# ------------------------------------------------------------------------------------------------------------ tools


def _counted(comm: Comm, function) -> tuple:
    comm.sent, comm.messages = 0, 0
    results = function()
    return *(_array(t) for t in results), comm.sent, comm.messages


def _columns(comm: Comm, x: np.ndarray, cuts: list[int], dtype: str) -> torch.Tensor:
    return _on(comm, x[:, cuts[comm.rank]:cuts[comm.rank + 1]], dtype)


def _on(comm: Comm, array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(comm.device, getattr(torch, dtype))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()

"""What `python -m helpers.bench topk` measures: softmax + top-k beside torch, QuACK and a kernel that only reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..device import cp
from ..ladder import numpy_type
from ..topk import VARIANTS, launches, results
from . import peer_module, peer_row, row
from .softmax import processes

CASES = [(*shape, "float32") for shape in (  # M, N, k, dtype
    (4000, 25_000, 5), (4000, 25_000, 32), (4000, 25_000, 64), (10, 25_000, 5), (512, 128_256, 1), (512, 128_256, 8), (512, 128_256, 64),
    (8192, 4096, 8), (65_536, 256, 8), (1, 128_256, 8),
)] + [(*shape, "bfloat16") for shape in (
    (4000, 25_000, 5), (4000, 25_000, 32), (512, 128_256, 8), (8192, 4096, 8), (65_536, 256, 8), (1, 128_256, 8),
)]
VOCABULARIES = (1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
BATCHES = (4000, 10)

READ = r"""
extern "C" __global__ void read_all(const float4* __restrict__ x, float* __restrict__ y, long long n) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    float sum = 0;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const float4 v = x[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    if (sum == 1.2345e38f) *y = sum;                // never, but the compiler cannot know
}
"""


def rows() -> list[dict]:
    """Every case beside its peers, then the four variants of the paper over the vocabulary; see the record's README."""
    warm()
    result = []
    for one in CASES:
        result += case(*one)
    for M in BATCHES:
        for N in VOCABULARIES:
            result += variants(M, N, 5)
    return result


def warm() -> None:
    """Compile everything at once: QuACK in processes, whose cache on disk is read later, our kernels in threads meanwhile."""
    with processes() as peers, ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as ours:
        waiting = [peers.submit(compile_peer, *one) for one in CASES if quack_takes(one[1], one[2])]
        run = {launch.kernel for one in CASES for launch in unlaunched(*one)}
        run |= {launch.kernel for M in BATCHES for N in VOCABULARIES for variant in (*VARIANTS, "auto", "whole")
                for launch in unlaunched(M, N, 5, "float32", variant)}
        list(ours.map(lambda kernel: kernel.compile(), run))
        for future in waiting:
            if future.exception():
                print(f"not compiled: {future.exception()}")


def compile_peer(M: int, N: int, k: int, dtype: str) -> None:
    """Run QuACK once, in a process of its own."""
    if call := peer_calls(logits(M, N, dtype), k).get("quack"):
        call()
        cp.cuda.Device().synchronize()


def unlaunched(M: int, N: int, k: int, dtype: str, variant: str = "auto"):
    """The launches of a shape, whose array of logits has but one element in memory."""
    x = cp.lib.stride_tricks.as_strided(cp.empty(1, dtype=numpy_type(dtype)), (M, N), (0, 0))
    return launches(x, *results(M, k), variant=variant, y=x)


def case(M: int, N: int, k: int, dtype: str) -> list[dict]:
    """One shape: our call, in a graph where there are few rows, and what a user would pick instead."""
    x = logits(M, N, dtype)
    functions = {"softmax_topk": in_order(launches(x, *results(M, k))), **peer_calls(x, k)}
    result = []
    for name, function in functions.items():
        ours = name == "softmax_topk"
        measured = function
        if M <= 10:
            function()
            try:
                measured = in_graph(function, torch_call=not (ours or name == "read"))
            except Exception:
                if ours:
                    raise
                continue
        result.append(_row(name, not ours, (M, N, k), dtype, measured, x.nbytes) | {"graph": M <= 10})
    return result


def variants(M: int, N: int, k: int) -> list[dict]:
    """The four variants of the paper, our call, and both outputs at once, for M rows of N logits."""
    x = logits(M, N, "float32")
    y = cp.empty_like(x)                            # up to 16 GB: one for all of them
    functions = {name: in_order(launches(x, *results(M, k), variant=key, y=y))
                 for name, key in (*((v, v) for v in VARIANTS), ("softmax_topk", "auto"), ("softmax_and_topk", "whole"))}
    result = [_row(name, False, (M, N, k), "float32", function, x.nbytes, topic="variants") for name, function in functions.items()]
    result += [_row(name, True, (M, N, k), "float32", function, x.nbytes, topic="variants")
               for name, function in peer_calls(x, k).items() if name in ("read", "softmax;topk")]
    return result


def in_order(launches) -> Callable:
    """One function that does several launches."""
    def run():
        for launch in launches:
            launch()
    return run


def _row(name, peer, shape, dtype, function, nbytes, topic="cases") -> dict:
    if peer:
        measured = peer_row("topk", name, shape, dtype, function, tbs=nbytes)
    else:
        measured = row("topk", name, False, shape, dtype, function, tbs=nbytes)
    return measured | {"part": topic}


def logits(M: int, N: int, dtype: str):
    """Random logits [M, N] with standard deviation 3, made in pieces: an array may have more than 2^31 elements."""
    import torch

    cp.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()
    x = cp.empty((M, N), dtype=numpy_type(dtype))
    rng, rows_each = cp.random.default_rng(M + N), max(1, 2**28 // N)
    for start in range(0, M, rows_each):
        part = x[start: start + rows_each]
        part[...] = (3 * rng.standard_normal(part.shape, dtype=cp.float32)).astype(x.dtype)
    return x


def peer_calls(x, k: int) -> dict[str, Callable]:
    """What others offer for logits `x`: torch in both orders, QuACK where PEERS_SITE holds it, and reading x once."""
    import torch

    tensor = torch.from_dlpack(x)

    def topk_then_lse():
        values, columns = torch.topk(tensor, k, -1)
        return torch.exp(values - torch.logsumexp(tensor, -1, keepdim=True)), columns

    calls = {"read": reading(x), "softmax;topk": lambda: torch.topk(torch.softmax(tensor, -1), k, -1), "topk;lse": topk_then_lse}
    quack = peer_module("quack.topk")
    if quack and quack_takes(x.shape[1], k):
        calls["quack"] = lambda: quack.topk(tensor, k, softmax=True)  # normalised over the k only
    return calls


def quack_takes(N: int, k: int) -> bool:
    """QuACK's top-k is for rows of up to 4096 logits, and both sizes must be powers of two."""
    return N <= 4096 and N & (N - 1) == k & (k - 1) == 0


def reading(array) -> Callable:
    """A call that reads an array and does nothing else."""
    kernel, sink = cp.RawKernel(READ, "read_all"), cp.empty(1, dtype=np.float32)
    blocks = 16 * cp.cuda.Device().attributes["MultiProcessorCount"]
    return lambda: kernel((blocks,), (256,), (array, sink, np.int64(array.nbytes // 16)))


def in_graph(function: Callable, torch_call: bool = False) -> Callable:
    """`function` as a CUDA graph, so that launching it costs little; torch captures its own calls, for the memory they take."""
    import torch

    if torch_call:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            function()
        return captured.replay
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        function()
        stream.synchronize()
        stream.begin_capture()
        function()
        graph = stream.end_capture()
    return lambda: graph.launch(cp.cuda.Stream.null)

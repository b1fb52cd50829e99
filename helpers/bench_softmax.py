"""Topic softmax of `make bench`: helpers.fast.softmax beside a device copy and what a user would pick instead.

Many rows (2^27 elements), odd lengths, rows that begin off a 16-byte boundary, and few rows: in a CUDA graph and launched one by one.
The peers are torch, torch.compile, Triton in one pass, and QuACK where it is installed (PEERS_SITE may name its folder).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import fast, reference
from .bench import peer_module, row
from .device import cp

ELEMENTS = 2**27
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ODD = (4095, 4097, 8191, 32001, 50257, 128256, 151936)
FEW = [(M, N) for N in (4096, 16384, 65536, 262144) for M in (1, 4, 32, 128)]


def rows() -> list[dict]:
    """The record's rows; prints each as it is made.  About five minutes on an H200."""
    found = []
    for dtype in ("float32", "float16", "bfloat16"):
        for N in LENGTHS:
            found += many_rows(N, dtype, all_peers=True)
        for N in ODD:
            found += many_rows(N, dtype)
        for N in (4096, 32768, 262144):
            found += many_rows(N, dtype, offset=1)
        for M, N in FEW:
            found += few_rows(M, N, dtype)
    return found


def data(M: int, N: int, dtype: str, offset: int = 0):
    """(x, t): the same random memory as a cp array and as a torch tensor; rows begin `offset` elements off a boundary."""
    import torch

    flat = torch.randn(M * N + offset, device="cuda", dtype=getattr(torch, dtype)) * 3
    t = flat[offset:].view(M, N)
    return cp.from_dlpack(t), t


def peers(t, everything: bool) -> dict[str, Callable]:
    """What a user would pick instead, as functions without arguments."""
    import torch

    found = {"torch": lambda: torch.softmax(t, -1)}
    if quack := peer_module("quack.softmax"):
        found["quack"] = lambda: quack.softmax(t)
    if everything:
        torch._dynamo.reset()
        compiled = torch.compile(lambda t: torch.softmax(t, -1), dynamic=False)
        found["compile"] = lambda: compiled(t)
        if t.shape[1] <= 65536 and (triton := peer_module("helpers.triton_softmax")):
            found["triton"] = lambda: triton.one_pass(t)
    return found


def many_rows(N: int, dtype: str, all_peers: bool = False, offset: int = 0) -> list[dict]:
    """Our softmax, its logarithm and in place, a copy and the peers, at 2^27 elements."""
    import torch

    M = ELEMENTS // N
    x, t = data(M, N, dtype, offset)
    y = fast.softmax(x)
    u, z = torch.empty_like(t), y.copy() if offset == 0 else fast.softmax(x)
    check(t, torch.from_dlpack(y))
    functions = {"copy": lambda: u.copy_(t), "fast": lambda: fast.softmax(x), "fast_log": lambda: fast.softmax(x, log=True),
                 "fast_in_place": lambda: fast.softmax(z, out=z)} | (peers(t, all_peers) if offset == 0 else {})
    found = []
    for name, function in functions.items():
        try:
            r = row("softmax", name, not name.startswith("fast"), (M, N), dtype, function, tbs=2 * x.nbytes)
            found.append(r | {"offset": offset, "kernel": fast.way(M, N, dtype).kernel if name.startswith("fast") else None})
        except Exception as error:                                      # a peer that cannot run this size is reported, not hidden
            print(f"{name} at {M} x {N} {dtype}: {type(error).__name__}: {str(error)[:160]}")
    return found


def check(t, y) -> None:
    """Raise unless `y` is the softmax of `t`, compared in some of the rows with float64."""
    import torch

    picks = torch.linspace(0, t.shape[0] - 1, min(40, t.shape[0]), device=t.device).long()
    exact = reference.softmax(t[picks].double().cpu().numpy())
    got = y[picks].double().cpu().numpy()
    allowed = 1e-6 if t.dtype == torch.float32 else exact * torch.finfo(t.dtype).eps
    if not np.all(np.abs(got - exact) <= allowed + 1e-7):
        raise AssertionError(f"wrong result at {tuple(t.shape)} {t.dtype}")


def few_rows(M: int, N: int, dtype: str) -> list[dict]:
    """Our softmax and the peers on few rows: `graph`: 20 calls in a CUDA graph; `plain`: 100 calls one after the other."""
    x, t = data(M, N, dtype)
    y = cp.empty_like(x)
    found = []
    for name, function in ({"fast": lambda: fast.softmax(x, out=y)} | peers(t, everything=False)).items():
        try:
            in_graph = (graph_times if name == "fast" else torch_graph_times)(function)
            one_by_one = plain_times(lambda: fast.softmax(x)) if name == "fast" else plain_times(function)
        except Exception as error:
            print(f"{name} at {M} x {N} {dtype}: {type(error).__name__}: {str(error)[:160]}")
            continue
        for how, us in (("graph", in_graph), ("plain", one_by_one)):
            r = {"topic": "softmax", "name": f"{name}_{how}", "peer": name != "fast", "shape": [M, N], "dtype": dtype,
                 "us": round(float(np.median(us)), 3), "us_p10": round(float(np.percentile(us, 10)), 3),
                 "us_p90": round(float(np.percentile(us, 90)), 3), "repeats": len(us)}
            print(" ".join(f"{v}" for v in r.values()), flush=True)
            found.append(r)
    return found


# ------------------------------------------------------------------------------------------ times of short calls


def graph_times(function: Callable, calls: int = 20, repeats: int = 15) -> np.ndarray:
    """Microseconds a call in a CUDA graph of `calls` launches through CuPy; `function` must not allocate memory."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        function()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(calls):
            function()
        graph = stream.end_capture()
        return _replay_times(lambda: graph.launch(stream), stream, calls, repeats)


def torch_graph_times(function: Callable, calls: int = 20, repeats: int = 15) -> np.ndarray:
    """The same for a function of torch tensors."""
    import torch

    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    return _replay_times(graph.replay, cp.cuda.Stream.null, calls, repeats)


def plain_times(function: Callable, calls: int = 100, repeats: int = 15) -> np.ndarray:
    """Microseconds a call of calls launched one after the other: the host's time where it is longer than the GPU's."""
    def several():
        for _ in range(calls):
            function()
    return _replay_times(several, cp.cuda.Stream.null, calls, repeats)


def _replay_times(replay: Callable, stream, calls: int, repeats: int) -> np.ndarray:
    for _ in range(3):
        replay()
    events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(repeats)]
    for start, end in events:
        start.record(stream)
        replay()
        end.record(stream)
        stream.synchronize()
    return np.array([cp.cuda.get_elapsed_time(start, end) * 1e3 / calls for start, end in events])

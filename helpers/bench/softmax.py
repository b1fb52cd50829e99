"""Topic softmax of `make bench`: helpers.fast.softmax beside a device copy and what a user would pick instead.

Many rows (2^27 elements), odd lengths, rows that begin off a 16-byte boundary, and few rows: in a CUDA graph and launched one by one.
Each kernel alone, too: `family_block` and so on, for the crossovers; `family_block_no_ahead` is without prefetch.
The peers are torch, torch.compile, Triton in one pass, and QuACK where it is installed (PEERS_SITE may name its folder).
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from .. import fast, reference
from ..device import cp
from ..measure import tbs, write_past_the_l2
from . import peer_module

ELEMENTS = 2**27
DTYPES = ("float32", "float16", "bfloat16")
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ODD = (4095, 4097, 8191, 32001, 50257, 128256, 151936)
UNALIGNED = (4096, 32768, 262144)
FEW_LENGTHS = (4096, 16384, 32768, 65536, 131072, 262144)
FEW_ROWS = (1, 4, 32, 128)


@dataclass(frozen=True)
class Case:
    """M rows of N elements that begin `offset` elements off a 16-byte boundary."""

    M: int
    N: int
    dtype: str
    offset: int = 0

    @property
    def few(self) -> bool:
        return self.M * self.N < ELEMENTS // 2


def cases() -> list[Case]:
    """Everything that is measured."""
    many = [(ELEMENTS // N, N, offset) for offset, lengths in ((0, LENGTHS + ODD), (1, UNALIGNED)) for N in lengths]
    few = [(M, N, 0) for N in FEW_LENGTHS for M in FEW_ROWS]
    return [Case(M, N, dtype, offset) for dtype in DTYPES for M, N, offset in many + few]


def rows() -> list[dict]:
    """The record's rows; prints each as it is made.  About two minutes on an H200, most of them for compilers."""
    with processes() as pool:
        list(pool.map(warm, cases()))
    found = [row for case in cases() for row in (few_rows if case.few else many_rows)(case)]
    return found + [row for case in cases() for row in attempt(lambda case=case: family_rows(case), case) or []]


def processes() -> ProcessPoolExecutor:
    """Processes for the compilers."""
    return ProcessPoolExecutor(min(16, os.cpu_count() or 1), multiprocessing.get_context("spawn"))


def warm(case: Case) -> None:
    """Run everything once, in a process of its own, so that the compilers' caches on disk hold it."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    x, t = data(case)
    ours = [lambda log=log: fast.softmax(x, log=log) for log in (False, True)]
    for function in [*ours, *peers(t, case).values(), lambda: [run(x, x) for run in families(case).values()]]:
        attempt(function, case)


def data(case: Case):
    """(x, t): the same random memory as a cp array and as a torch tensor."""
    import torch

    torch.manual_seed(case.N)
    flat = torch.randn(case.M * case.N + case.offset, device="cuda", dtype=getattr(torch, case.dtype)) * 3
    t = flat[case.offset:].view(case.M, case.N)
    return cp.from_dlpack(t), t


def peers(t, case: Case) -> dict[str, Callable]:
    """What a user would pick instead, as functions without arguments."""
    import torch

    found = {} if case.offset else {"torch": lambda: torch.softmax(t, -1)}
    if case.offset == 0 and (quack := peer_module("quack.softmax")):
        found["quack"] = lambda: quack.softmax(t)
    if case.offset == 0 and case.N in LENGTHS and not case.few:
        if case.N <= 65536 and (triton := peer_module("helpers.bench.triton_softmax")):
            found["triton"] = lambda: triton.one_pass(t)
        torch._dynamo.reset()
        compiled = torch.compile(lambda t: torch.softmax(t, -1), dynamic=False)
        found["compile"] = lambda: compiled(t)                          # the last: what it leaves in L2 hardly changes a copy
    return found


def attempt(function: Callable, case: Case):
    """What `function` returns; None, and why, if it raises: a peer that cannot run a size is reported, not hidden."""
    try:
        return function()
    except Exception as error:
        print(f"{case}: {type(error).__name__}: {str(error)[:160]}")


def check(t, y) -> None:
    """Raise unless `y` is the softmax of `t`, compared in some of the rows with float64."""
    import torch

    M, N = t.shape
    picks = torch.linspace(0, M - 1, min(M, max(3, 2**20 // N), 40), device=t.device).long()
    exact = reference.softmax(t[picks].double().cpu().numpy())
    got = y[picks].double().cpu().numpy()
    allowed = 1e-6 if t.dtype == torch.float32 else exact * torch.finfo(t.dtype).eps
    if not np.all(np.abs(got - exact) <= allowed + 1e-7):
        raise AssertionError(f"wrong result at {M} x {N} {t.dtype}")


def described(case: Case, name: str, peer: bool, us: np.ndarray, **more) -> dict:
    """One row of the record; `us`: microseconds of each call."""
    median, p10, p90 = (round(float(np.percentile(us, q)), 3) for q in (50, 10, 90))
    r = {"topic": "softmax", "name": name, "peer": peer, "shape": [case.M, case.N], "dtype": case.dtype,
         "us": median, "us_p10": p10, "us_p90": p90, "repeats": len(us), **more}
    print(*r.values(), flush=True)
    return r


# ------------------------------------------------------------------------------------------------ many rows


def many_rows(case: Case) -> list[dict]:
    """Our softmax, its logarithm and in place, a copy and the peers."""
    import torch

    x, t = data(case)
    check(t, torch.from_dlpack(fast.softmax(x)))
    u, z = torch.empty_like(t), cp.from_dlpack(data(case)[1])
    copy, others = {"copy": lambda: u.copy_(t)}, peers(t, case)
    ours = {"fast": lambda: fast.softmax(x), "fast_log": lambda: fast.softmax(x, log=True), "fast_in_place": lambda: fast.softmax(z, out=z)}
    functions = {name: f for name, f in (copy | ours | others).items() if attempt(f, case) is not None}
    kernel = fast.way(case.M, case.N, case.dtype).kernel
    times = times_in_turn(functions, before={"fast_in_place": lambda: cp.copyto(z, x)})
    return [described(case, name, name not in ours, us, tbs=round(tbs(2 * x.nbytes, float(np.median(us))), 4), offset=case.offset,
                      kernel=kernel if name in ours else None) for name, us in times.items()]


def times_in_turn(functions: dict[str, Callable], before: dict[str, Callable], repeats: int = 30) -> dict[str, np.ndarray]:
    """Microseconds of each call, the functions in turn, so that what changes with time changes for all.

    The L2 cache is overwritten before each call, eight times: lines that a kernel asks to keep (`evict_last`, as torch.compile's do)
    survive it once, and whoever comes next has less cache.  The last two results of each are kept, so that outputs come to lie in
    three places.  `before` names what is done, untimed, before some of them.
    """
    flush = write_past_the_l2(8)
    events = {name: [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(repeats)] for name in functions}
    results = {name: deque(maxlen=2) for name in functions}
    for i in range(-3, repeats):                                        # the first three turns warm up
        for name, function in functions.items():
            before.get(name, lambda: None)()
            flush()
            start, end = events[name][i]
            start.record()
            result = function()
            end.record()
            results[name].append(result)
    cp.cuda.Device().synchronize()
    return {name: np.array([cp.cuda.get_elapsed_time(*pair) * 1e3 for pair in pairs]) for name, pairs in events.items()}


# ------------------------------------------------------------------------------------------------- few rows


def few_rows(case: Case) -> list[dict]:
    """Our softmax and the peers on few rows: `graph`: 20 calls in a CUDA graph; `plain`: 100 calls one after the other."""
    x, t = data(case)
    y = cp.empty_like(x)
    functions = {name: f for name, f in ({"fast": lambda: fast.softmax(x)} | peers(t, case)).items() if attempt(f, case) is not None}
    found = []
    for name, function in functions.items():
        ours = name == "fast"
        us = attempt(lambda: graph_times(lambda: fast.softmax(x, out=y)) if ours else torch_graph_times(function), case)
        found += [] if us is None else [described(case, f"{name}_graph", not ours, us)]
    return found + [described(case, f"{name}_plain", name != "fast", us) for name, us in plain_times(functions).items()]


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


def plain_times(functions: dict[str, Callable], calls: int = 100, repeats: int = 50) -> dict[str, np.ndarray]:
    """Microseconds a call of calls launched one after the other: the host's time where it is longer than the GPU's.

    The functions in turn, because the host's speed changes from one moment to the next.
    """
    def several(function):
        for _ in range(calls):
            function()

    found = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            found[name] += list(_replay_times(lambda function=function: several(function), cp.cuda.Stream.null, calls, 1, warmup=1))
    return {name: np.array(us) for name, us in found.items()}


def _replay_times(replay: Callable, stream, calls: int, repeats: int, warmup: int = 3) -> np.ndarray:
    for _ in range(warmup):
        replay()
    events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(repeats)]
    for start, end in events:
        start.record(stream)
        replay()
        end.record(stream)
        stream.synchronize()
    return np.array([cp.cuda.get_elapsed_time(start, end) * 1e3 / calls for start, end in events])


# --------------------------------------------------------------------------------------------- each kernel alone


def family_ways(case: Case) -> dict[str, fast.Way]:
    """Each kernel alone: its first line of the table that has room; for many rows, or for 4 in fp32."""
    if case.offset or case.N in ODD or (case.few and (case.M, case.dtype) != (4, "float32")):
        return {}
    room = [w for w in fast.WAYS[case.dtype] if case.N <= w.max_n and case.M >= w.min_rows and w.cluster <= fast.largest_cluster()]
    found = {name: next((w for w in room if w.kernel == name and (w.cluster > 1) == (name == "cluster")), None)
             for name in (("block", "shared", "cluster", "split") if case.N >= 4096 else ("warp", "block"))}
    if 256 <= case.N <= 2048 and not found["warp"]:                             # longer than the table lets it: where does a warp end?
        width = 4 if case.dtype == "float32" else 8
        found["warp"] = fast.Way(2048, "warp", vectors=case.N // (32 * width), threads=128)
    if found["block"] and found["block"].ahead:
        found["block_no_ahead"] = replace(found["block"], ahead=0)
    return {f"family_{name}": w for name, w in found.items() if w}


def families(case: Case) -> dict[str, Callable]:
    """The same, as functions of (x, out)."""
    size = 4 if case.dtype == "float32" else 2
    return {name: fast.launcher(fast.plan(w, case.M, case.N, case.dtype, True), case.M, case.N, size)
            for name, w in family_ways(case).items()}


def family_rows(case: Case) -> list[dict]:
    """Rows of the record: effective bandwidth of many rows, or the time of few rows in a graph."""
    import torch

    if not (ways := family_ways(case)):
        return []
    x, t = data(case)
    y = cp.empty_like(x)
    functions = {name: lambda run=run: run(x, y) for name, run in families(case).items()}
    for function in functions.values():
        y.fill(np.nan)
        function()
        check(t, torch.from_dlpack(y))
    if case.few:
        return [described(case, f"{name}_graph", False, graph_times(function), cluster=ways[name].cluster)
                for name, function in functions.items() if ways[name].kernel != "split"]
    return [described(case, name, False, us, tbs=round(tbs(2 * x.nbytes, float(np.median(us))), 4), offset=0,
                      kernel=ways[name].kernel, cluster=ways[name].cluster) for name, us in times_in_turn(functions, before={}).items()]

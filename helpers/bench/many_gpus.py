"""What `python -m helpers.bench many_gpus` measures: one and two GPUs at the same work, the merge alone, the link alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch

from .. import many_gpus
from ..many_gpus import State, shard, tokens
from ..many_gpus.group import Comm, Group, RankFailed

M, N = 8192, 131_072  # rows and columns of the logits
B, H, S, D = 1, 16, 65_536, 128
WEAK_S = 46_336  # tokens that give one GPU the work that each of two has with S: S / sqrt(2), in whole tiles of 128
_OPEN = ExitStack()  # contexts that a rank enters and keeps


def rows() -> list[dict]:
    """Every case on one GPU and on two; `us` is the time of the slowest rank, `sent_bytes` what a rank sends in a call.

    Attention is timed as it is called.  All else is replayed from a CUDA graph: so short a call would else wait for Python, which
    in a training step runs ahead of the GPU.
    """
    result = []
    with Group(1, "nccl") as one, Group(2, "nccl") as two:
        for causal in (False, True):
            shape = (B, H, S, S, D, causal)
            result += [_row(one, "attention", (B, H, WEAK_S, WEAK_S, D, causal), "bfloat16"), _row(one, "attention", shape, "bfloat16")]
            ways = ("ring", "ring_waiting", "gathered") + ("ring_zigzag", "ring_zigzag_waiting") * causal
            result += [_row(two, way, shape, "bfloat16") for way in ways]
            result.append(_row(one, "torch_sdpa", shape, "bfloat16", peer=True))
        for mib in (1, 16, 256):
            result.append(_row(two, "exchange", (mib << 19,), "bfloat16"))
        for merged in (1, M, 64 * M):
            result += [_row(two, f"merge_{way}", (merged, 2), "float32") for way in many_gpus.MERGES]
        for dtype in ("bfloat16", "float32"):
            for name in ("cross_entropy", "cross_entropy_gradient", "softmax", "topk"):
                result += [_row(one, name, (M, N), dtype), _row(one, name, (M, N // 2), dtype), _row(two, name, (M, N), dtype)]
            result.append(_row(one, "softmax_alone", (M, N), dtype))
            result.append(_row(one, "torch_softmax", (M, N), dtype, peer=True))
    return result + _peers()


def _peers() -> list[dict]:
    """torch's own engines for the same; one that does not run is left out, and that is said."""
    result, group = [], None
    cases = [(name, (M, N), dtype) for dtype in ("bfloat16", "float32") for name in ("torch_loss_parallel", "torch_loss_parallel_gradient")]
    cases += [("torch_context_parallel", (B, H, S, S, D, causal), "bfloat16") for causal in (False, True)]
    for case in cases:
        group = group or Group(2, "nccl")
        try:
            result.append(_row(group, *case, peer=True))
        except RankFailed as error:
            print(f"{case[0]} is left out: {error}", flush=True)
            group = None
    return result


def _row(group: Group, name: str, shape, dtype: str, peer: bool = False) -> dict:
    measured = group.run(measure, name, shape, dtype, timeout=120)
    times = measured[0][0]
    median, low, high = (round(float(np.percentile(times, p)), 2) for p in (50, 10, 90))
    result = {"topic": "many_gpus", "name": name, "peer": peer, "shape": list(shape), "dtype": dtype, "gpus": group.size, "us": median,
              "us_p10": low, "us_p90": high, "repeats": len(times), "sent_bytes": max(sent for _, sent in measured)}
    if len(shape) == 6:
        result["tflops"] = round(4 * B * H * shape[2] * shape[3] * D / (1 + shape[5]) / median / 1e6, 1)
    print(*result.values(), flush=True)
    return result


def measure(comm: Comm, name: str, shape, dtype: str) -> tuple[list[float], int]:
    """On a rank: microseconds of a call, again and again, all ranks starting together, the slowest counting; the bytes sent in a call."""
    function = CASES[name](comm, tuple(shape), getattr(torch, dtype))
    function()
    comm.sent = 0
    function()
    sent = comm.sent
    short = len(shape) == 2 and not name.startswith("torch_loss") or name == "exchange"
    calls = 10 if short else 1
    if short:
        function = _in_graph(function, calls)
    function()
    times: list[float] = []
    while len(times) < 7 or (len(times) < 40 and sum(times) * calls < 3e5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        comm.barrier()
        torch.cuda.synchronize()
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        took = torch.tensor([start.elapsed_time(end) * 1e3 / calls], device=comm.device)
        times.append(float(comm.all_reduce(took, "max")))
    return times, sent


def _in_graph(function: Callable, calls: int) -> Callable:
    """`calls` calls, recorded once and replayed by the GPU without Python in between."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        function()  # takes the memory that the stream needs
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        for _ in range(calls):
            function()
    return graph.replay


# ------------------------------------------------------------------------------------------- the cases, on a rank


def _random(comm: Comm, shape, dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(comm.device).manual_seed(seed + 10 * comm.rank)
    return torch.randn(shape, device=comm.device, dtype=dtype, generator=generator)


def _columns(comm: Comm, shape, dtype):
    """(this rank's logits, targets, the first of its columns, all columns)."""
    part = shard(shape[1], comm.size, comm.rank)
    targets = torch.arange(shape[0], device=comm.device) * 7919 % shape[1]
    return _random(comm, (shape[0], part.stop - part.start), dtype), targets, part.start, shape[1]


def _softmax(comm, shape, dtype):
    x = _columns(comm, shape, dtype)[0]
    return lambda: many_gpus.softmax(comm, x)


def _softmax_alone(comm, shape, dtype):
    from ..fast import softmax
    from ..gradients import _array, _current_stream

    x = _random(comm, shape, dtype)

    def alone():
        with _current_stream(x):
            softmax(_array(x))

    return alone


def _torch_softmax(comm, shape, dtype):
    x = _random(comm, shape, dtype)
    return lambda: torch.softmax(x, -1)


def _cross_entropy(comm, shape, dtype):
    x, targets, first, total = _columns(comm, shape, dtype)
    return lambda: many_gpus.cross_entropy(comm, x, targets, first, total)


def _cross_entropy_gradient(comm, shape, dtype):
    x, targets, first, total = _columns(comm, shape, dtype)
    _, state = many_gpus.cross_entropy(comm, x, targets, first, total)
    scales = torch.full((shape[0],), 1 / shape[0], device=comm.device)
    return lambda: many_gpus.cross_entropy_gradient(x, targets, state, scales, first, total)


def _topk(comm, shape, dtype):
    x, _, first, total = _columns(comm, shape, dtype)
    return lambda: many_gpus.softmax_topk(comm, x, 8, first, total)


def _merge(way: str):
    def case(comm, shape, dtype):
        own = State(_random(comm, shape[:1], dtype), 1 + _random(comm, shape[:1], dtype, 1).abs())
        return lambda: many_gpus.MERGES[way](comm, own)

    return case


def _exchange(comm, shape, dtype):
    outgoing = _random(comm, shape, dtype)
    incoming = torch.empty_like(outgoing)
    return lambda: comm.pass_on(outgoing, incoming)()


def _attention(comm, shape, dtype):
    q, k, v = (_random(comm, (*shape[:2], shape[2], shape[4]), dtype, i) for i in range(3))
    return lambda: many_gpus.attend(q, k, v, shape[5])


def _ring(zigzag: bool, overlap: bool) -> Callable:
    def case(comm, shape, dtype):
        lengths = [[t.stop - t.start for t in tokens(shape[2], comm.size, rank, zigzag)] for rank in range(comm.size)]
        q, k, v = (_random(comm, (*shape[:2], sum(lengths[comm.rank]), shape[4]), dtype, i) for i in range(3))
        return lambda: many_gpus.ring_attention(comm, q, k, v, lengths, shape[5], overlap)

    return case


def _gathered(comm, shape, dtype):
    part = shard(shape[2], comm.size, comm.rank)
    q = _random(comm, (*shape[:2], shape[2], shape[4]), dtype, -10 * comm.rank)  # the same everywhere
    k, v = (_random(comm, (*shape[:2], part.stop - part.start, shape[4]), dtype, i) for i in (1, 2))
    return lambda: many_gpus.gathered_attention(comm, q, k, v, part.start, shape[5])


def _torch_sdpa(comm, shape, dtype):
    q, k, v = (_random(comm, (*shape[:2], shape[2], shape[4]), dtype, i) for i in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape[5])


def _torch_context_parallel(comm, shape, dtype):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import _cp_options
    from torch.nn.attention import SDPBackend, sdpa_kernel

    _cp_options.enable_load_balance = shape[5]
    mesh = init_device_mesh("cuda", (comm.size,))
    q, k, v = (_random(comm, (*shape[:2], shape[2], shape[4]), dtype, i - 10 * comm.rank) for i in range(3))
    _OPEN.close()
    _OPEN.enter_context(context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]))
    _OPEN.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape[5])


def _torch_loss_parallel(gradient: bool) -> Callable:
    def case(comm, shape, dtype):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        from torch.distributed.tensor.parallel import loss_parallel

        mesh = init_device_mesh(comm.device.type, (comm.size,))
        x, targets, _, _ = _columns(comm, shape, dtype)
        x = DTensor.from_local(x, mesh, [Shard(1)], run_check=False).requires_grad_()
        _OPEN.close()
        _OPEN.enter_context(loss_parallel())

        def forward():
            return torch.nn.functional.cross_entropy(x, targets)

        loss = forward()
        return (lambda: torch.autograd.grad(loss, x, retain_graph=True)) if gradient else forward

    return case


CASES: dict[str, Callable] = {
    "softmax": _softmax, "softmax_alone": _softmax_alone, "torch_softmax": _torch_softmax, "cross_entropy": _cross_entropy,
    "cross_entropy_gradient": _cross_entropy_gradient, "topk": _topk, "merge_all_reduce": _merge("all_reduce"),
    "merge_all_gather": _merge("all_gather"), "exchange": _exchange, "attention": _attention, "ring": _ring(False, True),
    "ring_waiting": _ring(False, False), "ring_zigzag": _ring(True, True), "ring_zigzag_waiting": _ring(True, False),
    "gathered": _gathered, "torch_sdpa": _torch_sdpa, "torch_loss_parallel": _torch_loss_parallel(False),
    "torch_loss_parallel_gradient": _torch_loss_parallel(True), "torch_context_parallel": _torch_context_parallel,
}

"""Numbers a reader may trust: counters of a launch, times on a GPU, and the recorded results that the text quotes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import cpu_device
from .cpu_device.counters import Counters
from .device import cp, on_gpu

RESULTS = Path(__file__).parent / "data" / "results"


# ---------------------------------------------------------------------------------------------- counting


def count(kernel, grid, block, args, *, shared_mem: int = 0, outputs=(), seed: int = 0) -> Counters:
    """Run one launch on the CPU device and return its counters; exact, and the same on every machine.

    Works with a `cp.RawKernel` of either device: arrays that live on a GPU are copied, so the launch changes nothing
    there.  Raises `KernelError` for what the CPU device diagnoses.  `outputs` names arrays that must be written whole;
    `seed` other than 0 runs blocks, warps and lanes in an adverse order.
    """
    return _observe(kernel, grid, block, args, shared_mem, outputs, seed, trace_limit=0)


class ReadyLaunch(NamedTuple):
    """One launch, ready: `launch()` starts it, `launch.count()` counts what it does."""

    kernel: object
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple
    shared_mem: int = 0

    def __call__(self) -> None:
        self.kernel(self.grid, self.block, self.args, shared_mem=self.shared_mem)

    def count(self, **options):
        """Counters of this launch on the CPU device, see `count`."""
        return count(self.kernel, self.grid, self.block, self.args, shared_mem=self.shared_mem, **options)


def access_map(kernel, grid, block, args, *, shared_mem: int = 0, limit: int = 100_000) -> Counters:
    """As `count`, and `.events` lists up to `limit` accesses in order.

    `.events` is a structured array with fields step (all lanes of one request share it), block, thread, kind (0 load,
    1 store, 2 atomic), space (0 global, 1 shared), array (see `.array_names`), bytes, address (offset in its array).
    """
    return _observe(kernel, grid, block, args, shared_mem, (), 0, trace_limit=limit)


def _observe(kernel, grid, block, args, shared_mem, outputs, seed, trace_limit) -> Counters:
    if on_gpu:
        copies = {id(a): _on_cpu_device(a) for a in (*args, *outputs) if isinstance(a, cp.ndarray)}
        args = tuple(copies.get(id(a), a) for a in args)
        outputs = tuple(copies.get(id(a), a) for a in outputs)
        kernel = cpu_device.RawKernel(kernel.code, kernel.name, kernel.options)
        if shared_mem > kernel.max_dynamic_shared_size_bytes:
            kernel.max_dynamic_shared_size_bytes = shared_mem
    with cpu_device.settings(checked=True, outputs=tuple(outputs), seed=seed, trace_limit=trace_limit) as settings:
        kernel(grid, block, args, shared_mem=shared_mem)
        return settings.last


def _on_cpu_device(array):
    """A copy of a GPU array; of a view that is not contiguous one that is not either, so that it is refused alike."""
    host = array.get()
    if array.flags.c_contiguous:
        return cpu_device.asarray(host)
    return cpu_device.asarray(np.stack([host, host], axis=-1))[..., 0]


# ------------------------------------------------------------------------------------------------ timing


class Timing(NamedTuple):
    """Microseconds a call: median, 10th and 90th percentile, over `repeats` calls."""

    us: float
    us_p10: float
    us_p90: float
    repeats: int


def time_us(function, *, repeats: int = 50, warmup: int = 5, flush_l2=True) -> Timing:
    """Time `function()` on the GPU with events, each call by itself.

    Between calls a buffer larger than the L2 cache is written, so that a call finds its input in device memory and not in
    the cache; `flush_l2` may also be a function that empties the cache in its own way.  Data should be random, never zeros.
    Raises on the CPU device, whose times say nothing about a GPU.
    """
    if not on_gpu:
        raise RuntimeError("times are measured on a GPU; without one, use record(topic) for the recorded results")
    flush = flush_l2 if callable(flush_l2) else write_past_the_l2() if flush_l2 else None
    for _ in range(warmup):
        function()
    events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(repeats)]
    for start, end in events:
        if flush:
            flush()
        start.record()
        function()
        end.record()
    cp.cuda.Device().synchronize()
    times = np.array([cp.cuda.get_elapsed_time(s, e) * 1e3 for s, e in events])
    return Timing(float(np.median(times)), float(np.percentile(times, 10)), float(np.percentile(times, 90)), repeats)


def write_past_the_l2(times: int = 1):
    """A function that writes 256 MB so many times: the L2 cache is overwritten, and the GPU busy for about 60 us a time.

    Lines that a kernel asked to keep (`evict_last`, as in code of torch.compile) need about eight times: beyond/fastest_softmax.
    """
    scratch = cp.empty(256 << 20, dtype=cp.uint8)

    def write():
        for _ in range(times):
            scratch.fill(1)
    return write


def tbs(nbytes: int, us: float) -> float:
    """Effective bandwidth in TB/s (10^12 bytes a second) of moving `nbytes` in `us` microseconds."""
    return nbytes / us / 1e6


# ------------------------------------------------------------------------------------------------ records


@dataclass(frozen=True)
class Record:
    """One recorded run: `run` says where and how, `rows` what was measured (see helpers/data/results/README.md)."""

    run: dict
    rows: list[dict]
    file: str

    def where(self) -> str:
        """The provenance in one sentence."""
        r = self.run
        return (f"measured on one {r['device']} on {r['date']} (driver {r['driver']}, CUDA {r['cuda']}, CuPy {r['cupy']}, "
                f"torch {r['torch']}); record {self.file}")

    def find(self, **wanted) -> dict:
        """The one row whose fields equal `wanted`; shapes may be given as tuples."""
        wanted = {k: list(v) if isinstance(v, tuple) else v for k, v in wanted.items()}
        found = [r for r in self.rows if all(r.get(k) == v for k, v in wanted.items())]
        if len(found) != 1:
            raise KeyError(f"{len(found)} rows of {self.file} match {wanted}")
        return found[0]


def record(topic: str, device: str = "h200") -> Record:
    """The newest recorded run of `topic` (ladders, attention, …, ladders-ncu) on `device`, from helpers/data/results/.

    The course quotes the H200.  `make bench TOPIC=…` adds records of your GPU; read them with `device="rtx4090"` or so.
    """
    files = sorted(RESULTS.glob(f"{device}-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]-{topic}.json"))
    if not files:
        there = ", ".join(sorted(p.name for p in RESULTS.glob("*.json"))) or "none"
        raise FileNotFoundError(f"no record of topic {topic!r} on {device!r}; there are: {there}")
    data = json.loads(files[-1].read_text())
    return Record(data["run"], data["rows"], files[-1].name)

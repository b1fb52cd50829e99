"""What the CPU device costs: two ladder kernels beside NumPy's softmax, unchecked and checked, and the first launch.

`make bench TOPIC=cpu_device` prints it.  Times are the shortest of many on this computer: what else it does only adds to them.
"""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np

from ..cpu_device import asarray, compiler, empty_like, settings
from ..cpu_device.kernel import RawKernel, pool
from ..snippets import load

M, N, THREADS = 64, 8192, 256
KERNELS = (("safe V1", "safe/v1_block.cu", "softmax_safe_v1"), ("safe V2", "safe/v2_warp_shuffle.cu", "softmax_safe_v2"))
UNCHECKED_LIMIT, CHECKED_LIMIT, FIRST_LIMIT = 12, 150, 2.0  # times NumPy, times NumPy, seconds


def main() -> None:
    """Print NumPy's time, and for each kernel the unchecked and checked time and their ratios to it."""
    X = np.random.default_rng(0).normal(size=(M, N)).astype(np.float32)
    numpy_ms = _milliseconds(lambda: _numpy_softmax(X), 300)
    print(f"softmax of {M} x {N} float32 on {os.cpu_count()} cores, {compiler.compiler()[1]}")
    print(f"{'NumPy':10} {numpy_ms:8.2f} ms")
    x, y = asarray(X), empty_like(asarray(X))
    for title, file, entry in KERNELS:
        kernel = RawKernel(load(file), entry)

        def launch(kernel=kernel):
            kernel((M,), (THREADS,), (x, y, np.int32(M), np.int32(N)))

        for mode, checked, limit, repeats in (("unchecked", False, UNCHECKED_LIMIT, 300), ("checked", True, CHECKED_LIMIT, 20)):
            with settings(checked=checked):
                ms = _milliseconds(launch, repeats)
            if not np.abs(y.get() - _numpy_softmax(X)).max() < 1e-6:
                raise RuntimeError(f"{title} {mode} computes something else")
            print(f"{title:10} {ms:8.2f} ms {mode:9} = {ms / numpy_ms:6.1f} x NumPy (at most {limit} wanted)")
    print(f"first launch with an empty cache: {_first_launch(x, y):.2f} s (at most {FIRST_LIMIT:g} wanted)")


def _numpy_softmax(x: np.ndarray) -> np.ndarray:
    e = x - x.max(axis=1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=1, keepdims=True)
    return e


def _milliseconds(function, repeats: int) -> float:
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def _first_launch(x, y) -> float:
    """Seconds of compiling and launching a ladder kernel when nothing is cached, not even the worker program."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            pool.end()
            compiler._worker_program.cache_clear()
            kernel = RawKernel(load(KERNELS[0][1]), KERNELS[0][2])
            start = time.perf_counter()
            kernel((M,), (THREADS,), (x, y, np.int32(M), np.int32(N)))
            return time.perf_counter() - start
        finally:
            compiler._worker_program.cache_clear()
            os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.__setitem__("XDG_CACHE_HOME", before)


if __name__ == "__main__":
    main()

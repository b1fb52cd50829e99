"""A CuPy-shaped device for machines without a GPU: runs CUDA source on the CPU, counts its traffic, names its bugs.

How it works.  `compiler` hands the .cu file to the system's C++ compiler behind a header that defines the CUDA vocabulary
(include/cuda_device.h), with `-fsanitize=thread`, which makes the compiler report every memory access.  `worker` sends
the launch to a process running runtime.cpp, where each CUDA thread is a fiber; checks.h judges every access, and
counters.h reads those of a warp's lanes side by side and counts them.  `explain` turns what went wrong into a Python
exception with the line.  README.md beside this file says more.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as _np

from . import clock as _clock
from .array import (
    arena,
    array,
    asarray,
    ascontiguousarray,
    asnumpy,
    copyto,
    empty,
    empty_like,
    from_dlpack,
    full,
    full_like,
    ndarray,
    numpy_function,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .errors import CompileException, CUDADriverError, KernelError, NoCompiler
from .kernel import RawKernel, RawModule, current, settings

__all__ = [
    "CompileException", "CUDADriverError", "KernelError", "NoCompiler", "RawKernel", "RawModule", "array", "asarray", "ascontiguousarray",
    "asnumpy", "copyto", "cuda", "current", "empty", "empty_like", "from_dlpack", "full", "full_like", "get_default_memory_pool", "ndarray",
    "ones", "ones_like", "settings", "zeros", "zeros_like",
]

cuda = SimpleNamespace(
    is_available=lambda: False,
    Device=_clock.Device, Event=_clock.Event, Stream=_clock.Stream, get_elapsed_time=_clock.get_elapsed_time,
    get_current_stream=lambda: _clock.Stream.null,
    driver=SimpleNamespace(CUDADriverError=CUDADriverError),
    compiler=SimpleNamespace(CompileException=CompileException),
    runtime=SimpleNamespace(getDeviceCount=lambda: 0, deviceSynchronize=lambda: None),
)


def get_default_memory_pool():
    """CuPy's memory pool, as far as it can be asked: bytes that arrays hold.  Freed memory is given back at once."""
    used = lambda: sum(a.nbytes for a in arena.live())  # noqa: E731
    return SimpleNamespace(used_bytes=used, total_bytes=used, free_all_blocks=lambda: None)


def __getattr__(name: str):
    """Everything else that NumPy has - `cp.exp`, `cp.float32`, `cp.abs` - for device arrays."""
    if name.startswith("_") or not hasattr(_np, name):
        raise AttributeError(f"the CPU device has no {name!r}")
    return numpy_function(name)

"""`cp`: CuPy where a GPU works, the CPU device elsewhere; and one sentence that says which, and why.

SOFTMAX_DEVICE=cpu forces the CPU device, SOFTMAX_DEVICE=gpu insists on a GPU and raises if there is none.
"""

from __future__ import annotations

import os

_PROBE = 'extern "C" __global__ void probe(int *y) { *y = 42; }'


def _choose():
    wish = os.environ.get("SOFTMAX_DEVICE", "").lower()
    if wish not in ("", "cpu", "gpu"):
        raise ValueError(f"SOFTMAX_DEVICE is {wish!r}; it may be cpu, gpu or unset")
    reason = "SOFTMAX_DEVICE=cpu asks for it" if wish == "cpu" else _why_no_gpu()
    if not reason:
        import cupy

        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        return cupy, f"Kernels run on the GPU: {name}, through CuPy {cupy.__version__}."
    if wish == "gpu":
        raise RuntimeError(f"SOFTMAX_DEVICE=gpu, but no GPU is usable: {reason}")
    from . import cpu_device

    return cpu_device, f"Kernels run on the CPU device: {reason}."


def _why_no_gpu() -> str:
    """Empty if a kernel compiled and ran on a GPU, else what stopped it."""
    try:
        import cupy
    except Exception:  # not only ImportError: a broken CUDA installation raises others
        return "CuPy is not installed (fine without an NVIDIA GPU; `make doctor` says more)"
    try:
        if not cupy.cuda.is_available():
            return "no NVIDIA GPU or driver was found"
        y = cupy.zeros(1, dtype=cupy.int32)
        cupy.RawKernel(_PROBE, "probe")((1,), (1,), (y,))
        return "" if int(y[0]) == 42 else "a probe kernel gave a wrong result on the GPU"
    except Exception as error:
        return f"CuPy could not run a kernel on the GPU ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"


cp, device_sentence = _choose()
on_gpu: bool = cp.__name__ == "cupy"

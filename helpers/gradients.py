"""Backward passes of softmax, log-softmax and cross-entropy: on arrays, and as functions that torch's autograd calls.

The kernels are in cuda_snippets/backward/.  On arrays (`softmax_backward`, …) they run where the array lives; `softmax`,
`log_softmax` and `cross_entropy` take torch tensors, on a GPU through CuPy without a copy, on the CPU through the CPU device.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch.autograd.function import once_differentiable

from . import cpu_device
from .device import cp, on_gpu
from .ladder import MAX_N, TYPES, allow_shared, numpy_type
from .measure import ReadyLaunch
from .snippets import load

MACROS = TYPES | {"float64": ("-DDOUBLE",)}
SAVED = ("x", "y")
IGNORED = -100  # torch's default for targets that do not count


class Way(NamedTuple):
    """A line of the table: how rows of up to `max_n` elements are kept on the chip.

    `vectors` is how many pieces of 16 bytes a thread has of each row, `cluster` over how many blocks a row is spread; `parked`
    puts dy into shared memory.
    """

    max_n: int
    vectors: int = 4
    cluster: int = 1
    parked: bool = False


class Plan(NamedTuple):
    """How rows are spread over threads: the kernel's file, its macros, blocks, threads a block, bytes of shared memory."""

    file: str
    macros: tuple[str, ...]
    grid: int
    threads: int
    shared_mem: int = 0


# -------------------------------------------------------------------------------------------- what runs where

_FLOAT = (Way(512), Way(1_024, 1), Way(16_384), Way(32_768, 8, 2, True), Way(65_536, 8, 4, True), Way(262_144, 8, 8, True),
          Way(32_768, 8, parked=True))
_TWO_BYTES = (Way(512), Way(2_048, 1), Way(8_192, parked=True), Way(32_768), Way(131_072, 8, 2, True), Way(262_144, 8, 4, True),
              Way(65_536, 8, parked=True))
WAYS = {"float32": _FLOAT, "float16": _TWO_BYTES, "bfloat16": _TWO_BYTES, "float64": (Way(2_048, 2),)}
"""The first line that fits is taken; a GPU without clusters, or with less shared memory than a line needs, skips it."""


def plan_backward(M: int, N: int, dtype: str, shared: int = 232_448, clusters: bool = False, alike: bool = True,
                  way: Way | None = None) -> Plan:
    """The launch of a softmax backward kernel for M rows of N elements.

    Both rows stay on the chip as the table `WAYS` says (or `way`, for measurements); longer rows, and arrays that are not
    aligned `alike`, take two passes.  `shared` is the shared memory that a block may have, `clusters` whether the GPU has them.
    """
    width = 16 // np.dtype(numpy_type(dtype)).itemsize
    pieces = _ceil_div(N, width)
    for line in (way,) if way else WAYS[dtype]:
        macros = (*MACROS[dtype], f"-DVECTORS={line.vectors}", *["-DPARKED"] * line.parked)
        if alike and N <= line.max_n and pieces <= 32 * line.vectors and line.cluster == 1 and not line.parked:
            lanes = max(8, 2 * width, 1 << (_ceil_div(pieces, line.vectors) - 1).bit_length())
            return Plan("backward/registers.cu", (*macros, f"-DLANES={lanes}"), _ceil_div(M * lanes, 128), 128)
        threads = 32 * _ceil_div(pieces, 32 * line.vectors * line.cluster)
        bytes_parked = 16 * threads * line.vectors * line.parked
        if alike and N <= line.max_n and threads <= 1024 and bytes_parked + 4096 <= shared and (clusters or line.cluster == 1):
            macros += (f"-DCLUSTER={line.cluster}",) * (line.cluster > 1)
            return Plan("backward/registers.cu", macros, M * line.cluster, threads, bytes_parked)
    return plan_two_passes(M, N, dtype)


def plan_two_passes(M: int, N: int, dtype: str) -> Plan:
    """The launch that reads both rows twice, for rows of any length and alignment."""
    pieces = _ceil_div(N, 16 // np.dtype(numpy_type(dtype)).itemsize)
    return Plan("backward/two_passes.cu", MACROS[dtype], M, min(1024, 32 * _ceil_div(pieces, 32)))


def plan_cross_entropy(M: int, N: int, dtype: str, backward: bool, threads: int | None = None, loads: int | None = None) -> Plan:
    """The launch of a cross-entropy kernel: `loads` pieces of 16 bytes at a time for each of at most `threads` threads.

    Forward, a thread takes two such batches where it can: one is under way while the other is summed.
    """
    pieces, loads = _ceil_div(N, 16 // np.dtype(numpy_type(dtype)).itemsize), loads or (2 if dtype == "float64" else 4)
    each = loads if backward else 2 * loads
    macros = (*MACROS[dtype], f"-DLOADS={loads}")
    if pieces <= 32 * each:
        lanes = min(32, max(8, 1 << (_ceil_div(pieces, each) - 1).bit_length()))
        return Plan("backward/cross_entropy.cu", (*macros, f"-DLANES={lanes}"), _ceil_div(M * lanes, 128), 128)
    threads = min(threads or (128 if backward else 1024), 32 * _ceil_div(pieces, 32 * each))
    return Plan("backward/cross_entropy.cu", macros, M * (_ceil_div(pieces, loads * threads) if backward else 1), threads)


def plan_forward(M: int, N: int, dtype: str) -> Plan:
    """The launch of a softmax or log-softmax forward kernel."""
    pieces = _ceil_div(N, 16 // np.dtype(numpy_type(dtype)).itemsize)
    return Plan("backward/forward.cu", MACROS[dtype], M, min(1024 if N > 8192 else 256, 32 * _ceil_div(pieces, 32 * 4)))


def prepare(entry: str, *arrays, ignore_index: int = IGNORED, plan: Plan | None = None) -> ReadyLaunch:
    """A launch of the kernel `entry` of cuda_snippets/backward/ on the arrays that it takes, unchecked; the first one is [M, N]."""
    first = arrays[0]
    (M, N), dtype = first.shape, first.dtype.name
    sizes: tuple = (np.int32(M), np.int32(N))
    if entry.startswith("cross_entropy"):
        backward = entry.endswith("backward")
        plan = plan or plan_cross_entropy(M, N, dtype, backward)
        if backward:
            sizes += (np.int32(max(1, plan.grid // M)),)
        sizes += (np.int64(ignore_index),)
    elif entry.endswith("forward"):
        plan = plan or plan_forward(M, N, dtype)
    else:
        rows = [a for a in arrays if a.shape == first.shape and a.dtype == first.dtype]
        alike = len({a.data.ptr % 16 for a in rows}) == 1
        plan = plan or plan_backward(M, N, dtype, *_abilities(first), alike)
    kernel = _kernel(_home(first), plan.file, entry, plan.macros)
    allow_shared(kernel, plan.shared_mem)
    return ReadyLaunch(kernel, (plan.grid,), (plan.threads,), (*arrays, *sizes), plan.shared_mem)


def _home(array):
    """The module whose kernels reach `array`."""
    return cpu_device if isinstance(array, cpu_device.ndarray) else cp


@cache
def _kernel(home, file: str, entry: str, macros: tuple[str, ...]):
    return home.RawKernel(load(file), entry, options=("-std=c++17", *macros))


@cache
def _gpu_abilities(device: int) -> tuple[int, bool]:
    attributes = cp.cuda.Device(device).attributes
    return attributes["MaxSharedMemoryPerBlockOptin"], int(cp.cuda.Device(device).compute_capability) >= 90


def _abilities(array) -> tuple[int, bool]:
    """(bytes of shared memory that a block may have, whether there are clusters) where `array` lives."""
    return (232_448, False) if _home(array) is cpu_device else _gpu_abilities(array.device.id)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# -------------------------------------------------------------------------------------------------- on arrays


def softmax_forward(x, log: bool = False):
    """(y, states) of a contiguous array x [M, N]: softmax, or with `log` its logarithm, and the state (m, d) of each row.

    x is float32, float16, bfloat16 or float64, a cp array or one of the CPU device; states, [M, 2], is float32 except for
    float64.  Raises TypeError or ValueError that names the limit, as all functions here.
    """
    _check_row("x", x)
    y, states = _like(x), _home(x).empty((x.shape[0], 2), dtype=_compute(x))
    if _fill_if_empty(x, states):
        return y, states
    prepare("log_softmax_forward" if log else "softmax_forward", x, y, states)()
    return y, states


def lse(states):
    """The LSE of each row, [M], from its state (m, d)."""
    with np.errstate(divide="ignore"):  # d = 0: a row of only -inf
        return states[:, 0] + _home(states).log(states[:, 1])


def states_from_lse(lse):
    """States [M, 2] that stand for given LSEs [M]: (LSE, 1).

    For the backward pass they are as good as (m, d), except for rounding: the probabilities are off by a factor of about
    |LSE| / 2^24 in float32.
    """
    home = _home(lse)
    states = home.empty((lse.shape[0], 2), dtype=lse.dtype)
    states[:, 0], states[:, 1] = lse, home.ones(lse.shape, dtype=lse.dtype)
    return states


def softmax_backward(y, dy):
    """dx = y * (dy - sum of y * dy) for every row; y and dy are contiguous arrays [M, N] of one dtype.

    A row of y that holds NaN, as that of an all -inf row does, gives NaN, as in torch.
    """
    return _backward("softmax_backward", "y", y, dy)


def softmax_backward_from_x(x, states, dy):
    """As `softmax_backward`, with y computed again from x and the states that `softmax_forward` returned.

    An all -inf row gets the gradient 0: its state shows that there is nothing to spread probability over.
    """
    return _backward("softmax_backward_from_x", "x", x, dy, states)


def log_softmax_backward(log_y, dy):
    """dx = dy - y * sum of dy for every row.  A masked entry keeps its dy, as in torch: its log y is x - LSE like any other."""
    return _backward("log_softmax_backward", "log_y", log_y, dy)


def log_softmax_backward_from_x(x, states, dy):
    """As `log_softmax_backward`, with y computed from x and the states; an all -inf row gets the gradient 0."""
    return _backward("log_softmax_backward_from_x", "x", x, dy, states)


def cross_entropy_forward(x, targets, ignore_index: int = IGNORED):
    """(loss, states) of logits x [M, N] and int64 targets [M]: loss [M] = LSE - x[target], without writing probabilities.

    A target equal to `ignore_index` has loss 0; any other outside of 0 … N - 1 gives NaN.  An all -inf row has the loss NaN.
    """
    _check_row("x", x)
    _check_other("targets", targets, x, (x.shape[0],), np.int64)
    home, M = _home(x), x.shape[0]
    loss, states = home.empty((M,), dtype=_compute(x)), home.empty((M, 2), dtype=_compute(x))
    if M and x.shape[1] == 0:
        raise ValueError("x has no columns, so no target fits")
    if M:
        prepare("cross_entropy_forward", x, targets, loss, states, ignore_index=ignore_index)()
    return loss, states


def cross_entropy_backward(x, states, targets, scales, ignore_index: int = IGNORED, out=None):
    """dx = (p - onehot) * scale for every row, p = exp(x - m) / d; scales [M] is the gradient of each loss.

    `out=x` overwrites the logits, which saves the memory for dx.  Ignored rows and all -inf rows get 0.
    """
    _check_row("x", x)
    M, N = x.shape
    _check_other("states", states, x, (M, 2), _compute(x))
    _check_other("targets", targets, x, (M,), np.int64)
    _check_other("scales", scales, x, (M,), _compute(x))
    dx = _like(x) if out is None else out
    if out is not None:
        _check_other("out", out, x, x.shape, x.dtype)
        if 0 < abs(out.data.ptr - x.data.ptr) < x.nbytes:
            raise ValueError("out overlaps x: logits would be overwritten before they are read; pass out=x, or an array of its own")
    if M and N:
        prepare("cross_entropy_backward", x, states, targets, scales, dx, ignore_index=ignore_index)()
    return dx


def _backward(entry: str, name: str, saved, dy, states=None):
    _check_row(name, saved)
    _check_other("dy", dy, saved, saved.shape, saved.dtype)
    if states is not None:
        _check_other("states", states, saved, (saved.shape[0], 2), _compute(saved))
    dx = _like(saved)
    if saved.size:
        prepare(entry, saved, *(() if states is None else (states,)), dy, dx)()
    return dx


def _like(x):
    """A new array whose rows begin at the same offset from a multiple of 16 bytes as those of `x`."""
    skip = x.data.ptr % 16 // x.itemsize
    return _home(x).empty((x.size + skip,), dtype=x.dtype)[skip:].reshape(x.shape)


def _compute(x):
    return np.float64 if x.dtype == np.float64 else np.float32


def _fill_if_empty(x, states) -> bool:
    """Rows without columns: their state is that of no elements."""
    if x.size == 0 and x.shape[0]:
        states[:, 0], states[:, 1] = -np.inf, 0
    return x.size == 0


def _check_row(name: str, array) -> None:
    if not isinstance(array, (cp.ndarray, cpu_device.ndarray)):
        raise TypeError(f"{name} must be a cp array, got {type(array).__name__}: cp.asarray({name}) makes one")
    if array.dtype.name not in MACROS:
        raise TypeError(f"{name} must be float32, float16, bfloat16 or float64, got {array.dtype}: use {name}.astype(cp.float32)")
    if array.ndim != 2:
        raise ValueError(f"{name} must have shape [M, N], got {tuple(array.shape)}: reshape it")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous, and a kernel gets only a pointer: use cp.ascontiguousarray({name})")
    M, N = array.shape
    if N > MAX_N or M > 2**28:
        raise ValueError(f"{name} has {M:,} rows of {N:,}: the kernels take up to {2**28:,} rows and {MAX_N:,} columns; split it")


def _check_other(name: str, array, x, shape, dtype) -> None:
    if not isinstance(array, (cp.ndarray, cpu_device.ndarray)):
        raise TypeError(f"{name} must be a cp array, got {type(array).__name__}: cp.asarray({name}) makes one")
    if _home(array) is not _home(x):
        raise TypeError(f"{name} lives on another device than the rows")
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype).name} here, got {array.dtype}")
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(array.shape)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous, and a kernel gets only a pointer: use cp.ascontiguousarray({name})")


# -------------------------------------------------------------------------------------------------- for torch


def softmax(x: torch.Tensor, save: str = "x") -> torch.Tensor:
    """Softmax over the last axis of a tensor, with a gradient: any shape, float32, float16, bfloat16 or float64.

    `save` says what the forward keeps for the backward: "x", with two numbers a row, or "y", as torch does.  The results
    are the same, except that with "x" an all -inf row gets the gradient 0 (torch: NaN) and 16-bit gradients do not see
    the rounding of y.  Not differentiable twice.
    """
    return _over_last_axis(Softmax, x, save)


def log_softmax(x: torch.Tensor, save: str = "x") -> torch.Tensor:
    """Log-softmax over the last axis of a tensor, with a gradient; otherwise as `softmax`."""
    return _over_last_axis(LogSoftmax, x, save)


def cross_entropy(x: torch.Tensor, targets: torch.Tensor, ignore_index: int = IGNORED, reduction: str = "mean") -> torch.Tensor:
    """Cross-entropy of logits x [M, N] and int64 targets [M], with a gradient; no probabilities are written or kept.

    As torch.nn.functional.cross_entropy with class indices, except that the loss of 16-bit logits is float32, that an
    all -inf row gets the gradient 0 (torch: NaN), and that on a GPU a target out of range gives NaN instead of an assertion.
    """
    _check_tensor(x)
    if x.ndim != 2 or targets.shape != x.shape[:1]:
        raise ValueError(f"x must have shape [M, N] and targets [M], got {tuple(x.shape)} and {tuple(targets.shape)}")
    if targets.dtype != torch.int64 or targets.device != x.device:
        raise TypeError(f"targets must be int64 on {x.device}, got {targets.dtype} on {targets.device}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"no reduction {reduction!r}; there are mean, sum, none")
    if not x.is_cuda and bool(((targets != ignore_index) & ((targets < 0) | (targets >= x.shape[1]))).any()):
        raise IndexError(f"a target is outside of 0 … {x.shape[1] - 1} and is not ignore_index = {ignore_index}")
    loss = CrossEntropy.apply(x, targets, ignore_index)
    if reduction == "none":
        return loss
    return loss.sum() / (targets != ignore_index).sum() if reduction == "mean" else loss.sum()


class Softmax(torch.autograd.Function):
    """softmax of a tensor [M, N]."""

    @staticmethod
    def forward(ctx, x, save):
        return _forward(ctx, x, save, log=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return _gradient("softmax_backward", dy, *ctx.saved_tensors), None


class LogSoftmax(torch.autograd.Function):
    """log-softmax of a tensor [M, N]."""

    @staticmethod
    def forward(ctx, x, save):
        return _forward(ctx, x, save, log=True)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return _gradient("log_softmax_backward", dy, *ctx.saved_tensors), None


class CrossEntropy(torch.autograd.Function):
    """LSE - x[target] for every row of a tensor x [M, N]."""

    @staticmethod
    def forward(ctx, x, targets, ignore_index):
        with _current_stream(x):
            loss, states = (_tensor(a, x) for a in cross_entropy_forward(_array(x), _array(targets), ignore_index))
        ctx.save_for_backward(x, states, targets)
        ctx.ignore_index = ignore_index
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        x, states, targets = ctx.saved_tensors
        with _current_stream(x):
            dx = cross_entropy_backward(_array(x), _array(states), _array(targets), _array(dloss), ctx.ignore_index)
            return _tensor(dx, x), None, None


def _forward(ctx, x, save: str, log: bool):
    with _current_stream(x):
        y, states = (_tensor(a, x) for a in softmax_forward(_array(x), log))
    ctx.save_for_backward(*((x, states) if save == "x" else (y,)))
    return y


def _gradient(entry: str, dy, saved, *states):
    """dx from dy and what the forward saved: (x, states) or (y,)."""
    with _current_stream(dy):
        dx = _backward(entry + "_from_x" * len(states), "x", _array(saved), _array(dy), *map(_array, states))
        return _tensor(dx, dy)


def _over_last_axis(function, x, save):
    _check_tensor(x)
    if save not in SAVED:
        raise ValueError(f"nothing is saved as {save!r}; there are {', '.join(SAVED)}")
    if x.ndim == 0:
        raise ValueError("x has no axis: softmax goes along the last axis of a tensor")
    return function.apply(x.reshape(-1, x.shape[-1]) if x.numel() else x.reshape(0, max(1, x.shape[-1])), save).reshape(x.shape)


def _check_tensor(x) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x must be a torch tensor, got {type(x).__name__}; for arrays there are softmax_forward and softmax_backward")
    if str(x.dtype).removeprefix("torch.") not in MACROS:
        raise TypeError(f"x must be float32, float16, bfloat16 or float64, got {x.dtype}: use x.float()")
    if x.device.type not in ("cpu", "cuda"):
        raise TypeError(f"x is on {x.device}; the kernels run on a CUDA GPU or, through the CPU device, on the CPU")
    if x.is_cuda and not on_gpu:
        raise RuntimeError("x is on a GPU, but the course's kernels run on the CPU device here: use x.cpu()")


@contextmanager
def _current_stream(tensor):
    """Kernels go to the GPU and stream on which torch works."""
    if not tensor.is_cuda:
        yield
        return
    stream = torch.cuda.current_stream(tensor.device)
    with cp.cuda.Device(tensor.device.index), cp.cuda.ExternalStream(stream.cuda_stream, tensor.device.index):
        yield


def _array(tensor: torch.Tensor):
    """The array of a tensor: the same memory on a GPU, a copy on the CPU device.  bf16 travels as 16-bit integers."""
    tensor = tensor.detach().contiguous()
    bf16 = tensor.dtype == torch.bfloat16
    plain = tensor.view(torch.int16) if bf16 else tensor
    array = cp.from_dlpack(plain) if tensor.is_cuda else cpu_device.asarray(plain.numpy())
    return array.view(ml_dtypes.bfloat16) if bf16 else array


def _tensor(array, like: torch.Tensor) -> torch.Tensor:
    """The tensor of an array, on the device of `like`."""
    bf16 = array.dtype.name == "bfloat16"
    plain = array.view(np.int16) if bf16 else array
    tensor = torch.from_dlpack(plain) if like.is_cuda else torch.from_numpy(plain.get())
    return tensor.view(torch.bfloat16) if bf16 else tensor

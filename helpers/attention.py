"""Attention by the kernels of cuda_snippets/attention/: one call that checks its input, chooses a kernel and launches it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import ladder
from .device import cp, on_gpu
from .ladder import MAX_BH, MAX_N, MAX_NAIVE_SQ, TYPES, Step, lanes_per_query
from .measure import ReadyLaunch

MAX_TENSOR_SQ = 128 * 65_535  # the last step puts 128 queries into a block, along grid.y
BEST = {"float32": "attention_tiled", "float16": "attention_mma_bands", "bfloat16": "attention_mma_bands"}


class Sizes(NamedTuple):
    """B batches; Hq heads of Sq queries, which share Hkv heads of Sk keys; D numbers each."""

    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int

    @property
    def BH(self) -> int:
        return self.B * self.Hq


def attention(q, k, v, step: str | None = None, causal: bool = False, scale: float | None = None, window: int | None = None, bias=None):
    """softmax(scale * q k^T + bias) v over the visible keys: (o, lse), like `reference.attention`.

    q is [B, Hq, Sq, D], k and v are [B, Hkv, Sk, D], or all of them [B*H, S, D]: contiguous cp arrays of one dtype.  Hq is a
    multiple of Hkv, and Hq / Hkv neighbouring heads of q share one of k and v.  o has the shape and dtype of q; lse, the natural
    logarithm of the sum of exponentials, is float32 [B, Hq, Sq].  `step` names a kernel; by default float32 goes to
    attention_tiled, float16 and bfloat16 (of ml_dtypes) to the last step on tensor cores, which needs D = 32, 48, … 128 and a GPU
    from compute capability 8.0.

    `scale` defaults to 1/sqrt(D).  With distance = i + Sk - Sq - j between query i and key j, `causal` hides keys with distance
    < 0, and `window` those with |distance| >= window.  `bias` is float32 [Sq, Sk] or [1 or B, 1 or Hq, Sq, Sk].  A query that sees no key
    gets o = 0 and lse = -inf; one with a NaN or +inf among its visible scores gets NaN.  Raises TypeError or ValueError that names the
    limit.
    """
    o, lse, launches = ready(q, k, v, step, causal, scale, window, bias)
    for launch in launches:
        launch()
    return o, lse


def ready(q, k, v, step=None, causal=False, scale=None, window=None, bias=None) -> tuple[object, object, list[ReadyLaunch]]:
    """What `attention` returns, not yet computed, and the launches that compute it; `launch.count()` counts what one does."""
    name = step or BEST.get(getattr(getattr(q, "dtype", None), "name", ""), BEST["float32"])
    chosen = ladder.find_step(name, ("attention",))
    sizes = check_inputs(chosen, q, k, v)
    scale = sizes.D ** -0.5 if scale is None else scale
    extra, macros = _features(chosen, sizes, window, bias)
    if chosen.dtypes != ("float32",):
        _check_tensor_cores(name)
        macros += TYPES[q.dtype.name] + (() if scale > 0 else ("-DANY_SCALE",))
    o = cp.empty(q.shape, dtype=q.dtype)
    lse = cp.empty(q.shape[:-1], dtype=np.float32)
    if sizes.BH == 0 or sizes.Sq == 0 or sizes.D == 0:
        return o, lse, []
    if sizes.Sk == 0:
        o.fill(0)
        lse.fill(-np.inf)
        return o, lse, []
    launch = chosen.launch(sizes.BH, sizes.Sq, sizes.Sk, sizes.D)
    options = (f"-DD={sizes.D}", *macros, *chosen.options(sizes.D))
    numbers = np.int32(sizes.Sq), np.int32(sizes.Sk), np.int32(causal), np.float32(scale)
    if name == "attention_naive":
        return o, lse, _three_launches(chosen.file, options, launch, q, k, v, o, lse, *numbers)
    run = ladder.kernel(chosen.file, chosen.entry, options)
    ladder.allow_shared(run, launch.shared_mem)
    return o, lse, [ReadyLaunch(run, launch.grid, launch.block, (q, k, v, o, lse, *numbers, *extra), launch.shared_mem)]


def _three_launches(file, options, launch, q, k, v, o, lse, Sq, Sk, causal, scale) -> list[ReadyLaunch]:
    """Three kernels, with the score matrix between them."""
    D, BH = q.shape[-1], lse.size // int(Sq)
    s = cp.empty((BH, int(Sq), int(Sk)), dtype=np.float32)
    scores, softmax, output = (ladder.kernel(file, f"attention_{name}", options) for name in ("scores", "softmax", "output"))
    return [ReadyLaunch(scores, launch.grid, launch.block, (q, k, s, Sq, Sk, causal, scale)),
            ReadyLaunch(softmax, (lse.size,), (ladder.threads_for(int(Sk)),), (s, lse, Sk)),
            ReadyLaunch(output, (int(Sq), BH), (D,), (s, v, o, Sq, Sk))]


# ------------------------------------------------------------------------------------------------ checks


def check_inputs(step: Step, q, k, v) -> Sizes:
    """The sizes of valid input; TypeError or ValueError that names the limit."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        ladder.check_array(name, array, (3, 4), "[B, H, S, D] or [B*H, S, D]", step.dtypes)
        if array.dtype != q.dtype:
            raise TypeError(f"{name} is {array.dtype} and q is {q.dtype}: one dtype for all, use {name}.astype(q.dtype)")
        if step.dtypes != ("float32",) and array.size and array.data.ptr % 16:
            raise ValueError(f"{name} does not start at a multiple of 16 bytes, as {step.key} reads it: use {name}.copy()")
    *batch, Hq, Sq, D = q.shape
    B, Hkv, Sk = int(np.prod(batch)), k.shape[-3], k.shape[-2]
    grouped = q.ndim == 4 and Hkv > 0 and Hq % Hkv == 0
    if k.shape != v.shape or (*k.shape[:-3], k.shape[-1]) != (*batch, D) or not (Hq == Hkv or grouped):
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: k and v must have one shape, "
                         "and share B and D with q; Hq must be Hkv or, with four dimensions, a multiple of it")
    _check_limits(step, B * Hq, Sq, Sk, D)
    return Sizes(B, Hq, Hkv, Sq, Sk, D)


def _check_limits(step: Step, BH: int, Sq: int, Sk: int, D: int) -> None:
    if BH > MAX_BH:
        raise ValueError(f"B*H = {BH:,} is above {MAX_BH:,}, the largest grid.y: call attention for parts of the batch")
    if max(Sq, Sk) >= MAX_N:
        raise ValueError(f"Sq = {Sq:,} or Sk = {Sk:,} is not below {MAX_N:,}: call attention for parts of q, or parts of k and v and "
                         "merge them by their lse")
    if step.key == "attention_naive":
        if D > 1024:
            raise ValueError(f"D = {D:,} is above 1,024, the most threads of a block: use reference.attention")
        if Sq > MAX_NAIVE_SQ:
            raise ValueError(f"Sq = {Sq:,} is above {MAX_NAIVE_SQ:,}, the limit of {step.key}: use step='attention_tiled'")
    elif step.dtypes != ("float32",):
        if D % 16 or not 32 <= D <= 128:
            raise ValueError(f"D = {D} is none of 32, 48, 64, 80, 96, 112, 128, as {step.key} needs it: pad q, k and v with zero columns "
                             "and pass scale=1/sqrt(the true D), or use float32")
        if Sq > MAX_TENSOR_SQ:
            raise ValueError(f"Sq = {Sq:,} is above {MAX_TENSOR_SQ:,}, the limit of {step.key}: call attention for parts of q")
    elif D > 256:
        raise ValueError(f"D = {D} is above 256, the limit of {step.key}: use step='attention_naive'")
    elif D % (4 * lanes_per_query(D)):
        raise ValueError(f"D = {D} is not a multiple of {4 * lanes_per_query(D)}, as {step.key} needs it: pad q, k and v "
                         "with zero columns and pass scale=1/sqrt(the true D), or use step='attention_naive'")


def _check_tensor_cores(name: str) -> None:
    if on_gpu and int(cp.cuda.Device().compute_capability) < 80:
        raise ValueError(f"{name} needs a GPU of compute capability 8.0 or later, for mma.sync and cp.async; this one has "
                         f"{int(cp.cuda.Device().compute_capability) / 10}: use float32, which goes to attention_tiled")


def _features(step: Step, sizes: Sizes, window: int | None, bias) -> tuple[tuple, tuple[str, ...]]:
    """The further arguments and macros of a kernel (see features.h): grouped heads, window and bias."""
    arguments, macros = (), ()
    if sizes.Hq != sizes.Hkv:
        macros += (f"-DGROUP={sizes.Hq // sizes.Hkv}",)
    if window is not None:
        if window < 1:
            raise ValueError(f"window = {window} hides every key: it must be at least 1, the diagonal alone")
        arguments, macros = (np.int32(min(window, MAX_N)),), (*macros, "-DWINDOW")
    if bias is not None:
        arguments, macros = (*arguments, *_bias_arguments(sizes, bias)), (*macros, "-DBIAS")
    if macros and step.key == "attention_naive":
        raise ValueError("attention_naive has neither grouped heads nor window nor bias: use step='attention_tiled'")
    return arguments, macros


def _bias_arguments(sizes: Sizes, bias) -> tuple:
    """The bias, the number of heads, and the strides over batch and heads, 0 where the bias is shared."""
    ladder.check_array("bias", bias, (2, 4), "[Sq, Sk] or [1 or B, 1 or Hq, Sq, Sk]", ("float32",))
    batch, heads = (1, 1) if bias.ndim == 2 else bias.shape[:2]
    if bias.shape[-2:] != (sizes.Sq, sizes.Sk) or batch not in (1, sizes.B) or heads not in (1, sizes.Hq):
        raise ValueError(f"bias {tuple(bias.shape)} does not fit: it must be [Sq, Sk] or [1 or B, 1 or Hq, Sq, Sk] with "
                         f"B = {sizes.B}, Hq = {sizes.Hq}, Sq = {sizes.Sq:,}, Sk = {sizes.Sk:,}")
    matrix = sizes.Sq * sizes.Sk
    return bias, np.int32(sizes.Hq), np.int64(heads * matrix if batch > 1 else 0), np.int64(matrix if heads > 1 else 0)

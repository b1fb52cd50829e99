"""What the judges of kernel exercises share: a launch on the CPU device whose diagnosis becomes the hint, and then one on the GPU."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from helpers import cpu_device, device
from helpers.exercises import Wrong
from helpers.snippets import load

SECONDS = 10.0  # a launch on the CPU device
GPU_SECONDS = 60.0  # all launches of one exercise on the GPU, with compiling
on_gpu = False  # True in the process that judges on the GPU


# ------------------------------------------------------------------------------------------------ the source


def source(answer) -> str:
    """The kernel's source: the answer itself, or what the file of that name holds."""
    if not isinstance(answer, str):
        raise Wrong('pass the source of the kernel: load("exercises/….cu")')
    try:
        return load(answer) if re.fullmatch(r"[\w/]+\.cu", answer) else answer
    except FileNotFoundError as error:
        raise Wrong(str(error)) from None


def build(answer, entry: str):
    """A kernel of the CPU device from the learner's source, or from the name of a file."""
    return cpu_device.RawKernel(source(answer), entry, options=("-std=c++17",))


def digest(code: str) -> str:
    """8 digits that change with a file's own code; not with comments, blanks and the headers that `load` pasted in."""
    pieces = re.split(r'^#line \d+ "([^"]+)"\n', code, flags=re.M)
    own = "".join(text for name, text in zip(pieces[1::2], pieces[2::2], strict=True) if name == pieces[1]) or pieces[0]
    return hashlib.sha1(re.sub(r"//[^\n]*|\s", "", own).encode()).hexdigest()[:8]


# ------------------------------------------------------------------------------------------------ a launch


def run(kernel, case: str, grid, block, args, outputs, explain, seed: int = 0):
    """Counters of one launch; what the CPU device diagnoses becomes the hint, in the words of `explain(error)` if it has any.

    `outputs` are arrays that the launch must write whole.  In the process that judges on the GPU the arrays hold in the
    end what the GPU wrote.
    """
    before = [a.get() if isinstance(a, cpu_device.ndarray) else a for a in args] if on_gpu else None
    try:
        with cpu_device.settings(checked=True, outputs=outputs, seed=seed, seconds=SECONDS) as settings:
            kernel(grid, block, args)
            counters = settings.last
    except cpu_device.CompileException as error:
        raise Wrong(_compile_error(str(error), kernel.code)) from None
    except cpu_device.KernelError as error:
        if error.kind == "timeout":
            where = f" in line {error.line}" if error.line else ""
            raise Wrong(f"{case}: the kernel was still running{where} after {SECONDS:g} s: which loop does not end?") from None
        raise Wrong(f"{case}: {explain(error) or said_by(error)}") from None
    except (cpu_device.CUDADriverError, cpu_device.NoCompiler, TypeError, ValueError) as error:
        raise Wrong(str(error).splitlines()[0]) from None
    if on_gpu:
        _repeat_on_gpu(kernel, grid, block, args, before, outputs)
    return counters


def _compile_error(text: str, code: str) -> str:
    """The first error of a compiler with the line that it stands in, by the numbers of the learner's file."""
    first = next((line for line in text.splitlines() if "error" in line), text.splitlines()[0] if text else "")
    at = re.match(r"([^:]+):(\d+):(?:\d+:)? (?:fatal )?error: (.*)", first.strip())
    if not at:
        return f"the kernel does not compile: {first.strip()}"
    lines = cpu_device.compiler._lines_by_file(code, "kernel.cu").get(at[1], {})
    help = ""
    if at[3].startswith("expected"):
        help = " (a ; may be missing there or in the line before)"
    elif re.search(r"FLT_MAX|INFINITY|\bNAN\b", at[3]):
        help = " (a GPU's compiler does not know it either; common.h has NEG_INF)"
    return f"the kernel does not compile, line {at[2]}: {at[3]}{help}: `{lines.get(int(at[2]), '').strip()}`"


def said_by(error) -> str:
    """What a KernelError says, without the kernel's name, with the line."""
    where = f" (line {error.line})" if error.line else ""
    return str(error).splitlines()[0].split(": ", 1)[-1] + where


def changed(source: str, *pairs: tuple[str, str]) -> str:
    """`source` with replacements, each of which must apply exactly once: a known-wrong answer."""
    for old, new in pairs:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} occurs {source.count(old)} times")
        source = source.replace(old, new)
    return source


# ------------------------------------------------------------------------------------------------ on the GPU


def judge_on_gpu(id: str, answer) -> None:
    """Judge a kernel that the CPU device accepted on the GPU, if there is one.

    In a process of its own: an illegal access would spoil every later launch of the notebook, and an endless loop its
    kernel.  So nothing that the CPU device rejects ever reaches the GPU, and what does cannot break the session.
    """
    if on_gpu or not device.on_gpu:
        return
    command = [sys.executable, "-m", "helpers.exercises", id]
    environment = {**os.environ, "SOFTMAX_DEVICE": "gpu"}
    try:
        done = subprocess.run(command, input=source(answer), capture_output=True, text=True, timeout=GPU_SECONDS, env=environment,
                              cwd=Path(__file__).resolve().parents[2])
    except subprocess.TimeoutExpired:
        raise Wrong(f"right on the CPU device, but on the GPU it did not end within {GPU_SECONDS:g} s") from None
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if not last[0].startswith("{"):
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Wrong(f"right on the CPU device, but the GPU refuses it: {why}")
    if text := json.loads(last[0])["wrong"]:
        raise Wrong(f"right on the CPU device, but on the GPU: {text}")


def _repeat_on_gpu(kernel, grid, block, args, before, outputs) -> None:
    """The launch once more, on the GPU, from the arrays of `before`; what it writes replaces what the CPU device wrote."""
    cp = device.cp
    wanted = {id(a) for a in outputs}
    there = []
    for arg, host in zip(args, before, strict=True):
        if isinstance(arg, cpu_device.ndarray):
            skip = arg.data.ptr % 256 // host.itemsize  # the same distance from an aligned address
            memory = cp.empty(skip + host.size, host.dtype)
            array = memory[skip:].reshape(host.shape)
            array.set(np.full_like(host, np.nan if host.dtype.kind == "f" else -1) if id(arg) in wanted else host)
            there.append(array)
        else:
            there.append(arg)
    cp.RawKernel(kernel.code, kernel.name, options=("-std=c++17",))(grid, block, tuple(there))
    cp.cuda.Device().synchronize()
    for arg, array in zip(args, there, strict=True):
        if isinstance(arg, cpu_device.ndarray):
            arg.set(array.get())


def share_of_a_copy(answer, entry: str, grid, block, args_of, n: int) -> float:
    """How fast the kernel moves n floats from x to y on the GPU, as a share of a copy's speed; `args_of(x, y)` are its arguments."""
    from helpers.measure import time_us

    cp = device.cp
    x = cp.asarray(np.random.default_rng(0).standard_normal(n, dtype=np.float32))
    y = cp.empty_like(x)
    kernel, args = cp.RawKernel(source(answer), entry, options=("-std=c++17",)), args_of(x, y)
    copy = time_us(lambda: cp.copyto(y, x), repeats=20).us
    return copy / time_us(lambda: kernel(grid, block, args), repeats=20).us

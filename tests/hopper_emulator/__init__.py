"""Runs the Hopper kernels without a GPU: ptx.h here stands for the instructions, threads.cpp for the threads of a block."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from helpers import cpu_device, hopper, snippets

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
INCLUDE = Path(cpu_device.__file__).parent / "include"


@cache
def program(folder: Path, step: str, tuning: hopper.Tuning, D: int, dtype: str, group: int, edit: tuple[str, str] = ("", "")) -> Path:
    """The step as a program, compiled once; `edit` replaces one text of the source by another."""
    text, chosen = snippets.text, hopper.STEPS[step]
    descriptor = re.search(r"^__device__ inline u64 matrix_at\(.*?^}\n", text("attention/hopper/ptx.h"), re.M | re.S)[0]
    stand_ins = {"attention/hopper/ptx.h": (HERE / "ptx.h").read_text().replace("//MATRIX_AT//\n", descriptor),
                 "attention/hopper/wgmma.h": ""}
    try:
        snippets.text = lambda name: stand_ins.get(name) if name in stand_ins else text(name)
        source = snippets.load(chosen.file)
    finally:
        snippets.text = text
    if edit[0] not in source:
        raise ValueError(f"the source has no {edit[0]!r} to replace")
    source = source.replace(*edit).replace("extern __shared__ __align__(1024) char bytes[];", "char* const bytes = cuda_dynamic_memory;")
    more = ", items, blocks" if step == hopper.BEST else ""
    source += f"""
extern "C" void call_kernel(const TensorMap* maps, float* lse, int Sq, int Sk, int causal, float scale,
                            const int* items, int blocks) {{
    {chosen.entry}(maps[0], maps[1], maps[2], maps[3], lse, Sq, Sk, causal, scale{more});
}}
"""
    key = f"{step}-{abs(hash((tuning, D, dtype, group, edit)))}"
    file, result = folder / f"{key}.cpp", folder / key
    file.write_text(source)
    options = [o for o in hopper.options(step, tuning, D, dtype, group) if not o.startswith("-arch")]
    compiler = [COMPILER, "-std=c++17", "-O2", "-w", "-Wno-psabi"]
    subprocess.run([*compiler, "-I", INCLUDE, "-include", "cuda_device.h", *options, "-c", file, "-o", f"{result}.o"], check=True)
    subprocess.run([*compiler, HERE / "threads.cpp", f"{result}.o", "-o", result], check=True)
    return result


def run(folder: Path, q, k, v, step: str, causal=False, scale=None, tuning=None, seed=0, multiprocessors=3, edit=("", "")):
    """(o, lse) as `hopper.attention` would return them, of NumPy arrays [B, H, S, D]."""
    (B, Hq, Sq, D), (_, Hkv, Sk, _) = q.shape, k.shape
    tuning = tuning or hopper.STEPS[step].tuning(D, causal, Sk)
    file = program(folder, step, tuning, D, q.dtype.name, Hq // Hkv, edit)
    sizes = hopper.Sizes(B, Hq, Hkv, Sq, Sk, D)
    grid, threads = hopper.geometry(step, tuning, sizes, multiprocessors)
    items = hopper.schedule(sizes, tuning, causal, grid[0]) if step == hopper.BEST else np.empty(0, np.int32)
    x, y = (*grid, 1)[:2]
    numbers = [x, y, threads, seed, Sq, Sk, causal, items.size, hopper.query_blocks(tuning, sizes), q.nbytes, k.nbytes, B * Hq * Sq]
    maps = np.zeros((4, 16), np.uint64)
    for to, array, rows in zip(maps, (q, k, v, q), (64, tuning.keys, tuning.keys, 64), strict=True):    # o is like q
        to[1:9] = np.concatenate(hopper.map_fields(array.shape, rows))
    sent = np.int64(numbers).tobytes() + maps.tobytes() + np.float64(D**-0.5 if scale is None else scale).tobytes()
    done = subprocess.run([file], input=sent + b"".join(np.ascontiguousarray(a).tobytes() for a in (items, q, k, v)), capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr.decode())
    o = np.frombuffer(done.stdout[:q.nbytes], q.dtype).reshape(q.shape)
    return o, np.frombuffer(done.stdout[q.nbytes:], np.float32).reshape(q.shape[:-1])

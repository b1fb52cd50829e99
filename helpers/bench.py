"""Measure and record: `python -m helpers.bench TOPIC` runs one topic on this machine and writes its record.

Topics: ladders (every softmax step beside torch and a copy), attention (every attention step beside SDPA), tiles (the
tiled kernel over tile sizes), topk (fused top-k beside separate), backward (gradients beside torch), softmax (the dispatcher
beside its peers), decode (one query against a long cache), many_gpus (two GPUs beside one), cpu_device (the CPU device beside
NumPy; prints only).
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import re
import site
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from .device import cp, on_gpu
from .ladder import STEPS, kernel
from .measure import RESULTS, time_us

ELEMENTS = 2**27
COLUMNS = (256, 1024, 4096, 8192, 16384, 65536)
HEADS, HEAD_DIM = 16, 64


def main(topic: str) -> None:
    """Run one topic; on a GPU the rows are written to helpers/data/results/ and the file's path printed."""
    if topic == "cpu_device":
        from .cpu_device.bench import main as cpu_device_main

        return cpu_device_main()
    topics: dict[str, Callable[[], list[dict]]] = {"ladders": ladders, "attention": attention_steps, "tiles": tiles,
                                                   "topk": topk, "backward": backward, "softmax": fast_softmax, "decode": decode,
                                                   "many_gpus": many_gpus}
    if topic not in topics:
        sys.exit(f"no topic {topic!r}; there are {', '.join([*topics, 'cpu_device'])}")
    if not on_gpu:
        sys.exit(f"topic {topic} measures a GPU and none is usable here; the recorded results are in {RESULTS}")
    print(write(topic, topics[topic]()))


def write(topic: str, rows: list[dict], device: str | None = None) -> str:
    """Write a record and return its path."""
    run = provenance()
    slug = device or re.sub(r"[^a-z0-9]", "", run["device"].lower().replace("nvidia", ""))
    path = RESULTS / f"{slug}-{run['date']}-{topic}.json"
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{{"run": {json.dumps(run)},\n "rows": [\n{body}\n]}}\n')
    return str(path)


def provenance() -> dict:
    """Where and with what this run is made."""
    import cupy
    import torch

    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    program = "-m helpers.bench" if Path(sys.argv[0]).parent.name == "helpers" else f"tools/{Path(sys.argv[0]).name}"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    return {"device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode().replace("NVIDIA ", ""),
            "driver": driver.stdout.split("\n")[0].strip(), "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}", "cupy": cupy.__version__,
            "torch": torch.__version__.split("+")[0], "date": datetime.date.today().isoformat(),
            "commit": os.environ.get("BENCH_COMMIT", commit), "command": " ".join([f"python {program}", *sys.argv[1:]])}


def row(topic, name, peer, shape, dtype, function, *, flush_l2=True, **rates) -> dict:
    """Time `function` and describe the result; `rates` maps tbs or tflops to bytes or operations a call; `flush_l2` as in `time_us`."""
    slow = time_us(function, repeats=3, warmup=1, flush_l2=flush_l2).us  # so that slow steps do not take minutes
    t = time_us(function, repeats=int(min(60, max(7, 1.5e6 / slow))), warmup=2, flush_l2=flush_l2)
    result = {"topic": topic, "name": name, "peer": peer, "shape": list(shape), "dtype": dtype,
              "us": round(t.us, 2), "us_p10": round(t.us_p10, 2), "us_p90": round(t.us_p90, 2), "repeats": t.repeats}
    result |= {unit: round(amount / t.us / 1e6, 4) for unit, amount in rates.items()}
    print(" ".join(f"{v}" for v in result.values()), flush=True)
    return result


@cache
def peer_module(name: str):
    """A peer's module, from the environment or the folder that PEERS_SITE names; None, and why, where it is not to be had."""
    if os.path.isdir(os.environ.get("PEERS_SITE", "")):
        site.addsitedir(os.environ["PEERS_SITE"])
    try:
        return importlib.import_module(name)
    except Exception as error:  # not only ImportError: a peer for another GPU raises others
        print(f"{name} is left out: {type(error).__name__}: {str(error)[:200]}")
        return None


# ------------------------------------------------------------------------------------------------ topics


def ladders() -> list[dict]:
    """Every softmax step at M*N = 2^27 float32, beside torch.softmax, torch.compile and a device copy."""
    return [row for N in COLUMNS for row in _ladders_at(ELEMENTS // N, N)]


def _ladders_at(M: int, N: int) -> list[dict]:
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(lambda t: torch.softmax(t, -1), dynamic=False)
    x = cp.random.default_rng(N).standard_normal((M, N), dtype=cp.float32)
    y, t = cp.empty_like(x), torch.from_dlpack(x)
    u = torch.empty_like(t)
    least = 2 * x.nbytes
    peers = {"copy": lambda: cp.copyto(y, x), "torch_copy": lambda: u.copy_(t), "torch": lambda: torch.softmax(t, -1),
             "compile": lambda: compiled(t)}
    rows = [row("ladders", name, True, (M, N), "float32", function, tbs=least) for name, function in peers.items()]
    for key, step in STEPS.items():
        if step.reads is None or N > step.max_n:
            continue
        launch, run = step.launch(M, N), kernel(step.file, step.entry, step.options(N))
        args = (x, y, np.int32(M), np.int32(N))
        rows.append(row("ladders", key, False, (M, N), "float32",
                        lambda: run(launch.grid, launch.block, args, shared_mem=launch.shared_mem), tbs=least))
    return rows


def attention_steps() -> list[dict]:
    """Every attention step beside SDPA's backends, in float32 and bfloat16; see attention_bench."""
    from .attention_bench import rows

    return rows()


def tiles() -> list[dict]:
    """The tiled kernel over queries and keys a tile at S = 4096: time, registers, shared memory, resident threads."""
    S, D = 4096, HEAD_DIM
    rng = cp.random.default_rng(1)
    q, k, v = (rng.standard_normal((HEADS, S, D), dtype=cp.float32) for _ in range(3))
    o, lse = cp.empty_like(q), cp.empty((HEADS, S), dtype=cp.float32)
    step, rows = STEPS["attention_tiled"], []
    for queries in (32, 64, 128, 256):
        for keys in (4, 8, 16, 32, 64):
            name, shape = f"q{queries}_k{keys}", (1, HEADS, S, S, D, False)
            shared = 4 * keys * (2 * D + queries)
            if shared > 48 << 10:
                rows.append({"topic": "tiles", "name": name, "peer": False, "shape": list(shape), "dtype": "float32", "us": None,
                             "shared_bytes": shared, "why": "more than 48 KB of fixed shared memory"})
                continue
            run = kernel(step.file, step.entry, (f"-DD={D}", f"-DQUERIES={queries}", f"-DKEYS={keys}"))
            args = (q, k, v, o, lse, np.int32(S), np.int32(S), np.int32(0), np.float32(D**-0.5))
            result = row("tiles", name, False, shape, "float32", lambda: run((S // queries, HEADS), (queries,), args),
                         tflops=4 * HEADS * S * S * D)
            registers = run.num_regs
            blocks = min(65536 // (-(-registers // 8) * 8 * queries), (228 << 10) // (shared + 1024), 2048 // queries, 32)
            rows.append(result | {"registers": registers, "spilled_bytes": run.local_size_bytes, "shared_bytes": shared,
                                  "blocks_per_sm": blocks, "occupancy": blocks * queries / 2048})
    return rows


def topk() -> list[dict]:
    """Softmax and top-k, separate and fused; see topk_bench."""
    from .topk_bench import rows

    return rows()


def backward() -> list[dict]:
    """Gradients of softmax, log-softmax and cross-entropy; see gradients_bench."""
    from .gradients_bench import backward_rows

    return backward_rows()


def fast_softmax() -> list[dict]:
    """The dispatcher of helpers.fast over sizes and dtypes; see bench_softmax."""
    from .bench_softmax import rows

    return rows()


def decode() -> list[dict]:
    """Decoding against long caches beside SDPA, over splits, lengths and grouped heads; see decode_bench."""
    from .decode_bench import rows

    return rows()


def many_gpus() -> list[dict]:
    """Sharded softmax, cross-entropy, top-k and attention on one and two GPUs; see many_gpus_bench."""
    from .many_gpus_bench import rows

    return rows()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")

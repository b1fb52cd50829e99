"""Measure and record: `python -m helpers.bench TOPIC` runs one topic on this machine and writes its record.

Each topic is a module here: ladders (every softmax step beside torch and a copy), attention (every attention step beside SDPA), tiles (the
tiled kernel over tile sizes), hopper (attention on a Hopper GPU beside its peers), topk (fused top-k beside separate), backward
(gradients beside torch), softmax (the dispatcher beside its peers), decode (one query against a long cache), many_gpus (two GPUs
beside one), cpu_device (the CPU device beside NumPy; prints only).
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
from functools import cache
from pathlib import Path

from ..device import on_gpu
from ..measure import RESULTS, time_us

TOPICS = ("ladders", "attention", "tiles", "hopper", "topk", "backward", "softmax", "decode", "many_gpus", "cpu_device")


def main(topic: str) -> None:
    """Run one topic; on a GPU the rows are written to helpers/data/results/ and the file's path printed."""
    if topic not in TOPICS:
        sys.exit(f"no topic {topic!r}; there are {', '.join(TOPICS)}")
    if topic != "cpu_device" and not on_gpu:
        sys.exit(f"topic {topic} measures a GPU and none is usable here; the recorded results are in {RESULTS}")
    module = importlib.import_module(f"{__name__}.{topic}")
    if topic == "cpu_device":
        module.main()
    else:
        print(write(topic, module.rows()))


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
    program = "-m helpers.bench" if Path(sys.argv[0]).name == "__main__.py" else f"tools/{Path(sys.argv[0]).name}"
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


def peer_row(topic, name, shape, dtype, function, **how) -> dict:
    """`row` for what others made; one that cannot run this size is recorded as such, not hidden."""
    try:
        return row(topic, name, True, shape, dtype, function, **how)
    except Exception as error:
        return {"topic": topic, "name": name, "peer": True, "shape": list(shape), "dtype": dtype, "us": None,
                "why": f"{type(error).__name__}: {str(error)[:160]}"}


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

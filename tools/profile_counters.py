"""Read what Nsight Compute counts for every kernel of the course, and write it as a record beside the timings.

    python tools/profile_counters.py            # profiles itself with ncu and writes helpers/data/results/…-ncu.json
    python tools/profile_counters.py --attention            # the fused attention steps: what explains their times; …-attention-ncu.json
    python tools/profile_counters.py --hopper               # the same for the steps of attention on Hopper; …-hopper-ncu.json
    compute-sanitizer --tool racecheck python tools/profile_counters.py --launch --small    # the same launches, sanitized

The CPU device must count the same requests, sectors and instructions; tests/test_counters.py holds the two together.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys

import numpy as np

from helpers import hopper
from helpers.attention import attention
from helpers.bench import write
from helpers.device import cp
from helpers.ladder import STEPS, numpy_type, softmax

SMALL = [(8, 4096), (64, 8192), (37, 1001)]     # compared with the CPU device, one odd size among them
LARGE = [(2**27 // N, N) for N in (1024, 8192, 65536)]  # several times the L2 cache: what reaches device memory
ATTENTION = [(2, 64, 64, 64, False), (2, 128, 256, 64, True), (3, 67, 93, 32, True)]  # BH, Sq, Sk, D, causal
LARGE_ATTENTION = [(16, 4096, 4096, 64, False)]
METRICS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "load_instructions": "smsp__inst_executed_op_global_ld.sum",
    "store_instructions": "smsp__inst_executed_op_global_st.sum",
    "shared_load_instructions": "smsp__inst_executed_op_shared_ld.sum",
    "shared_store_instructions": "smsp__inst_executed_op_shared_st.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "local_load_instructions": "smsp__inst_executed_op_local_ld.sum",
    "l1_hit_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "instructions": "smsp__inst_executed.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "time_ns": "gpu__time_duration.sum",
}

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = ("barrier", "dispatch_stall", "drain", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle",
          "no_instruction", "not_selected", "short_scoreboard", "sleeping", "wait")
ATTENTION_METRICS = {
    "instructions": "smsp__inst_executed.sum",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "tensor_active_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_active_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "shared_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "shared_active_percent": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_bytes": "dram__bytes.sum",
    "warps_active_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "cycles": "sm__cycles_active.avg",
    "time_ns": "gpu__time_duration.sum",
} | {f"stalled_{reason}_ratio": STALLED.format(reason) for reason in STALLS}
"""What explains the time of an attention step; a stall: warps that wait for this reason, for each instruction issued."""

HOPPER_METRICS = ATTENTION_METRICS | {
    "exp_active_percent": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "fma_active_percent": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "alu_active_percent": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "local_load_instructions": "smsp__inst_executed_op_local_ld.sum",
    "registers": "launch__registers_per_thread",
}


def cases() -> list[tuple[str, tuple]]:
    """(step, shape) of every launch, in order."""
    found = []
    if topic() != "ncu":
        steps = hopper.STEPS if topic() == "hopper-ncu" else [
            key for key, step in STEPS.items() if key == "attention_tiled" or "bfloat16" in step.dtypes]
        return [(key, (64, 4096, 4096, D, causal)) for D in (64, 128) for causal in (False, True) for key in steps]
    for key, step in STEPS.items():
        if step.dtypes != ("float32",):
            continue
        small, large = (SMALL, LARGE) if step.reads is not None else (ATTENTION, LARGE_ATTENTION)
        found += [(key, shape) for shape in (small if "--small" in sys.argv else small + large) if shape[-1] <= step.max_n]
    return found


def dtype_of(key: str) -> str:
    """The step's: of those with several, bfloat16."""
    return STEPS[key].dtypes[-1] if key in STEPS else "bfloat16"


def launch() -> None:
    """Launch every case once, on random data; small ones copied from the host, so that initcheck sees them written."""
    rng = (np if "--small" in sys.argv else cp).random.default_rng(0)
    for key, shape in cases():
        if key in STEPS and STEPS[key].reads is not None:
            softmax(cp.asarray(rng.standard_normal(shape, dtype=np.float32)), key)
        else:
            BH, Sq, Sk, D, causal = shape
            dtype = numpy_type(dtype_of(key))
            q, k, v = (cp.asarray(rng.standard_normal((BH, S, D), dtype=np.float32)).astype(dtype) for S in (Sq, Sk, Sk))
            (attention if key in STEPS else hopper.attention)(q, k, v, key, causal)
    cp.cuda.Device().synchronize()


def topic() -> str:
    """The record's."""
    return next((f"{flag}-ncu" for flag in ("attention", "hopper") if f"--{flag}" in sys.argv), "ncu")


def profile() -> list[dict]:
    """Run `launch` under ncu; one row for each kernel launch, with the case it belongs to."""
    metrics = {"attention-ncu": ATTENTION_METRICS, "hopper-ncu": HOPPER_METRICS, "ncu": METRICS}[topic()]
    command = ["ncu", "--csv", "--clock-control", "none", "--print-units", "base", "--kernel-name", "regex:softmax_|attention_|hopper_",
               "--metrics", ",".join(metrics.values()), sys.executable, __file__, "--launch", *sys.argv[1:]]
    out = subprocess.run(command, capture_output=True, text=True)
    start = out.stdout.find('"ID"')
    if start < 0:
        sys.exit(f"ncu gave no table:\n{out.stdout[-2000:]}\n{out.stderr[-2000:]}")
    launches: dict[int, dict] = {}
    names = {v: k for k, v in metrics.items()}
    for line in csv.DictReader(io.StringIO(out.stdout[start:])):
        entry = launches.setdefault(int(line["ID"]), {"kernel": re.sub(r"\(.*", "", line["Kernel Name"])})
        name, value = names[line["Metric Name"]], float(line["Metric Value"].replace(",", ""))
        entry[name] = round(value, 2) if name.endswith(("percent", "ratio")) else int(np.rint(value))
    rows, remaining = [], list(launches.values())
    for key, shape in cases():
        for _ in range(3 if key == "attention_naive" else 1):
            measured = remaining.pop(0)
            rows.append({"topic": "ncu", "name": key, "kernel": measured.pop("kernel"), "peer": False, "shape": list(shape),
                         "dtype": dtype_of(key), **measured})
    return rows


if __name__ == "__main__":
    if "--launch" in sys.argv:
        launch()
    else:
        print(write(topic(), profile()))

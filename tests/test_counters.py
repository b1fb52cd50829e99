"""The CPU device counts what Nsight Compute read on an H200: requests, sectors, global and shared instructions.

The record is made by tools/profile_counters.py.  Where the GPU's compiler merged or split accesses, `DIFFERENT` says
where and why, and the difference is bounded.
"""

import re

import numpy as np
import pytest

from helpers import cpu_device, ladder
from helpers.attention import attention
from helpers.device import on_gpu
from helpers.measure import count, record

ROWS = [r for r in record("ncu").rows if np.prod(r["shape"][:2]) < 1e6 and r["dram_read_bytes"] < 1e7]
UNROLLED = ("nvcc unrolls the strided loop by four; in a row whose end cuts a warp, lanes with four turns and lanes with three "
            "take different copies of the loop, so their accesses become two requests instead of one")
MERGED = ("nvcc merges the loads of four neighbouring floats of K and V into one 16-byte load: a quarter of the requests, "
          "half the wavefronts")
STATE = "nvcc moves the two floats of a State in shared memory as one 8-byte access, the CPU's compiler as two"
ARBITRATION = "the hardware now and then counts a conflict between two instructions, not between the lanes of one"
REQUESTS, SECTORS = ("load_requests", "store_requests"), ("load_sectors", "store_sectors")
SHARED = ("shared_load_wavefronts", "shared_store_wavefronts")
# kernels (a pattern), shape (None: all), counters -> why, and the least and largest ratio of the GPU's count to ours
DIFFERENT = [
    (r"softmax_(safe_v[1-4]|online_v[124].*)", [37, 1001], REQUESTS, UNROLLED, (1.0, 1.19)),
    (r"softmax_(safe_v[1-4]|online_v[124].*)", [37, 1001], SECTORS, UNROLLED, (1.0, 1.02)),
    (r"softmax_online_v[1-4].*", None, SHARED, STATE, (0.5, 0.51)),
    (r"attention_tiled.*", None, SHARED[:1], MERGED, (0.5, 0.52)),
]
pytestmark = pytest.mark.skipif(on_gpu, reason="compares the CPU device with a record; one device is enough")


def counted_launches(key: str, shape: list) -> dict[str, dict[str, int]]:
    """Run step `key` on the CPU device and return the counters of each kernel it launches."""
    found = {}

    def counting(file, entry, options=()):
        kernel = real(file, entry, options)

        def launch(grid, block, args, *, shared_mem=0):
            c = count(kernel, grid, block, args, shared_mem=shared_mem)
            found[entry] = {
                "load_requests": c.loads.requests, "load_sectors": c.loads.sectors,
                "store_requests": c.stores.requests, "store_sectors": c.stores.sectors,
                "shared_load_wavefronts": c.shared_loads.wavefronts, "shared_store_wavefronts": c.shared_stores.wavefronts,
                "shared_load_conflicts": c.shared_loads.extra_wavefronts,
                "shared_store_conflicts": c.shared_stores.extra_wavefronts,
            }
        return launch

    real, ladder.kernel = ladder.kernel, counting
    try:
        rng = np.random.default_rng(0)
        if ladder.STEPS[key].reads is not None:
            ladder.softmax(cpu_device.asarray(rng.standard_normal(shape, dtype=np.float32)), key)
        else:
            BH, Sq, Sk, D, causal = shape
            q, k, v = (cpu_device.asarray(rng.standard_normal((BH, S, D), dtype=np.float32)) for S in (Sq, Sk, Sk))
            attention(q, k, v, key, causal)
    finally:
        ladder.kernel = real
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['kernel']}-{'x'.join(map(str, r['shape']))}")
def test_counters_equal_nsight_compute(row):
    counted = counted_launches(row["name"], row["shape"])[row["kernel"]]
    for kernels, shape, names, why, (low, high) in DIFFERENT:
        if re.fullmatch(kernels, row["kernel"]) and shape in (None, row["shape"]):
            for name in names:
                assert low <= row[name] / counted.pop(name) <= high, (name, why)
    for name in [name for name in counted if name.endswith("conflicts")]:
        stray = row[name] - counted.pop(name)
        assert 0 <= stray <= 1 + row["shared_load_wavefronts"] // 500, (name, ARBITRATION)
    assert counted == {name: row[name] for name in counted}

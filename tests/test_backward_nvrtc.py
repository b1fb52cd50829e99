"""The backward kernels compile with NVRTC as the plans compile them, for three generations of GPUs and without spills; no GPU needed."""

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the test packages cuda-bindings and nvidia-cuda-nvrtc")

from test_nvrtc import ARCHITECTURES, compile_for, spills  # noqa: E402

from helpers import snippets  # noqa: E402
from helpers.gradients import WAYS, plan_backward, plan_cross_entropy, plan_forward  # noqa: E402

FLOATS = ("float32", "float16", "bfloat16")


def plans():
    """(plan, dtype) of every kind that a call can get: all ways of the table, warps, two passes, and the other files."""
    for dtype in FLOATS:
        for clusters in (True, False):
            for N in (32, 128, 256, 512, *(way.max_n for way in WAYS[dtype]), 2**20):
                yield plan_backward(1000, N, dtype, clusters=clusters), dtype
        yield plan_forward(1000, 4096, dtype), dtype
        for N in (64, 256, 512, 4096):
            yield plan_cross_entropy(1000, N, dtype, True), dtype


def architectures(macros):
    """Those that can run it: a cluster needs sm_90, and shared memory for both rows more than sm_75 has."""
    return ARCHITECTURES[2:] if any("CLUSTER" in macro for macro in macros) else ARCHITECTURES[1 if "-DPARKED" in macros else 0:]


CASES = sorted({(plan.file, plan.macros, dtype) for plan, dtype in plans()})


@pytest.mark.parametrize("file, macros, dtype", CASES, ids=[" ".join([file, *macros]) for file, macros, _ in CASES])
def test_compiles_without_spills(file, macros, dtype):
    for arch in architectures(macros):
        log, ptx = compile_for(snippets.load(file), arch, list(macros))
        assert set(spills(log)) == {("0", "0", "0")}, log
        assert "warning" not in log, log
        assert "ld.global.v4" in ptx or "ld.global.nc.v4" in ptx
        assert "st.global.v4" in ptx
        assert ("cp.async.cg.shared.global" in ptx) == ("-DPARKED" in macros and arch != "sm_75")


@pytest.mark.parametrize("file", ["two_passes", "registers", "forward", "cross_entropy"])
def test_float64_compiles(file):
    compile_for(snippets.load(f"backward/{file}.cu"), "sm_90a", ["-DDOUBLE", "-DVECTORS=2"])

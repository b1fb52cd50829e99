"""The top-k kernels compile with NVRTC as the plans compile them, for three generations of GPUs and without spills; needs no GPU."""

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the test packages cuda-bindings and nvidia-cuda-nvrtc")

from test_nvrtc import ARCHITECTURES, compile_for, spills  # noqa: E402

from helpers import snippets  # noqa: E402
from helpers.topk import plan  # noqa: E402

SHAPES = {  # (M, N, k, dtype, variant): one for every kernel, with the options that need most registers
    "short rows": (65_536, 256, 8, "float32", "auto"),
    "short rows, 32 lanes": (65_536, 1024, 16, "float32", "auto"),
    "short rows, 16 loads a lane": (8192, 2048, 32, "float32", "auto"),
    "short rows, bf16": (65_536, 256, 8, "bfloat16", "auto"),
    "short rows, bf16, 8 loads": (65_536, 512, 8, "bfloat16", "auto"),
    "short rows, bf16, 16 loads": (8192, 4096, 32, "bfloat16", "auto"),
    "short rows, fp16, 16 loads": (8192, 4096, 8, "float16", "auto"),
    "short rows, fp16, not filled": (65_536, 200, 5, "float16", "auto"),
    "short rows, fp16, 16 lanes": (65_536, 800, 16, "float16", "auto"),
    "one warp a row": (8192, 6000, 8, "float32", "auto"),
    "one warp a row, k = 64": (8192, 4096, 64, "float32", "auto"),
    "eight warps a row": (512, 128_256, 64, "float32", "auto"),
    "bf16": (4000, 25_000, 32, "bfloat16", "auto"),
    "fp16": (4000, 25_000, 5, "float16", "auto"),
    "split rows": (1, 128_256, 64, "float32", "auto"),
    "two passes": (4000, 25_000, 5, "float32", "safe_fused"),
    "selection alone": (4000, 25_000, 64, "float32", "safe_separate"),
    "with the whole softmax": (512, 25_000, 64, "float32", "whole"),
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", SHAPES)
def test_compiles_without_spills(name, arch):
    chosen = plan(*SHAPES[name])
    log, _ = compile_for(snippets.load(f"topk/{chosen.file}"), arch, list(chosen.options))
    assert set(spills(log)) == {("0", "0", "0")}, log
    assert "warning" not in log, log

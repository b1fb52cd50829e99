"""Every .cu compiles with NVRTC for three generations of GPUs, and no kernel spills registers; needs no GPU."""

import re
from pathlib import Path

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs the test packages cuda-bindings and nvidia-cuda-nvrtc")

from helpers import snippets  # noqa: E402

ROOT = Path(__file__).parents[1] / "cuda_snippets"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
SOURCES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.cu"))]


def cases():
    """(file, architecture, options): attention for each head dimension; `// Needs: sm_80` leaves older GPUs out."""
    for file in SOURCES:
        needs = re.search(r"^// Needs: +(sm_\w+)", (ROOT / file).read_text(), re.MULTILINE)
        first = ARCHITECTURES.index(needs[1]) if needs else 0
        for arch in ARCHITECTURES[first:]:
            for options in ([f"-DD={d}"] for d in HEAD_DIMS) if "#ifndef D\n" in (ROOT / file).read_text() else ([],):
                yield pytest.param(file, arch, options, id=" ".join([file, arch, *options]))


def include_dirs() -> list[str]:
    """Where the CUDA headers of the wheels lie; the first steps need none of them."""
    import nvidia
    return [f"-I{path}" for root in nvidia.__path__ for path in Path(root).glob("*/include")]


def compile_for(source: str, arch: str, options: list[str]) -> str:
    """Compile with NVRTC; the log, which holds the report of ptxas.  Fails the test with that log on an error."""
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"snippet.cu", 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    flags = ["-std=c++17", f"-arch={arch}", "--ptxas-options=-v", *options, *include_dirs()]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text = bytes(log).decode()
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, text
    return text


@pytest.mark.parametrize("file, arch, options", list(cases()))
def test_compiles_without_spills(file, arch, options):
    log = compile_for(snippets.load(file), arch, options)
    entries = len(re.findall(r"Compiling entry function", log))
    memory = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert entries and len(memory) >= entries, log
    assert all(numbers == ("0", "0", "0") for numbers in memory), log
    assert "warning" not in log, log


def test_there_are_sources():
    assert len(SOURCES) >= 6

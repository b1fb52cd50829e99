"""Every .cu compiles with NVRTC for three generations of GPUs, and no kernel spills registers; needs no GPU."""

import re
from pathlib import Path

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs the test packages cuda-bindings and nvidia-cuda-nvrtc")

from helpers import snippets  # noqa: E402

ROOT = Path(__file__).parents[1] / "cuda_snippets"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")
OPTIONS = {                                     # macro that a file leaves open -> values it is compiled with
    "D": (16, 32, 64, 80, 96, 128, 256),
    "PER_THREAD": (4, 8, 16, 32),
}
SOURCES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.rglob("*.cu"))]


def cases():
    """(file, architecture, options): one for each value in OPTIONS; `// Needs: sm_80` leaves older GPUs out."""
    for file in SOURCES:
        text = (ROOT / file).read_text()
        needs = re.search(r"^// Needs: +(sm_\w+)", text, re.MULTILINE)
        first = ARCHITECTURES.index(needs[1]) if needs else 0
        choices = [[f"-D{name}={value}"] for name, values in OPTIONS.items() if f"#ifndef {name}\n" in text for value in values]
        for arch in ARCHITECTURES[first:]:
            for options in choices or [[]]:
                yield pytest.param(file, arch, options, id=" ".join([file, arch, *options]))


def include_dirs() -> list[str]:
    """Where the CUDA headers of the wheels lie; the first steps need none of them."""
    import nvidia
    return [f"-I{path}" for root in nvidia.__path__ for path in Path(root).glob("*/include")]


def compile_for(source: str, arch: str, options: list[str]) -> tuple[str, str]:
    """Compile with NVRTC: the log, which holds the report of ptxas, and the PTX.  Fails the test with the log on an error."""
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"snippet.cu", 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    flags = ["-std=c++17", f"-arch={arch}", "--ptxas-options=-v", *options, *include_dirs()]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = bytes(log).decode()
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, text
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = bytearray(size)
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    return text, bytes(ptx).decode()


def spills(log: str) -> list[tuple[str, str, str]]:
    """Bytes of stack frame, spill stores and spill loads of each function in the log."""
    memory = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(memory) >= len(re.findall(r"Compiling entry function", log)) > 0, log
    return memory


@pytest.mark.parametrize("file, arch, options", list(cases()))
def test_compiles_without_spills(file, arch, options):
    log, ptx = compile_for(snippets.load(file), arch, options)
    assert set(spills(log)) == {("0", "0", "0")}, log
    assert "warning" not in log, log
    if '#include "vector.h"' in snippets.text(file):        # the compiler is free to split a float4 into smaller accesses
        assert re.search(r"ld\.global(\.nc)?\.v4", ptx) and re.search(r"st\.global\.v4", ptx)
        assert not re.search(r"(ld|st)\.global(\.nc)?\.v2", ptx)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_registers_of_online_v3_are_full(arch):
    """Its limit is the register file's: with 1024 threads, PER_THREAD = 32 fits (above), and 48 does not."""
    log, _ = compile_for(snippets.load("online/v3_registers.cu"), arch, ["-DPER_THREAD=48"])
    assert "Used 64 registers" in log and set(spills(log)) != {("0", "0", "0")}, log


def test_there_are_sources():
    assert len(SOURCES) >= 6

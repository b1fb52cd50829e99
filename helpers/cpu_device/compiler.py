"""CUDA source to shared library, with the system's C++ compiler; and addresses of code back to lines of the .cu file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from .errors import CompileException, CUDADriverError, NoCompiler

HERE = Path(__file__).parent
PADDING = 256  # bytes between two __shared__ arrays, so that running over the end of one is seen
COMMON = ("-std=c++17", "-fPIC", "-w", "-g", "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-ffp-contract=off")
CHECKED = ("-O1", "-fsanitize=thread", "-mno-red-zone", "-DCPU_DEVICE_CHECKED")
FAST = ("-O2",)


@dataclass
class Library:
    """A compiled source: its path, its kernels (name -> entry number), and where its arrays and variables lie."""

    path: Path
    kernels: dict[str, int]
    parameters: dict[str, list[str]]  # names, from the source
    source: "Source"
    bytes: int
    shared: list[tuple[str, int, int]] = field(default_factory=list)     # name, offset, bytes; first the whole section
    variables: list[tuple[str, int, int]] = field(default_factory=list)
    globals_at: int | None = None  # offset in the arena, once loaded
    globals_allocation: object = None


@lru_cache
def compiler() -> tuple[str, str]:
    """Path and version line of the C++ compiler ($CXX, g++, clang++); `NoCompiler` with what to type if there is none."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        path = shutil.which(name)
        if path:
            version = subprocess.run([path, "--version"], capture_output=True, text=True)
            if version.returncode == 0:
                return path, version.stdout.splitlines()[0]
    raise NoCompiler("Kernels run on the CPU through a C++ compiler and none was found: "
                     + ("run `xcode-select --install`." if sys.platform == "darwin" else
                        "install one, e.g. `sudo apt install g++` or `conda install -c conda-forge cxx-compiler`."))


def cache_dir() -> Path:
    """Where compiled kernels are kept between sessions ($XDG_CACHE_HOME or ~/.cache; a temporary folder if read-only)."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "online-softmax-course"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base
    except OSError:
        pass
    base = Path(tempfile.gettempdir()) / f"online-softmax-course-{os.getuid()}"
    base.mkdir(exist_ok=True)
    return base


# ------------------------------------------------------------------------------------------------ the source


class Source:
    """One CUDA source, rewritten for a C++ compiler, with a map from its `#line` files to their text."""

    def __init__(self, code: str, name: str):
        self.lines = _lines_by_file(code, name)
        self.text = _rewrite(f'#line 1 "{name}"\n{code}')
        stripped = _without_comments(code)
        self.signatures = {m["name"]: m for m in _KERNEL.finditer(stripped)}
        self.c_names = {n for n, m in self.signatures.items() if m["c"] or re.search(r'extern\s+"C"\s*\{', stripped)}
        self.templates = {n for n, m in self.signatures.items() if m["template"]}

    def parameters(self, name: str) -> list[str]:
        """Parameter names of a kernel; for `f<float>` those of the template f."""
        match = self.signatures.get(name.split("<")[0].split("::")[-1].strip("& "))
        if not match:
            return []
        return [m.group(1) for p in _split(match["parameters"]) if (m := re.search(r"(\w+)\s*(?:\[\s*\])?\s*$", p))]

    def line(self, file: str, line: int) -> str:
        """The text of one line, or an empty string."""
        text = self.lines.get(file, {})
        return text.get(line, "").strip()


_KERNEL = re.compile(
    r'(?P<template>template\s*<[^{};]*>\s*)?(?P<c>extern\s+"C"\s+)?(?:static\s+|inline\s+)*__global__\s+'
    r"(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*|__cluster_dims__\s*\([^)]*\)\s*)?(?:void\s+)?"
    r"(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)")
_EXTERN_SHARED = re.compile(
    r"extern\s+(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\([^)]*\)\s*)?__shared__\s+"
    r"(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\([^)]*\)\s*)?(?P<type>[\w:<>,\s]+?)\s*\b(?P<name>\w+)\s*\[\s*\]\s*;")
_DEVICE_VARIABLE = re.compile(r"(?<!\w)__device__(?=[^;{}()=\[]*[;=\[])")


def _rewrite(code: str) -> str:
    code = _EXTERN_SHARED.sub(
        lambda m: f"static {m['type']} *const {m['name']} = ({m['type']} *)cuda_dynamic_shared();", code)
    code = re.sub(r"\bstatic\s+(?=__shared__|__constant__|__device__)", "", code)
    return _DEVICE_VARIABLE.sub("static __cuda_variable__", code)


def _without_comments(code: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.S)


def _split(parameters: str) -> list[str]:
    depth, part, parts = 0, "", []
    for c in parameters:
        depth += (c in "<([") - (c in ">)]")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p for p in (*parts, part) if p.strip()]


def _lines_by_file(code: str, name: str) -> dict[str, dict[int, str]]:
    files: dict[str, dict[int, str]] = {name: {}}
    file, number = name, 1
    for text in code.splitlines():
        directive = re.match(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?', text)
        if directive:
            number, file = int(directive[1]), directive[2] or file
            files.setdefault(file, {})
            continue
        files[file][number] = text
        number += 1
    return files


# --------------------------------------------------------------------------------------------- compiling


def build(code: str, name: str, options: tuple[str, ...] = (), expressions: tuple[str, ...] = (), checked: bool = True) -> Library:
    """Compile CUDA source `code` (file name `name` in messages) and describe the result.  Cached by content.

    Raises `CompileException` with the compiler's words, `NoCompiler` if there is no compiler.
    """
    source = Source(code, name)
    kernels = [*expressions, *(n for n in source.signatures if n in source.c_names and n not in source.templates)]
    text = source.text + "\n" + "\n".join(f"CUDA_ENTRY({i}, &{k})" for i, k in enumerate(kernels))
    path, version = compiler()
    flags = [*COMMON, *(CHECKED if checked else FAST), *_compiler_specific(version, checked),
             "-I", str(HERE / "include"), "-include", "cuda_device.h", *_user_options(options)]
    key = _hash(text, version, *flags, _headers(), *map(str, (PADDING,)))
    library = cache_dir() / f"{key}.so"
    if not library.exists():
        _compile(path, flags, text, library, source, kernels)
    shared, variables, end = _symbols(library)
    limit = 48 << 10
    used = sum(size for _, _, size in shared[1:])
    if used > limit:
        raise CompileException(f"{name}: the __shared__ arrays need {used:,} bytes; arrays of fixed size may have {limit:,} "
                               "(48 KB) together. Use `extern __shared__` and shared_mem= for more.")
    parameters = {k: source.parameters(k) for k in kernels}
    return Library(library, {k: i for i, k in enumerate(kernels)}, parameters, source, end, shared, variables)


def _compile(compiler_path, flags, text, library, source, kernels) -> None:
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        assembly = Path(folder) / "kernel.s"
        run = subprocess.run([compiler_path, *flags, "-x", "c++", "-S", "-", "-o", str(assembly)], input=text,
                             capture_output=True, text=True, cwd=cache_dir())
        if run.returncode != 0:
            raise CompileException(_explain(run.stderr, source))
        assembly.write_text(_edit_assembly(assembly.read_text(), "-fsanitize=thread" in flags))
        built = Path(folder) / "kernel.so"
        run = subprocess.run([compiler_path, "-shared", "-o", str(built), str(assembly)], capture_output=True, text=True)
        if run.returncode != 0:
            raise CompileException(_explain(run.stderr, source))
        os.replace(built, library)


def _explain(stderr: str, source: Source) -> str:
    if "inline PTX" in stderr:
        at = re.search(r"([\w./-]+:\d+):\d+: error: .*inline PTX", stderr)
        return (f"{at[1] if at else 'this kernel'}: inline PTX has no meaning on a CPU. Give the function a plain C++ branch "
                "under #ifdef __CPU_DEVICE__, or run this kernel on a GPU.")
    lines = [line for line in stderr.splitlines() if "CUDA_ENTRY" not in line]
    return "\n".join(lines[:40])


def _edit_assembly(text: str, checked: bool) -> str:
    """Two things no flag does: a gap after each __shared__ array, and a counter at each division."""
    shared = "cuda_shared" if sys.platform == "linux" else "__DATA,cuda_shared"
    out, inside = [], False
    for line in text.splitlines():
        if re.match(r"\s*\.(section|text|data|bss)\b", line):
            inside = shared in line
        if checked and re.match(r"\s*v?divs[sd]\s", line):
            out.append("\tpushfq\n\tincq\tcuda_divisions_here(%rip)\n\tpopfq")
        out.append(line)
        if inside and re.match(r"\s*\.size\s", line):
            out.append("")
        if inside and re.match(r"\s*\.zero\s", line):
            out.append(f"\t.zero\t{PADDING}")
    start = '\t.section\t{0},"aw"\n\t.balign\t{1}\n{0}_start:\n'
    stop = '\n\t.section\t{0},"aw"\n\t.balign\t{1}\n{0}_end:\n'
    sections = (("cuda_shared", 128), ("cuda_global", 4096))
    counter = "\n\t.bss\n\t.balign 8\n\t.globl cuda_divisions\n\t.type cuda_divisions, @object\n\t.size cuda_divisions, 8\ncuda_divisions:\ncuda_divisions_here:\n\t.zero 8\n"
    return ("".join(start.format(*s) for s in sections) + "\n".join(out)
            + "".join(stop.format(*s) for s in sections) + counter)


def _symbols(library: Path):
    text = subprocess.run(["nm", "-S", "-C", "--defined-only", str(library)], capture_output=True, text=True, check=True).stdout
    edges, sized = {}, []
    for line in text.splitlines():
        if m := re.match(r"([0-9a-f]+) ([0-9a-f]+) \w (.+)$", line):
            sized.append((re.sub(r"^.*::|\.\d+$", "", m[3]), int(m[1], 16), int(m[2], 16)))
        elif m := re.match(r"([0-9a-f]+) \w (\w+)$", line):
            edges[m[2]] = int(m[1], 16)

    def section(name):
        low, high = edges.get(f"{name}_start", 0), edges.get(f"{name}_end", 0)  # the linker drops an empty section
        inside = sorted((s for s in sized if low <= s[1] < high), key=lambda s: s[1])
        return [(name, low, high - low), *inside] if high > low and inside else []

    return section("cuda_shared"), section("cuda_global"), edges["_end"] if "_end" in edges else library.stat().st_size


def _compiler_specific(version: str, checked: bool) -> list[str]:
    if "clang" in version.lower():
        flags = ["-fno-vectorize", "-fno-slp-vectorize"]
        return flags + ["-mllvm", "-tsan-instrument-read-before-write=1"] if checked else []
    return ["-fno-tree-vectorize", "-fno-tree-slp-vectorize"] if checked else []


def _user_options(options: tuple[str, ...]) -> list[str]:
    """Of NVRTC's options those that mean something to a C++ compiler: macros and include folders."""
    kept, options = [], list(options)
    while options:
        o = options.pop(0)
        if o in ("-D", "-I", "-U", "--define-macro", "--include-path") and options:
            o = {"--define-macro": "-D", "--include-path": "-I"}.get(o, o)
            kept.append(o + options.pop(0))
        elif o.startswith(("-D", "-I", "-U")):
            kept.append(o)
        elif o.startswith("--define-macro="):
            kept.append("-D" + o.split("=", 1)[1])
    return kept


@lru_cache
def _headers() -> str:
    return "".join(p.read_text() for p in sorted((HERE / "include").rglob("*")) if p.is_file())


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@lru_cache
def worker_program() -> Path:
    """The compiled runtime.cpp, built on first use."""
    path, version = compiler()
    sources = [p.read_text() for p in (HERE / "runtime.cpp", *sorted(HERE.glob("*.h")))]
    program = cache_dir() / f"worker-{_hash(version, *sources)}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
            built = Path(folder) / "worker"
            run = subprocess.run([path, "-std=c++17", "-O2", "-g", "-rdynamic", str(HERE / "runtime.cpp"), "-o", str(built), "-ldl"],
                                 capture_output=True, text=True)
            if run.returncode != 0:
                raise CompileException(run.stderr)
            os.replace(built, program)
    return program


# ---------------------------------------------------------------------------------- addresses back to lines


@lru_cache(maxsize=4096)
def locate(library: Path, pc: int) -> tuple[str, int] | None:
    """File and line of the call that returns to address `pc` of the library; the innermost line of the .cu file."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line") or shutil.which("llvm-symbolizer")
    if not tool or not pc:
        return None
    out = subprocess.run([tool, "-i", "-e", str(library), hex(pc - 1)], capture_output=True, text=True).stdout
    include = str(HERE / "include")
    for text in out.splitlines():
        file, _, line = text.split(" (")[0].rpartition(":")
        if line.isdigit() and not file.startswith(include) and "/include/" not in file:
            return file.removeprefix(str(cache_dir()) + "/"), int(line)
    return None


def entry_symbol(library: Library, kernel: str) -> int:
    """Number of a kernel's entry; `CUDADriverError` in CuPy's words, with the kernels there are, if there is none."""
    if kernel in library.kernels:
        return library.kernels[kernel]
    there = ", ".join(library.kernels) or "none"
    if kernel in library.source.templates:
        why = f"{kernel} is a template: use RawModule with name_expressions"
    elif kernel in library.source.signatures:
        why = f'{kernel} is not declared extern "C", so its name is mangled'
    else:
        why = f"kernels in this source: {there}"
    raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found ({why})")

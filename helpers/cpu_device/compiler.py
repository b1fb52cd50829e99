"""CUDA source to shared library, with the system's C++ compiler; and addresses of code back to lines of the .cu file."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from .errors import CompileException, CUDADriverError, NoCompiler

HERE = Path(__file__).parent
PADDING = 256  # bytes between two __shared__ arrays, so that running over the end of one is seen
MACOS = sys.platform == "darwin"
MACHINE = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
NO_RED_ZONE = ("-mno-red-zone",) if MACHINE == "x86_64" else ()  # inserted code pushes
COMMON = ("-std=c++17", "-fPIC", "-w", "-gdwarf-4", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics",
          "-fno-math-errno", "-ffp-contract=off", "-fsigned-char", "-fno-delete-null-pointer-checks",
          "-fno-strict-aliasing",      # kernels look at floats as float4 and as int
          "-fno-finite-loops",         # an endless loop must not be optimised away: the reader is to hear of it
          "-fstack-clash-protection")  # a large local array touches the guard page instead of jumping over it
CHECKED = ("-O1", "-fsanitize=thread", "-DCPU_DEVICE_CHECKED")
FAST = ("-O2",)


@dataclass
class Library:
    """A compiled source: its path, its kernels (name -> entry number), and where its arrays and variables lie."""

    path: Path
    name: str  # of the source
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
                     + ("run `xcode-select --install`." if MACOS else
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

        declared = [m for m in _SHARED.finditer(stripped)]
        self.element_bytes = {m["name"]: _SIZES.get(m["type"].strip()) for m in declared}  # of __shared__ arrays, where plain
        self.dynamic_name = next((m["name"] for m in declared if m["extern"]), "dynamic shared memory")

    def arrays_in(self, line: str) -> list[str]:
        """Names that stand before a bracket in a line and are no parameter of a kernel: arrays declared in a function."""
        parameters = {p for name in self.signatures for p in self.parameters(name)}
        return [n for n in re.findall(r"\b([A-Za-z_]\w*)\s*\[", line) if n not in parameters]

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
_SHARED = re.compile(
    r"(?P<extern>extern\s+)?(?:__align__\s*\(\s*\d+\s*\)\s*)?__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\([^)]*\)\s*)?"
    r"(?P<type>[\w:<>\s]+?)\s*\b(?P<name>\w+)\s*[\[;,=]")
_SIZES = {"float": 4, "double": 8, "int": 4, "unsigned": 4, "unsigned int": 4, "long long": 8, "unsigned long long": 8, "short": 2,
          "unsigned short": 2, "char": 1, "unsigned char": 1, "bool": 1, "half": 2, "__half": 2, "__nv_bfloat16": 2, "half2": 4,
          "__half2": 4, "float2": 8, "float4": 16, "int4": 16}
_VARIABLE = r"(?=(?:(?!\boperator\b)[^;{}()=\[])*[;=\[])"  # what follows __device__ is a variable, not a function
_DEVICE_VARIABLE = re.compile(r"(?<!\w)__device__" + _VARIABLE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>.*$", re.M)


def _rewrite(code: str) -> str:
    code = _EXTERN_SHARED.sub(
        lambda m: f"static {m['type']} *const {m['name']} = ({m['type']} *)cuda_dynamic_memory;", code)
    code = re.sub(r'\b(?:static|extern\s+"C")\s+(?=__shared__|__constant__|__device__' + _VARIABLE + ")", "", code)
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
    found = [n for n in source.signatures if n in source.c_names and n not in source.templates and n not in expressions]
    kernels = [*expressions, *found]
    flags, macros = _user_options(options)
    text = macros + _refuse_host_headers(source.text, flags)
    path, version = compiler()
    flags = [*COMMON, *(CHECKED + NO_RED_ZONE if checked else FAST), *_compiler_specific(version, checked),
             "-I", str(HERE / "include"), "-include", "cuda_device.h", *flags]
    key = _hash(text, *kernels, version, *flags, _headers(), MACHINE, Path(__file__).read_text())
    library = cache_dir() / f"{key}.so"
    if not library.exists():
        threading.Thread(target=_build_worker_meanwhile, daemon=True).start()
        absent = _compile(path, flags, text + _entries(kernels), library, source, checked)
        if absent:  # kernels of a branch that the preprocessor left out
            kept = ["" if i in absent and k in found else k for i, k in enumerate(kernels)]
            _compile(path, flags, text + _entries(kept), library, source, checked, last=True)
    shared, variables, end, names = _symbols(library)
    limit = 48 << 10
    used = sum(size for _, _, size in shared[1:])
    if used > limit:
        raise CompileException(f"{name}: the __shared__ arrays need {used:,} bytes; arrays of fixed size may have {limit:,} "
                               "(48 KB) together. Use `extern __shared__` and shared_mem= for more.")
    parameters = {k: source.parameters(k) for k in kernels}
    entries = {k: i for i, k in enumerate(kernels) if f"cuda_entry_{i}" in names}
    return Library(library, name, entries, parameters, source, end, shared, variables)


def _entries(kernels: list[str]) -> str:
    """Text that makes kernel i callable as cuda_entry_i."""
    return '\n#line 1 "CUDA_ENTRY"\n' + "\n".join(k and f"CUDA_ENTRY({i}, &{k})" for i, k in enumerate(kernels))


def _build_worker_meanwhile() -> None:
    with contextlib.suppress(Exception):  # the launch will need it, and say what went wrong
        worker_program()


def _refuse_host_headers(text: str, folders: list[str]) -> str:
    """A header that this computer has and NVRTC has not would make a kernel that runs here and fails on a GPU."""
    there = [HERE / "include", *(Path(folder[2:]) for folder in folders)]

    def keep_or_refuse(match: re.Match) -> str:
        if any((folder / match[1]).is_file() for folder in there):
            return match[0]
        return (f'#error cannot open source file "{match[1]}" (kernels are compiled by NVRTC on a GPU, which has the headers of CUDA, '
                "such as cuda_fp16.h, and none of the host)")

    return _INCLUDE.sub(keep_or_refuse, text)


def _compile(compiler_path, flags, text, library, source, checked: bool, last: bool = False) -> set[int]:
    """Make the library; or, if all that went wrong is that some kernels do not exist (and it is not the `last` try), their numbers."""
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        assembly = Path(folder) / "kernel.s"
        run = subprocess.run([compiler_path, *flags, "-x", "c++", "-S", "-", "-o", str(assembly)], input=text,
                             capture_output=True, text=True, cwd=cache_dir())
        if run.returncode != 0:
            errors = re.findall(r"^.*\berror: .*$", run.stderr, re.M)
            absent = [re.match(r"CUDA_ENTRY:(\d+):.*(?:not declared|undeclared)", error) for error in errors]
            if all(absent) and not last:
                return {int(m[1]) - 1 for m in absent}
            raise CompileException(_explain(run.stderr, source))
        text = assembly.read_text(encoding="latin-1")  # strings of the kernel may hold any byte
        assembly.write_text(_edit_assembly(text, checked, MACHINE), encoding="latin-1")
        built = Path(folder) / "kernel.so"
        link = [compiler_path, "-shared", *(["-undefined", "dynamic_lookup"] if MACOS else []), "-o", str(built), str(assembly)]
        run = subprocess.run(link, capture_output=True, text=True)
        if run.returncode != 0:
            raise CompileException(_explain(run.stderr, source))
        if MACOS:  # line numbers stay in the object file there, unless collected
            subprocess.run(["dsymutil", str(built), "-o", f"{library}.dSYM"], capture_output=True)
        os.replace(built, library)
    return set()


def _explain(stderr: str, source: Source) -> str:
    if "inline PTX" in stderr:
        at = re.search(r"([\w./-]+:\d+):\d+: error: .*inline PTX", stderr)
        return (f"{at[1] if at else 'this kernel'}: inline PTX has no meaning on a CPU. Give the function a plain C++ branch "
                "under #ifdef __CPU_DEVICE__, or run this kernel on a GPU.")
    lines = [line for line in stderr.splitlines() if "CUDA_ENTRY" not in line]
    return "\n".join(lines[:40])


_DIVISION = re.compile(r"\s*(v?divs[sd]|fdiv)\s")
_COUNT_DIVISION = {  # without touching registers or flags
    "x86_64": "\tpushq\t%rax\n\tmovq\t{0}(%rip), %rax\n\tleaq\t1(%rax), %rax\n\tmovq\t%rax, {0}(%rip)\n\tpopq\t%rax",
    "aarch64": "\tstp\tx16, x17, [sp, #-16]!\n\tadrp\tx16, {1}\n\tldr\tx17, [x16, {2}]\n\tadd\tx17, x17, #1\n"
               "\tstr\tx17, [x16, {2}]\n\tldp\tx16, x17, [sp], #16",
}


def _edit_assembly(text: str, checked: bool, machine: str) -> str:
    """Two things no flag does: a gap after each __shared__ array, and a counter at each division."""
    counter = "cuda_divisions_here"
    low12 = (f"{counter}@PAGE", f"{counter}@PAGEOFF") if MACOS else (counter, f":lo12:{counter}")
    count = _COUNT_DIVISION[machine].format(counter, *low12)
    out, in_shared = [], False
    for line in text.splitlines():
        if re.match(r"\s*\.(section|text|data|bss)\b", line):
            in_shared = "cuda_shared" in line
        if checked and _DIVISION.match(line):
            out.append(count)
        out.append(line)
        if in_shared and re.match(r"\s*\.(zero|space)\s", line):
            out.append(f"\t.zero\t{PADDING}")
    section = "\n\t.section\t__DATA,{0}\n" if MACOS else '\n\t.section\t{0},"aw"\n'
    edges = (("cuda_shared", 128), ("cuda_global", mmap.PAGESIZE))
    before, after = ("".join(f"{section.format(n)}\t.balign\t{align}\n{n}_{edge}:\n" for n, align in edges) for edge in ("start", "end"))
    exported = "_cuda_divisions" if MACOS else "cuda_divisions"
    return f"{before}" + "\n".join(out) + f"{after}\n\t.data\n\t.balign\t8\n\t.globl\t{exported}\n{exported}:\n{counter}:\n\t.zero\t8\n"


def _symbols(library: Path):
    """A library's __shared__ arrays and device variables - (name, offset, bytes), first each section as a whole -, its end, all names."""
    command = ["nm", "-n", "-C"] if MACOS else ["nm", "-n", "-S", "-C", "--defined-only"]
    text = subprocess.run([*command, str(library)], capture_output=True, text=True, check=True).stdout
    found = [(m[3], int(m[1], 16), int(m[2] or "0", 16)) for m in re.finditer(r"^([0-9a-f]+)(?: ([0-9a-f]{8,}))? \w (.+)$", text, re.M)]
    if MACOS:  # sizes are not recorded there: what lies between two names, without the gap
        found = [(n.removeprefix("_"), at, max(following - at - PADDING, 1)) for (n, at, _), (_, following, _) in zip(found, found[1:])]
    edges = {name: offset for name, offset, _ in found}

    def section(name):
        low, high = edges.get(f"{name}_start", 0), edges.get(f"{name}_end", 0)
        inside = [(re.sub(r"^.*::|\.\d+$", "", n), at, size) for n, at, size in found
                  if low <= at < high and size and not n.startswith(name)]
        return [(name, low, high - low), *inside] if inside else []

    return section("cuda_shared"), section("cuda_global"), max((at + size for _, at, size in found), default=0), set(edges)


def _compiler_specific(version: str, checked: bool) -> list[str]:
    """No vector instructions and no memcpy for a loop, which would merge accesses; code in the order of the source; indices checked."""
    if "clang" in version.lower():
        return ("-fno-vectorize -fno-slp-vectorize -fno-builtin-memcpy -fno-builtin-memset "
                "-mllvm -tsan-instrument-read-before-write=1 -mllvm -disable-block-placement "
                "-fsanitize=array-bounds,integer-divide-by-zero "
                "-fno-sanitize-recover=array-bounds,integer-divide-by-zero").split() if checked else []
    flags = ["-fno-gnu-unique"]
    if MACHINE == "aarch64":
        flags.append("-fno-section-anchors")  # no address relative to another array's: gaps come between
    if checked:
        flags += ("-fno-tree-vectorize -fno-tree-slp-vectorize -fno-reorder-blocks -fno-thread-jumps "
                  "-fsanitize=bounds,integer-divide-by-zero -fno-sanitize-recover=bounds,integer-divide-by-zero").split()
    return flags


def _user_options(options: tuple[str, ...]) -> tuple[list[str], str]:
    """Of NVRTC's options those that mean something here: include folders, and macros as text (the header must not see them)."""
    folders, macros, options = [], "", list(options)
    while options:
        o = options.pop(0)
        if o in ("-D", "-I", "-U", "--define-macro", "--undefine-macro", "--include-path") and options:
            o += ("=" if o.startswith("--") else "") + options.pop(0)
        o = re.sub("^--(define-macro|undefine-macro|include-path)=", lambda m: {"d": "-D", "u": "-U", "i": "-I"}[m[1][0]], o)
        name, _, value = o[2:].partition("=")
        if o.startswith("-I"):
            folders.append(o)
        elif o.startswith("-D"):
            macros += f"#define {name} {value if '=' in o else 1}\n"
        elif o.startswith("-U"):
            macros += f"#undef {name}\n"
    return folders, macros


@lru_cache
def _headers() -> str:
    return "".join(p.read_text() for p in sorted((HERE / "include").rglob("*")) if p.is_file())


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def worker_program() -> Path:
    """The compiled runtime.cpp, built on first use."""
    with _building:
        return _worker_program()


@lru_cache
def _worker_program() -> Path:
    path, version = compiler()
    sources = [p.read_text() for p in (HERE / "runtime.cpp", *sorted(HERE.glob("*.h")))]
    program = cache_dir() / f"worker-{_hash(version, *sources)}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
            built = Path(folder) / "worker"
            command = [path, "-std=c++17", "-O2", "-rdynamic", *NO_RED_ZONE, str(HERE / "runtime.cpp"), "-o", str(built), "-ldl"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                raise CompileException(run.stderr)
            os.replace(built, program)
    return program


_building = threading.Lock()


# ---------------------------------------------------------------------------------- addresses back to lines


def locate(library: Path, pcs) -> dict[int, tuple[str, int]]:
    """File and line of each of the addresses `pcs` where calls return to: the innermost line that is not the header's.

    Addresses that no line of the .cu file is known for are left out.
    """
    wanted = sorted({pc for pc in pcs if pc} - {pc for file, pc in _places if file == library})
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line") or shutil.which("llvm-symbolizer")
    if wanted and tool:
        command = [tool, "-a", "-i", "-e", str(library), *(hex(pc - 1) for pc in wanted)]
        out = subprocess.run(command, capture_output=True, text=True).stdout
        _places.update({(library, pc): None for pc in wanted})
        for text in out.splitlines():
            if text.startswith("0x"):
                pc = int(text, 16) + 1
                continue
            file, _, line = text.split(" (")[0].rpartition(":")
            in_header = file.startswith(str(HERE / "include")) or "/include/" in file or file.endswith("CUDA_ENTRY")
            if line.isdigit() and int(line) and not in_header and _places.get((library, pc)) is None:
                _places[library, pc] = file.removeprefix(str(cache_dir()) + "/"), int(line)
    return {pc: _places[library, pc] for pc in pcs if _places.get((library, pc))}


_places: dict[tuple[Path, int], tuple[str, int] | None] = {}  # what addr2line said; asking costs 10 ms


def entry_symbol(library: Library, kernel: str) -> int:
    """Number of a kernel's entry; `CUDADriverError` in CuPy's words, with the kernels there are, if there is none."""
    if kernel in library.kernels:
        return library.kernels[kernel]
    there = ", ".join(library.kernels) or "none"
    if kernel in library.source.templates:
        why = f"{kernel} is a template: use RawModule with name_expressions"
    elif kernel in library.source.c_names:
        why = f"the preprocessor leaves {kernel} out; kernels in this source: {there}"
    elif kernel in library.source.signatures:
        why = f'{kernel} is not declared extern "C", so its name is mangled'
    else:
        why = f"kernels in this source: {there}"
    raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found ({why})")

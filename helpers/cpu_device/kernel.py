"""RawKernel and RawModule as CuPy has them, on the CPU device: check the call, launch it, name what went wrong."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass

import numpy as np

from . import compiler
from .array import arena, ndarray
from .counters import KINDS, SPACES, Counters, Row
from .errors import CUDADriverError, KernelError
from .memory import ALIGNMENT, Allocation
from .worker import CHECKED, DESCRIBE, EVENT_DTYPE, INIT_GLOBALS, NO_GLOBALS, PROBLEMS, TRACE, Pool, Request, WorkerDied, pack

MAX_THREADS, MAX_SHARED, DEFAULT_SHARED = 1024, 232_448, 48 << 10
pool = Pool(arena)


@dataclass
class Settings:
    """How launches run.  Change them for a while with `settings(...)`."""

    checked: bool = True         # diagnostics; off: faster, on all cores
    seconds: float = 60.0        # time limit of a launch
    seed: int = 0                # 0: blocks, warps and lanes in order; other: an adverse order
    outputs: tuple = ()          # arrays that the launch must write whole
    trace_limit: int = 0         # accesses to record
    workers: int = os.cpu_count() or 1
    last: Counters | None = None  # counters of the last checked launch


current = Settings()


@contextlib.contextmanager
def settings(**changes):
    """Within `with settings(checked=False):` launches run with the changed `Settings`."""
    before = {name: getattr(current, name) for name in changes}
    for name, value in changes.items():
        setattr(current, name, value)
    try:
        yield current
    finally:
        for name, value in before.items():
            setattr(current, name, value)


class RawModule:
    """CUDA source with several kernels, templates (`name_expressions`) or device variables; see CuPy's RawModule."""

    def __init__(self, *, code=None, path=None, options=(), backend="nvrtc", name_expressions=None, **ignored):
        if code is None:
            raise ValueError("the CPU device needs `code`: a compiled `path` runs on a GPU only")
        if not isinstance(code, str):
            raise TypeError(f"code must be a string of CUDA source, not {type(code).__name__}")
        self.code, self.options, self.name_expressions = code, tuple(options), tuple(name_expressions or ())
        self._libraries: dict[bool, compiler.Library] = {}

    def compile(self, log_stream=None) -> None:
        """Compile now instead of at the first launch."""
        self._library(current.checked)

    def _library(self, checked: bool) -> compiler.Library:
        if checked not in self._libraries:
            marker = re.match(r'\s*#\s*line\s+1\s+"([^"]+)"', self.code)
            self._libraries[checked] = compiler.build(self.code, marker[1] if marker else "kernel.cu", self.options,
                                                      self.name_expressions, checked)
        return self._libraries[checked]

    def get_function(self, name: str) -> "RawKernel":
        """The kernel `name` (or one of the name expressions)."""
        kernel = RawKernel.__new__(RawKernel)
        kernel._set_up(self, name)
        kernel._entry()
        return kernel

    def get_global(self, name: str) -> "DeviceVariable":
        """A pointer to a __device__ or __constant__ variable, for `cp.ndarray(shape, dtype, pointer)`."""
        library = self._library(current.checked)
        for symbol, offset, nbytes in library.variables[1:]:
            if symbol == name:
                _place_variables(library)
                start = library.variables[0][1]
                return DeviceVariable(library.globals_allocation, offset - start, nbytes)
        names = ", ".join(v[0] for v in library.variables[1:]) or "none"
        raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found (device variables in this source: {names})")


class DeviceVariable:
    """What `get_global` returns: some bytes of a module's variables."""

    def __init__(self, allocation: Allocation, offset: int, nbytes: int):
        self.allocation, self.offset, self.nbytes = allocation, offset, nbytes
        self.ptr = allocation.address + offset

    def view(self, shape, dtype) -> np.ndarray:
        return np.ndarray(shape, dtype, buffer=self.allocation.buffer(), offset=self.offset)


class RawKernel:
    """One CUDA kernel: `RawKernel(code, name, options=())`, launched by `kernel(grid, block, args, shared_mem=0)`."""

    def __init__(self, code, name, options=(), backend="nvrtc", translate_cucomplex=False, *, enable_cooperative_groups=False,
                 jitify=False):
        self._set_up(RawModule(code=code, options=options), name)

    def _set_up(self, module: RawModule, name: str) -> None:
        self._module, self.name, self._max_dynamic = module, name, DEFAULT_SHARED
        self._kinds: list[str] | None = None

    code = property(lambda self: self._module.code)
    options = property(lambda self: self._module.options)
    name_expressions = property(lambda self: self._module.name_expressions)

    # --- attributes, as far as a CPU can know them
    num_regs = property(lambda self: None)
    local_size_bytes = property(lambda self: None)
    max_threads_per_block = property(lambda self: MAX_THREADS)

    @property
    def shared_size_bytes(self) -> int:
        """Bytes of the __shared__ arrays of fixed size."""
        return sum(size for _, _, size in self._module._library(current.checked).shared[1:])

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._max_dynamic

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, nbytes: int) -> None:
        if nbytes + self.shared_size_bytes > MAX_SHARED:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: invalid argument: a block has at most {MAX_SHARED:,} bytes (227 KB) of "
                                  f"shared memory; {nbytes:,} dynamic and {self.shared_size_bytes:,} fixed bytes were asked for")
        self._max_dynamic = int(nbytes)

    def compile(self, log_stream=None) -> None:
        """Compile now instead of at the first launch."""
        self._entry()

    def _entry(self) -> tuple[compiler.Library, int]:
        library = self._module._library(current.checked)
        return library, compiler.entry_symbol(library, self.name)

    def __call__(self, grid, block, args, *, shared_mem: int = 0, stream=None, enable_cooperative_groups: bool = False) -> None:
        grid, block = _dimensions(grid, "grid"), _dimensions(block, "block")
        library, entry = self._entry()
        names = library.parameters[self.name]
        if self._kinds is None:
            self._kinds = _describe(library, entry)
        packed = _pack_arguments(self.name, args, self._kinds, names)
        self._check_limits(grid, block, shared_mem)
        arrays = {name or f"argument {i}": a for i, (name, a) in enumerate(zip(names, args)) if isinstance(a, ndarray)}
        _launch(self.name, library, f"cuda_entry_{entry}", grid, block, shared_mem, packed, arrays)

    def _check_limits(self, grid, block, shared_mem: int) -> None:
        threads = block[0] * block[1] * block[2]
        invalid = "CUDA_ERROR_INVALID_VALUE: invalid argument: "
        if threads > MAX_THREADS:
            raise CUDADriverError(f"{invalid}a block has at most {MAX_THREADS} threads, this one {'x'.join(map(str, block))} = {threads}; "
                                  "use more blocks, or let each thread do more")
        if block[2] > 64:
            raise CUDADriverError(f"{invalid}a block has at most 64 threads in z, this one {block[2]}")
        if min(*grid, *block) < 1:
            raise CUDADriverError(f"{invalid}grid {grid} and block {block} need at least 1 in every direction; skip the launch for empty arrays")
        if grid[0] > 2**31 - 1 or max(grid[1:]) > 65_535:
            raise CUDADriverError(f"{invalid}a grid has at most 2,147,483,647 blocks in x and 65,535 in y and z, this one {grid}")
        if shared_mem > self._max_dynamic:
            raise CUDADriverError(f"{invalid}shared_mem={shared_mem:,} is above this kernel's limit of {self._max_dynamic:,} bytes; "
                                  f"set kernel.max_dynamic_shared_size_bytes first (up to {MAX_SHARED:,})")


def _dimensions(value, what: str) -> tuple[int, int, int]:
    if isinstance(value, (int, np.integer)) or not isinstance(value, (tuple, list)):
        raise TypeError(f"{what} must be a tuple of one to three integers, such as (64,), not {value!r}")
    if not 1 <= len(value) <= 3 or any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) for v in value):
        raise TypeError(f"{what} must be a tuple of one to three integers, such as (64,), not {value!r}")
    return tuple(int(v) for v in (*value, 1, 1)[:3])


# ------------------------------------------------------------------------------------------- arguments


def _describe(library: compiler.Library, entry: int) -> list[str]:
    """Kind and size of each parameter: p pointer, i/u integer, f floating, b bool, s struct; e.g. ["p8", "i4"]."""
    request = Request(flags=DESCRIBE, seconds=20)
    outcome = pool.run(request, pack(request, [], [], [], [], str(library.path), f"cuda_describe_{entry}"))[0]
    if outcome.reply.report.problem:
        raise CUDADriverError(outcome.reply.report.text.decode())
    return outcome.printed.split()


def _pack_arguments(kernel: str, args, kinds: list[str], names: list[str]) -> list[bytes]:
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"{kernel}: the arguments must be a tuple, such as (x, y, np.int32(n)), not {type(args).__name__}")
    if len(args) != len(kinds):
        raise TypeError(f"{kernel} takes {len(kinds)} arguments ({', '.join(names)}), but {len(args)} were given")
    packed = []
    for number, (value, kind, name) in enumerate(zip(args, kinds, [*names, *[""] * len(kinds)]), 1):
        packed.append(_pack_argument(value, kind, f"{kernel}, argument {number}" + (f" ({name})" if name else "")))
    return packed


_TYPES = {"i1": "np.int8", "i2": "np.int16", "i4": "np.int32", "i8": "np.int64", "u1": "np.uint8", "u2": "np.uint16",
          "u4": "np.uint32", "u8": "np.uint64", "f4": "np.float32", "f8": "np.float64", "b1": "np.bool_"}


def _pack_argument(value, kind: str, where: str) -> bytes:
    if isinstance(value, np.ndarray) and not (value.ndim == 0 or (value.size == 1 and value.dtype.names)):
        raise TypeError(f"{where}: Unsupported type {type(value)}: the array is on the host; move it with cp.asarray(...)")
    if isinstance(value, ndarray):
        if kind != "p8":
            raise TypeError(f"{where}: an array was passed for a parameter that is no pointer; use {_TYPES.get(kind, 'a value')}")
        if not value.flags.c_contiguous:
            raise ValueError(f"{where}: a view that is not contiguous; the kernel would see its base array in memory order. "
                             "Pass cp.ascontiguousarray(view)")
        return np.uint64(value.data.ptr).tobytes()
    if isinstance(value, DeviceVariable):
        return np.uint64(value.ptr).tobytes()
    if kind == "p8" and not isinstance(value, (int, np.integer)):
        raise TypeError(f"{where}: a pointer parameter needs a device array, not {type(value).__name__}")
    if isinstance(value, bool):
        value = np.bool_(value)
    if isinstance(value, (int, float, complex)) and kind not in ("i8", "u8", "f8", "p8"):
        size = "8 bytes" if isinstance(value, int) else "an 8-byte double"
        raise TypeError(f"{where}: a Python {type(value).__name__} is passed as {size}, but the kernel reads {kind[1]}; "
                        f"write {_TYPES.get(kind, 'a NumPy scalar')}({value})")
    if isinstance(value, (int, float)):
        integer = kind[0] in "iup"
        if integer != isinstance(value, int):
            raise TypeError(f"{where}: a Python {type(value).__name__} for a parameter that wants {_TYPES.get(kind, 'a pointer')}; write {_TYPES.get(kind)}({value})")
        return (np.int64 if integer else np.float64)(value).tobytes()
    if isinstance(value, (np.generic, np.ndarray)):
        data = np.asarray(value)
        wanted = _TYPES.get(kind)
        if data.dtype.names or kind[0] == "s":
            if data.nbytes != int(kind[1:]):
                raise TypeError(f"{where}: the struct has {kind[1:]} bytes, the value {data.nbytes}")
        elif data.nbytes != int(kind[1:]) or {"i": "iu", "u": "iu", "f": "f", "b": "b"}.get(kind[0], "iu").find(data.dtype.kind) < 0:
            raise TypeError(f"{where}: got np.{data.dtype.name}, but the parameter wants {wanted}; write {wanted}(...)")
        return data.tobytes()
    raise TypeError(f"{where}: Unsupported type {type(value)}")


# --------------------------------------------------------------------------------------------- launching


def _place_variables(library: compiler.Library) -> bool:
    """Give the module's device variables a home in the arena; True the first time."""
    if not library.variables or library.globals_at is not None:
        return False
    nbytes = library.variables[0][2]
    library.globals_allocation = arena.allocate(nbytes + 4096, initialized=True)
    library.globals_at = -(-library.globals_allocation.offset // 4096) * 4096
    home = Allocation.__new__(Allocation)
    home.arena, home.offset, home.nbytes, home.initialized = arena, library.globals_at, nbytes, True
    home.owner = library.globals_allocation
    library.globals_allocation = home
    request = Request(flags=DESCRIBE, seconds=20)  # load it once, so that the initial values are there
    request = _request(library, (1, 1, 1), (1, 1, 1), 0)
    request.flags |= INIT_GLOBALS
    request.grid[0] = 0  # no block runs
    pool.run(request, pack(request, [], [], [v[1:] for v in library.variables], [], str(library.path), "cuda_entry_0"))
    return True


def _request(library, grid, block, shared_mem) -> Request:
    request = Request(shared_bytes=shared_mem, seconds=current.seconds, seed=current.seed, trace_limit=current.trace_limit,
                      library_bytes=library.bytes, globals_at=NO_GLOBALS if library.globals_at is None else library.globals_at,
                      flags=(CHECKED if current.checked else 0) | (TRACE if current.trace_limit else 0))
    request.grid[:], request.block[:] = grid, block
    return request


def _launch(kernel, library, entry, grid, block, shared_mem, packed, arrays: dict[str, ndarray]) -> None:
    _place_variables(library)
    request = _request(library, grid, block, shared_mem)
    outputs = {id(a._allocation) for a in current.outputs}
    live = sorted((a for a in arena.live if a.nbytes), key=lambda a: a.offset)
    table = [(a.offset, a.nbytes, a.initialized, id(a) in outputs) for a in live]
    payload = pack(request, table, [s[1:] for s in library.shared], [v[1:] for v in library.variables], packed,
                   str(library.path), entry)
    blocks = grid[0] * grid[1] * grid[2]
    count = 1 if current.checked or current.seed else min(current.workers, blocks)
    try:
        outcomes = pool.run(request, payload, count)
    except WorkerDied:
        raise KernelError(f"{kernel}: the kernel ended its process without a word; run it checked to see why", "crash") from None
    printed = "".join(o.printed for o in outcomes)
    if printed:
        sys.stdout.write(printed)
    if not current.checked:  # nobody watched what was written: call it all written
        for array in arrays.values():
            array._allocation.initialized = True
    names = _names(live, arrays)
    for outcome in outcomes:
        if outcome.reply.report.problem:
            raise _explain(kernel, library, outcome.reply.report, live, names, arrays, block)
    if current.checked:
        current.last = _counters(library, outcomes[0], live, names, block)


def _names(live: list[Allocation], arrays: dict[str, ndarray]) -> dict[int, str]:
    """Index in the array table -> the parameter it was passed for."""
    by_id = {}
    for name, array in arrays.items():
        by_id.setdefault(id(array._allocation), name)
    return {i: by_id[id(a)] for i, a in enumerate(live) if id(a) in by_id}


def _counters(library, outcome, live, names, block) -> Counters:
    rows = []
    for r in outcome.rows:
        at = compiler.locate(library.path, r.pc)
        space = SPACES[r.space]
        if space == "global":
            array = names.get(r.array, "another array")
        elif space == "shared":
            array = library.shared[r.array][0] if r.array > 0 else "dynamic shared memory"
        else:
            array = library.variables[r.array][0] if space == "variable" else space
        rows.append(Row(at and at[1], at and at[0], "global" if space == "variable" else space, KINDS[r.kind], array, r.bytes_each,
                        r.instructions, r.requests, r.bytes, r.sectors, r.wavefronts, r.extra_wavefronts))
    reply = outcome.reply
    events = None
    if outcome.events:
        events = np.frombuffer(outcome.events, dtype=np.dtype(EVENT_DTYPE, align=True)).copy()
        for i, a in enumerate(live):  # addresses become byte offsets in their arrays
            mine = (events["space"] == 0) & (events["array"] == i)
            events["address"][mine] -= np.uint64(a.address)
    counters = Counters(rows, reply.barriers, reply.collectives, reply.exps, reply.logs, reply.divisions, reply.blocks,
                        reply.blocks * block[0] * block[1] * block[2], events)
    counters.array_names = names
    return counters


# ------------------------------------------------------------------------------------------ explaining


def _explain(kernel, library, report, live, names, arrays, block) -> Exception:
    """The exception for a worker's report: one sentence, where, and the line itself."""
    problem = PROBLEMS[report.problem]
    if problem == "load_failed":
        return CUDADriverError(f"{kernel} could not be loaded: {report.text.decode()}")
    at = (report.file.decode(), report.line) if report.line else compiler.locate(library.path, report.pc)
    other_at = ((report.other_file.decode(), report.other_line) if report.other_line
                else compiler.locate(library.path, report.other_pc))
    array, index, described = _describe_place(library, report, live, names, arrays)
    verb = {"load": "reads", "store": "writes", "atomic": "updates"}[KINDS[report.kind if 0 <= report.kind < 3 else 0]]
    thread, who = tuple(report.thread), f"thread {_triple(report.thread)}"
    other = f"thread {_triple(report.other_thread)}"
    on_other = f" (line {other_at[1]})" if other_at else ""
    did = {0: "read", 1: "wrote", 2: "updated"}.get(report.other_kind, "touched")
    element = f"{array}[{index}]" if index is not None else (array or "memory")
    text = report.text.decode()
    sentence = {
        "out_of_bounds": f"out of bounds: {who} {verb} {element}, but {described}",
        "misaligned": f"misaligned: {who} {verb} {report.bytes} bytes at {element}, whose address is no multiple of {report.bytes}",
        "uninitialized": f"uninitialized: {who} reads {element}, which nothing has written",
        "race": f"race: {who} {verb} {element}, which {other} {did}{on_other}, with no barrier between",
        "block_race": f"race between blocks: {who} of block {_triple(report.block)} {verb} {element}, which another block wrote{on_other} "
                      "in the same launch; blocks run in any order, so use atomics or give each block its own elements",
        "barrier": f"barrier: {who} waits, but {other} {text if 'another' not in text else 'waits at another barrier'}{on_other if 'another' in text else ''}: "
                   "not all threads of the block reach it",
        "collective": f"warp: {who} {text}" + (f" ({other}{', line ' + str(report.other_line) if report.other_line else ''})" if "somewhere" in text else ""),
        "trap": text,
        "timeout": f"time limit: the kernel still ran after {current.seconds:g} s (an endless loop?); {who} was running",
        "stack_overflow": f"stack overflow: {who} recursed without end, or has arrays too large for its stack",
        "crash": f"crash: {who} accessed address {report.address:#x}, which belongs to no array (signal {report.signal})",
        "unwritten": f"unwritten: the launch left {report.bytes // _itemsize(arrays, array):,} elements of {array} unwritten, the first is {element}",
    }[problem]
    message = f"{kernel}: {sentence}"
    if problem == "unwritten":
        return KernelError(message, problem, array=array, index=index)
    if at:
        line = library.source.line(*at)
        message += f"\n  at {at[0]}:{at[1]}, block {_triple(report.block)}, {who}" + (f"\n    {line}" if line else "")
    return KernelError(message, problem, file=at and at[0], line=at and at[1], thread=thread, block=tuple(report.block), array=array,
                       index=index, other_line=other_at and other_at[1], other_thread=tuple(report.other_thread))


def _triple(v) -> str:
    return f"({v[0]},{v[1]},{v[2]})"


def _itemsize(arrays, name) -> int:
    return arrays[name].itemsize if name in arrays else 1


def _describe_place(library, report, live, names, arrays) -> tuple[str | None, int | None, str]:
    """(array, element index, what it holds) for a report's address."""
    space = SPACES[report.space] if 0 <= report.space < len(SPACES) else "other"
    if space == "global":
        return _global_place(report, live, names, arrays)
    if space in ("shared", "variable") and report.array != -2:
        table = (library.shared if space == "shared" else library.variables)[1:]
        if table:
            before = [s for s in table if s[1] <= report.address] or table[:1]
            name, offset, nbytes = before[-1]
            size = max(1, min(int(report.bytes), 4)) if report.bytes else 1
            kind = "shared" if space == "shared" else "device"
            return name, (report.address - offset) // size, f"the {kind} array {name} holds {nbytes:,} bytes ({nbytes // size} elements of {size})"
    if space == "shared":
        size = max(1, min(int(report.bytes), 4))
        return "shared memory", report.address // size, f"the launch gave {report.array and ''}shared_mem bytes for it that end before"
    return None, None, "that address belongs to no array"


def _global_place(report, live, names, arrays):
    offset = report.address - arena.base
    distance = {i: max(a.offset - offset, offset + report.bytes - a.offset - a.nbytes, 0) for i, a in enumerate(live)}
    if not distance:
        return None, None, "there is no array at all"
    nearest = min(distance, key=lambda i: (distance[i], i not in names))
    allocation, name = live[nearest], names.get(nearest, "an array that was not passed")
    if distance[nearest] > (1 << 30):
        return None, None, "that address belongs to no array"
    array = arrays.get(name)
    itemsize = array.itemsize if array is not None else max(1, int(report.bytes))
    start = array.data.ptr - arena.base if array is not None else allocation.offset
    held = allocation.nbytes // itemsize
    kind = f"{array.dtype} (shape {array.shape})" if array is not None else "elements"
    return name, (offset - start) // itemsize, f"{name} holds {held:,} {kind}"

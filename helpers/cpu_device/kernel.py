"""RawKernel and RawModule as CuPy has them, on the CPU device: check the call, launch it, name what went wrong."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import compiler
from .array import arena, ndarray
from .counters import Counters
from .errors import CUDADriverError, KernelError
from .explain import Launch, counters, explain
from .memory import ARENA_BYTES, PAGE, Allocation
from .worker import (
    CHECKED,
    DESCRIBE,
    INIT_GLOBALS,
    INITIALIZED,
    NO_GLOBALS,
    PASSED,
    READ_ONLY,
    TRACE,
    WANTS_WRITTEN,
    Pool,
    Request,
    WorkerDied,
    pack,
)

MAX_THREADS, MAX_SHARED, DEFAULT_SHARED = 1024, 232_448, 48 << 10
pool = Pool(arena)
_lock = threading.RLock()  # one launch at a time


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    pool.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass
class Settings:
    """How launches run.  Change them for a while with `settings(...)`."""

    checked: bool = True         # diagnostics; off: faster, on all cores
    seconds: float = 60.0        # time limit of a launch
    seed: int = 0                # 0: blocks, warps and lanes in order; other: an adverse order
    outputs: tuple = ()          # arrays that the launch must write whole
    trace_limit: int = 0         # accesses to record
    workers: int = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    _last: Callable[[], Counters] | Counters | None = None

    @property
    def last(self) -> Counters | None:
        """Counters of the last checked launch; they are put together when first asked for."""
        if callable(self._last):
            self._last = self._last()
        return self._last


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
        self._from_macros: tuple[str, ...] = ()

    def compile(self, log_stream=None) -> None:
        """Compile now instead of at the first launch."""
        self._library(current.checked)

    def _library(self, checked: bool) -> compiler.Library:
        if checked not in self._libraries:
            marker = re.match(r'\s*#\s*line\s+1\s+"([^"]+)"', self.code)
            self._libraries[checked] = compiler.build(self.code, marker[1] if marker else "kernel.cu", self.options,
                                                      self.name_expressions + self._from_macros, checked)
        return self._libraries[checked]

    def _entry(self, name: str) -> tuple[compiler.Library, int]:
        """The library and the number of kernel `name`; `CUDADriverError` that lists what there is."""
        library = self._library(current.checked)
        if name not in library.kernels and name not in library.source.signatures and re.fullmatch(r"\w+", name):
            try:  # perhaps a macro writes it: then only the compiler can say
                names = self.name_expressions + self._from_macros + (name,)
                with_it = compiler.build(self.code, library.name, self.options, names, current.checked)
            except compiler.CompileException:
                pass
            else:
                self._from_macros += (name,)
                self._libraries = {current.checked: with_it}
                library = with_it
        return library, compiler.entry_symbol(library, name)

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
                return DeviceVariable(library.globals_allocation, library.globals_at + offset - start, nbytes)
        names = ", ".join(v[0] for v in library.variables[1:]) or "none"
        raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found (device variables in this source: {names})")


class DeviceVariable:
    """What `get_global` returns: some bytes of a module's variables."""

    def __init__(self, allocation: Allocation, offset: int, nbytes: int):
        self.allocation, self.offset, self.nbytes = allocation, offset, nbytes
        self.ptr = arena.base + offset

    def view(self, shape, dtype) -> np.ndarray:
        return np.ndarray(shape, dtype, buffer=arena.bytes_at(self.offset, self.nbytes))


class RawKernel:
    """One CUDA kernel: `RawKernel(code, name, options=())`, launched by `kernel(grid, block, args, shared_mem=0)`."""

    def __init__(self, code, name, options=(), backend="nvrtc", translate_cucomplex=False, *, enable_cooperative_groups=False,
                 jitify=False):
        self._set_up(RawModule(code=code, options=options), name)

    def _set_up(self, module: RawModule, name: str) -> None:
        self._module, self.name = module, name
        self._max_dynamic: int | None = None  # as set by the reader
        self._kinds: list[str] | None = None

    code = property(lambda self: self._module.code)
    options = property(lambda self: self._module.options)
    name_expressions = property(lambda self: self._module.name_expressions)

    # --- attributes, as far as a CPU can know them
    num_regs = property(lambda self: None)
    local_size_bytes = property(lambda self: None)
    const_size_bytes = property(lambda self: None)
    max_threads_per_block = property(lambda self: MAX_THREADS)

    @property
    def attributes(self) -> dict:
        """What CuPy lists; None where only a GPU's compiler knows."""
        return {name: getattr(self, name) for name in ("max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes",
                                                       "num_regs", "max_dynamic_shared_size_bytes")}

    @property
    def shared_size_bytes(self) -> int:
        """Bytes of the __shared__ arrays of fixed size."""
        return sum(size for _, _, size in self._module._library(current.checked).shared[1:])

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Bytes that shared_mem= may ask for: 48 KB less the arrays of fixed size, unless set (up to 227 KB with them)."""
        return DEFAULT_SHARED - self.shared_size_bytes if self._max_dynamic is None else self._max_dynamic

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
        return self._module._entry(self.name)

    def __call__(self, grid, block, args, *, shared_mem: int = 0, stream=None, enable_cooperative_groups: bool = False) -> None:
        grid, block = _dimensions(grid, "grid"), _dimensions(block, "block")
        library, entry = self._entry()
        names = library.parameters[self.name]
        if self._kinds is None:
            self._kinds = _describe(library, entry)
        packed = _pack_arguments(self.name, args, self._kinds, names)
        self._check_limits(grid, block, shared_mem)
        _launch(self.name, library, f"cuda_entry_{entry}", grid, block, shared_mem, packed, self._kinds, args, names)

    def _check_limits(self, grid, block, shared_mem: int) -> None:
        threads = block[0] * block[1] * block[2]
        invalid = "CUDA_ERROR_INVALID_VALUE: invalid argument: "
        if threads > MAX_THREADS:
            raise CUDADriverError(f"{invalid}a block has at most {MAX_THREADS} threads, this one {'x'.join(map(str, block))} = {threads}; "
                                  "use more blocks, or let each thread do more")
        if block[2] > 64:
            raise CUDADriverError(f"{invalid}a block has at most 64 threads in z, this one {block[2]}")
        if min(*grid, *block) < 1:
            raise CUDADriverError(f"{invalid}grid {grid} and block {block} need at least 1 in every direction; "
                                  "skip the launch for empty arrays")
        if grid[0] > 2**31 - 1 or max(grid[1:]) > 65_535:
            raise CUDADriverError(f"{invalid}a grid has at most 2,147,483,647 blocks in x and 65,535 in y and z, this one {grid}")
        if not 0 <= shared_mem <= self.max_dynamic_shared_size_bytes:
            raise CUDADriverError(f"{invalid}shared_mem={shared_mem:,} is not within this kernel's "
                                  f"{self.max_dynamic_shared_size_bytes:,} bytes; "
                                  f"set kernel.max_dynamic_shared_size_bytes first (up to {MAX_SHARED:,})")


def _dimensions(value, what: str) -> tuple[int, int, int]:
    if isinstance(value, (int, np.integer)) or not isinstance(value, (tuple, list)):
        raise TypeError(f"{what} must be a tuple of one to three integers, such as (64,), not {value!r}")
    if not 1 <= len(value) <= 3 or any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) for v in value):
        raise TypeError(f"{what} must be a tuple of one to three integers, such as (64,), not {value!r}")
    return tuple(int(v) for v in (*value, 1, 1)[:3])


# ------------------------------------------------------------------------------------------- arguments


def _describe(library: compiler.Library, entry: int) -> list[str]:
    """Kind and size of each parameter: p pointer (c: to const), i/u integer, f floating, b bool, s struct; e.g. ["p8", "i4"]."""
    request = Request(flags=DESCRIBE, seconds=20)
    with _lock:
        outcome = pool.run(request, pack(request, [], [], [], [], str(library.path), f"cuda_describe_{entry}"))[0]
    if outcome.reply.report.problem:
        raise CUDADriverError(outcome.reply.report.text.decode())
    return outcome.printed.split()


def _pack_arguments(kernel: str, args, kinds: list[str], names: list[str]) -> list[bytes]:
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"{kernel}: the arguments must be a tuple, such as (x, y, np.int32(n)), not {type(args).__name__}")
    if len(args) != len(kinds):
        listed = f" ({', '.join(names)})" if names else ""
        raise TypeError(f"{kernel} takes {len(kinds)} arguments{listed}, but {len(args)} were given")
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
        if kind[0] not in "pc":
            raise TypeError(f"{where}: an array was passed for a parameter that is no pointer; use {_TYPES.get(kind, 'a value')}")
        if not value.flags.c_contiguous:
            raise ValueError(f"{where}: a view that is not contiguous; the kernel would see its base array in memory order. "
                             "Pass cp.ascontiguousarray(view)")
        return np.uint64(value.data.ptr).tobytes()
    if isinstance(value, DeviceVariable):
        return np.uint64(value.ptr).tobytes()
    if kind[0] in "pc" and not isinstance(value, (int, np.integer)):
        raise TypeError(f"{where}: a pointer parameter needs a device array, not {type(value).__name__}")
    if isinstance(value, bool):
        value = np.bool_(value)
    plain = not isinstance(value, np.generic)  # np.float64 is a float
    if plain and isinstance(value, (int, float, complex)) and kind not in ("i8", "u8", "f8", "p8", "c8"):
        size = "8 bytes" if isinstance(value, int) else "an 8-byte double"
        raise TypeError(f"{where}: a Python {type(value).__name__} is passed as {size}, but the kernel reads {kind[1]}; "
                        f"write {_TYPES.get(kind, 'a NumPy scalar')}({value})")
    if plain and isinstance(value, (int, float)):
        integer = kind[0] in "iupc"
        if integer != isinstance(value, int):
            wanted = _TYPES.get(kind, "a device array")
            raise TypeError(f"{where}: a Python {type(value).__name__} for a parameter that wants {wanted}; write {wanted}({value})")
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


def _place_variables(library: compiler.Library) -> None:
    """Give the module's device variables a home in the arena, with their initial values."""
    if not library.variables or library.globals_at is not None:
        return
    nbytes = library.variables[0][2]
    allocation = arena.allocate(nbytes + PAGE, initialized=True)
    library.globals_at = -(-allocation.offset // PAGE) * PAGE
    library.globals_allocation = allocation
    request = _request(library, (0, 1, 1), (1, 1, 1), 0)  # no block runs
    request.flags |= INIT_GLOBALS
    pool.run(request, pack(request, [], [], [v[1:] for v in library.variables], [], str(library.path), "cuda_entry_0"))


def _request(library, grid, block, shared_mem) -> Request:
    request = Request(shared_bytes=shared_mem, seconds=current.seconds, seed=current.seed, trace_limit=current.trace_limit,
                      library_bytes=library.bytes, globals_at=NO_GLOBALS if library.globals_at is None else library.globals_at,
                      flags=(CHECKED if current.checked else 0) | (TRACE if current.trace_limit else 0))
    request.grid[:], request.block[:] = grid, block
    return request


def _launch(kernel, library, entry, grid, block, shared_mem, packed, kinds, args, names) -> None:
    arrays = {name or f"argument {i}": a for i, (name, a) in enumerate(zip([*names, *[""] * len(args)], args), 1) if isinstance(a, ndarray)}
    with _lock:
        _place_variables(library)
        live = [a for a in arena.live() if a.nbytes]
        flags = _flags(live, kinds, packed, args, library)
        request = _request(library, grid, block, shared_mem)
        payload = pack(request, [(a.offset, a.nbytes, f) for a, f in zip(live, flags)], [s[1:] for s in library.shared],
                       [v[1:] for v in library.variables], packed, str(library.path), entry)
        count = 1 if current.checked or current.seed else min(current.workers, grid[0] * grid[1] * grid[2])
        try:
            outcomes = pool.run(request, payload, count)
        except WorkerDied:
            raise KernelError(f"{kernel}: the kernel ended its process without a word; run it checked to see why", "crash") from None
        finally:
            if not current.checked:  # nobody watched what was written: call it all written
                for array in arrays.values():
                    array._allocation.initialized = True
        launch = Launch(kernel, library, block, shared_mem, current.seconds, live, arrays)
        printed = "".join(o.printed for o in outcomes)
        if printed:
            sys.stdout.write(printed)
        for outcome in outcomes:
            if outcome.reply.report.problem:
                raise explain(launch, outcome.reply.report)
        if current.checked:
            current._last = lambda: counters(launch, outcomes[0])


def _flags(live: list[Allocation], kinds: list[str], packed: list[bytes], args, library) -> list[int]:
    """Of each array: has it been written, must this launch write it, was the launch given it, can the launch only read it?

    Given are the arrays that an argument points to or into - itself, in a struct, or in a table of pointers in memory.
    """
    pointers = [np.frombuffer(value, np.uint64) for value in packed if len(value) % 8 == 0]
    pointers += [a._host.ravel().view(np.uint64) for a in args if isinstance(a, ndarray) and a.dtype.kind in "iu" and a.itemsize == 8]
    writable = [p for kind, p in zip(kinds, packed) if kind[0] != "c" and len(p) % 8 == 0]
    if library.globals_at is not None:
        nbytes = library.variables[0][2]
        home = np.frombuffer(arena.bytes_at(library.globals_at, nbytes // 8 * 8), np.uint64)
        pointers.append(home)
        writable.append(home.tobytes())
    starts = np.array([a.offset for a in live], np.int64)

    def among(words) -> set[int]:
        offsets = np.concatenate([*words, np.empty(0, np.uint64)]) - np.uint64(arena.base)
        offsets = offsets[offsets < ARENA_BYTES].astype(np.int64)
        found = np.searchsorted(starts, offsets, "right") - 1
        return set(found[found >= 0].tolist())

    given = among(pointers)
    written = among([np.frombuffer(b, np.uint64) for b in writable])
    wanted = {id(a._allocation) for a in current.outputs}
    return [INITIALIZED * bool(a.initialized) | WANTS_WRITTEN * (id(a) in wanted) | PASSED * (i in given or a is library.globals_allocation)
            | READ_ONLY * (i in given and i not in written) for i, a in enumerate(live)]

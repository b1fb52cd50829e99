"""A worker's report in words: the exception that names line, thread, array and index; and the counters of a launch."""

from __future__ import annotations

import numpy as np

from . import compiler
from .array import arena
from .counters import KINDS, SPACES, Counters, Row
from .errors import CUDADriverError, KernelError
from .worker import EVENT_DTYPE, PROBLEMS


class Launch:
    """What has to be remembered of a launch to explain it: kernel name, library, block, limits, and which arrays lay where."""

    def __init__(self, kernel, library, block, shared_mem, seconds, live, arrays):
        self.kernel, self.library, self.block, self.shared_mem, self.seconds = kernel, library, block, shared_mem, seconds
        self.extents = [(a.offset, a.nbytes) for a in live]
        self.names: dict[int, str] = {}  # index in the table of arrays -> the parameter it was passed for
        self.looks: dict[str, tuple] = {name: (a.data.ptr - arena.base, a.dtype, a.shape) for name, a in arrays.items()}
        by_allocation = {}
        for name, array in arrays.items():
            by_allocation.setdefault(id(array._allocation), name)
        self.names = {i: by_allocation[id(a)] for i, a in enumerate(live) if id(a) in by_allocation}


# ------------------------------------------------------------------------------------------- counters


def counters(launch: Launch, outcome) -> Counters:
    """The counters and the access map of a launch that went well."""
    places = compiler.locate(launch.library.path, [r.pc for r in outcome.rows])
    rows = []
    for r in outcome.rows:
        file, line = places.get(r.pc, (None, None))
        space, array = SPACES[r.space], _array_name(launch, r.space, r.array)
        rows.append(Row(line, file, "global" if space == "variable" else space, KINDS[r.kind], array, r.bytes_each,
                        r.instructions, r.requests, r.bytes, r.sectors, r.wavefronts, r.extra_wavefronts))
    events = None
    if outcome.events:
        events = np.frombuffer(outcome.events, dtype=EVENT_DTYPE).copy()
        for i in np.unique(events["array"][events["space"] == 0]):  # addresses become byte offsets in their arrays
            mine = (events["space"] == 0) & (events["array"] == i)
            events["address"][mine] -= np.uint64(arena.base + launch.extents[i][0])
    reply, threads = outcome.reply, launch.block[0] * launch.block[1] * launch.block[2]
    result = Counters(rows, reply.barriers, reply.collectives, reply.exps, reply.logs, reply.divisions, reply.blocks,
                      reply.blocks * threads, events)
    result.array_names = launch.names
    return result


def _array_name(launch: Launch, space: int, index: int) -> str:
    name = SPACES[space]
    if name == "global":
        return launch.names.get(index, "another array")
    if name == "shared":
        return launch.library.shared[index][0] if index > 0 else launch.library.source.dynamic_name
    return launch.library.variables[index][0] if name == "variable" else name


# ----------------------------------------------------------------------------------------- exceptions


def explain(launch: Launch, report) -> Exception:
    """The exception for a report: one sentence that says what, then where, then the line itself."""
    problem = PROBLEMS[report.problem]
    text = report.text.decode(errors="replace")
    if problem == "load_failed":
        return CUDADriverError(f"{launch.kernel} could not be loaded: {text}")
    at, other_at = _lines(launch, report, problem)
    place = _own_array(launch, report, text, at) if report.space == SPACES.index("local") and text else _place(launch, report)
    message = f"{launch.kernel}: {_sentence(launch, report, problem, place, text, other_at)}"
    if problem == "unwritten":
        return KernelError(message, problem, array=place.array, index=place.index)
    if at:
        line = launch.library.source.line(*at)
        message += f"\n  at {at[0]}:{at[1]}, block {_triple(report.block)}, thread {_triple(report.thread)}"
        message += f"\n    {line}" if line else ""
    has_other = problem in ("race", "block_race", "barrier") or (problem == "collective" and any(report.other_file))
    return KernelError(message, problem, file=at and at[0], line=at and at[1], thread=tuple(report.thread), block=tuple(report.block),
                       array=place.array, index=place.index, other_line=other_at and other_at[1],
                       other_thread=tuple(report.other_thread) if has_other and list(report.other_thread) != list(report.thread) else None)


def _lines(launch: Launch, report, problem: str):
    """(file, line) of the problem and of the other access; each may be None."""
    pcs = [report.pc, report.other_pc, *report.callers]
    found = compiler.locate(launch.library.path, pcs)
    at = (report.file.decode(), report.line) if report.line else found.get(report.pc)
    other = (report.other_file.decode(), report.other_line) if report.other_line else found.get(report.other_pc)
    if problem in ("timeout", "crash", "stack_overflow"):  # stopped anywhere: the innermost call that has a line
        return at or next((found[pc] for pc in pcs if pc in found), None), None
    return at, other


def _sentence(launch: Launch, report, problem: str, place: "_Place", text: str, other_at) -> str:
    who, other = f"thread {_triple(report.thread)}", f"thread {_triple(report.other_thread)}"
    verb = {"load": "reads", "store": "writes", "atomic": "updates"}[KINDS[report.kind if 0 <= report.kind < 3 else 0]]
    did = ("read", "wrote", "updated")[report.other_kind] if 0 <= report.other_kind < 3 else "touched"
    on_line = f" (line {other_at[1]})" if other_at else ""
    if list(report.thread) == list(report.other_thread) and problem == "race":
        other = "another thread"
    if problem == "out_of_bounds":
        return f"out of bounds: {who} {verb} {place}, but {place.holds}"
    if problem == "misaligned":
        return (f"misaligned: {who} {verb} {report.bytes} bytes at {place}, but the address of a {report.bytes}-byte access must be a "
                f"multiple of {report.bytes}")
    if problem == "uninitialized":
        return f"uninitialized: {who} {verb} {place}, which nothing has written"
    if problem == "race":
        return f"race: {who} {verb} {place}, which {other} {did}{on_line}, with no barrier between"
    if problem == "block_race":
        return (f"race between blocks: {who} of block {_triple(report.block)} {verb} {place}, which another block {did}{on_line} in the "
                "same launch; blocks run in any order, so use atomics or give each block its own elements")
    if problem == "barrier":
        why = f"waits at another barrier{on_line}" if other_at else "returned before this barrier"
        return f"barrier: {who} waits, but {other} {why}: not all threads of the block reach it"
    if problem == "collective":
        return f"warp: {who} {text}" + (f" ({other}{on_line})" if any(report.other_file) else "")
    if problem == "trap":
        return text
    if problem == "timeout":
        return (f"time limit: the kernel still ran after {launch.seconds:g} s (an endless loop?); {who} was running. "
                "settings(seconds=...) of helpers.cpu_device sets the limit")
    if problem == "stack_overflow":
        return f"stack overflow: {who} recursed without end, or has arrays too large for its stack"
    if problem == "unwritten":
        return f"unwritten: the launch left {report.bytes // place.itemsize:,} elements of {place.array} unwritten, the first is {place}"
    if report.signal == 8:
        return f"crash: {who} divides an integer by zero"
    return f"crash: {who} uses address {report.address:#x}, {_no_array(report.address)} (signal {report.signal})"


class _Place:
    """An element of an array, in words: `array`, `index`, and what the array holds."""

    def __init__(self, array=None, index=None, holds="", itemsize=1, shape=None):
        self.array, self.index, self.holds, self.itemsize, self.shape = array, index, holds, itemsize, shape

    def __str__(self):
        if self.array is None:
            return "memory"
        if self.shape is not None and len(self.shape) > 1 and 0 <= self.index < np.prod(self.shape):
            return f"{self.array}[{', '.join(map(str, np.unravel_index(self.index, self.shape)))}]"
        return f"{self.array}[{self.index}]" if self.index is not None else self.array


def _place(launch: Launch, report) -> _Place:
    """Which element a report's address is."""
    space = SPACES[report.space] if 0 <= report.space < len(SPACES) else "other"
    access, source = max(1, int(report.bytes)), launch.library.source
    if space == "global":
        return _global_place(launch, report)
    if space == "shared" and report.array == -2:
        name = source.dynamic_name
        size = source.element_bytes.get(name) or min(access, 4)
        return _Place(name, _signed(report.address) // size, f"shared_mem={launch.shared_mem} gave this launch {launch.shared_mem:,} bytes "
                      f"of dynamic shared memory ({launch.shared_mem // size} elements of {size})", size)
    if space in ("shared", "variable"):
        table = (launch.library.shared if space == "shared" else launch.library.variables)[1:]
        nearest = min(table, key=lambda s: max(s[1] - report.address, report.address - s[1] - s[2] + 1, 0))
        name, offset, nbytes = nearest
        size = source.element_bytes.get(name) or min(access, nbytes)
        kind = "shared" if space == "shared" else "device"
        return _Place(name, (report.address - offset) // size,
                      f"the {kind} array {name} holds {nbytes // size} elements of {size} bytes", size)
    if space == "local":
        return _Place(holds="that is another thread's local memory")
    return _Place(holds=f"address {report.address:#x} is {_no_array(report.address)}")


def _own_array(launch: Launch, report, type_name: str, at) -> _Place:
    """An array whose size the compiler knows: its name is what stands before a bracket in that line."""
    type_name = type_name.strip("'")
    line = launch.library.source.line(*at) if at else ""
    names = launch.library.source.arrays_in(line)
    index = _signed(report.address)
    return _Place(names[0] if names else "an array", index, f"its type is {type_name}")


def _global_place(launch: Launch, report) -> _Place:
    offset, end = report.address - arena.base, report.address - arena.base + report.bytes
    distance = {i: max(start - offset, end - start - n, 0) for i, (start, n) in enumerate(launch.extents)}
    nearest = min(distance, key=lambda i: (distance[i], i not in launch.names), default=None)
    if nearest is None or distance[nearest] > 1 << 30:
        return _Place(holds="that address is far from every array")
    if nearest not in launch.names:
        inside = "lies in an array that" if not distance[nearest] else "is nearest to an array that"
        return _Place(holds=f"that address {inside} was not passed to this launch")
    name = launch.names[nearest]
    start, dtype, shape = launch.looks[name]
    held = launch.extents[nearest][1] // dtype.itemsize
    return _Place(name, (offset - start) // dtype.itemsize,
                  f"{name} holds {held:,} {dtype}" + (f", shape {tuple(shape)}" if len(shape) > 1 else ""), dtype.itemsize, shape)


def _no_array(address: int) -> str:
    return "a null pointer" if address < 1 << 16 else "which belongs to no array"


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _triple(v) -> str:
    return f"({v[0]},{v[1]},{v[2]})"

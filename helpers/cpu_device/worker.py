"""The Python end of runtime.cpp: start workers, send a launch, read what happened, survive whatever a kernel does."""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import struct
import subprocess
import time
from dataclasses import dataclass

import numpy as np

from . import compiler
from .errors import CUDADriverError
from .memory import ARENA_BYTES, Arena

CHECKED, TRACE, INIT_GLOBALS, SHARE_BLOCKS, DESCRIBE = 1, 2, 4, 8, 16  # flags of a request
INITIALIZED, WANTS_WRITTEN, PASSED, READ_ONLY = 1, 2, 4, 8  # flags of an array
NO_GLOBALS = 2**64 - 1


class Request(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                *((name, ctypes.c_uint32) for name in ("shared_bytes", "argument_bytes", "arrays", "shared_symbols",
                                                       "variables", "flags", "seed", "trace_limit")),
                ("seconds", ctypes.c_double), ("globals_at", ctypes.c_uint64), ("library_bytes", ctypes.c_uint64),
                ("library_chars", ctypes.c_uint32), ("entry_chars", ctypes.c_uint32)]


class Report(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int32) for name in ("problem", "space", "array", "kind")),
                *((name, ctypes.c_uint64) for name in ("address", "bytes", "pc", "other_pc")), ("callers", ctypes.c_uint64 * 8),
                ("thread", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("other_thread", ctypes.c_uint32 * 3),
                *((name, ctypes.c_int32) for name in ("line", "other_line", "other_kind", "signal")),
                ("file", ctypes.c_char * 256), ("other_file", ctypes.c_char * 256), ("text", ctypes.c_char * 512)]


class Reply(ctypes.Structure):
    _fields_ = [("report", Report), *((name, ctypes.c_uint64) for name in (
        "barriers", "collectives", "exps", "logs", "divisions", "blocks", "rows", "events", "printed", "ended"))]


class CounterRow(ctypes.Structure):
    _fields_ = [("pc", ctypes.c_uint64), *((name, ctypes.c_int32) for name in ("space", "kind", "array", "bytes_each")),
                *((name, ctypes.c_uint64) for name in (
                    "instructions", "requests", "bytes", "sectors", "wavefronts", "extra_wavefronts"))]


EVENT_DTYPE = np.dtype([("step", "u4"), ("block", "u4"), ("array", "i4"), ("thread", "u2"), ("bytes", "u2"), ("kind", "u1"),
                        ("space", "u1"), ("address", "u8")], align=True)


@dataclass
class Outcome:
    """What one worker says after a launch."""

    reply: Reply
    rows: list[CounterRow]
    events: bytes
    printed: str


class WorkerDied(Exception):
    """The worker ended without last words."""


class Worker:
    """One process running runtime.cpp, connected by two pipes and the arena."""

    def __init__(self, arena: Arena):
        request_read, self.request = os.pipe()
        self.reply, reply_write = os.pipe()
        fds = (arena.fd, request_read, reply_write)
        self.process = subprocess.Popen(
            [str(compiler.worker_program()), str(arena.fd), hex(arena.base), str(ARENA_BYTES), str(request_read), str(reply_write)],
            pass_fds=fds, stdin=subprocess.DEVNULL, cwd="/")
        os.close(request_read)
        os.close(reply_write)

    def send(self, message: bytes) -> None:
        view = memoryview(message)
        try:
            while view:
                view = view[os.write(self.request, view):]
        except BrokenPipeError:
            raise WorkerDied from None

    def receive(self, deadline: float) -> Outcome:
        """The outcome of the launch under way; `WorkerDied` if the process ended or the deadline passed."""
        reply = Reply.from_buffer_copy(self._read(ctypes.sizeof(Reply), deadline))
        size = ctypes.sizeof(CounterRow)
        rows = self._read(reply.rows * size, deadline)
        events = self._read(reply.events * EVENT_DTYPE.itemsize, deadline)
        printed = self._read(reply.printed, deadline).decode(errors="replace")
        return Outcome(reply, [CounterRow.from_buffer_copy(rows, i * size) for i in range(reply.rows)], events, printed)

    def _read(self, n: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < n:
            ready, _, _ = select.select([self.reply], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.reply, min(n - len(data), 1 << 20)) if ready else b""
            if not chunk:
                raise WorkerDied
            data += chunk
        return bytes(data)

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        for fd in (self.request, self.reply):
            try:
                os.close(fd)
            except OSError:
                pass


class Pool:
    """As many workers as a launch wants; dead ones are replaced when next needed."""

    def __init__(self, arena: Arena):
        self.arena, self.workers = arena, []
        atexit.register(self.end)

    def after_fork(self) -> None:
        """A forked child must not talk into its parent's pipes, nor keep them open."""
        for worker in self.workers:
            worker.process.returncode = 0  # not this process's child: nothing to wait for
            worker.close()
        self.workers = []

    def _get(self, n: int) -> list[Worker]:
        for worker in [w for w in self.workers if not w.alive()]:
            worker.end()
            self.workers.remove(worker)
        while len(self.workers) < n:
            self.workers.append(Worker(self.arena))
        return self.workers[:n]

    def run(self, request: Request, payload: bytes, count: int = 1) -> list[Outcome]:
        """Send one request to `count` workers, which share its blocks, and gather what they say."""
        if count > 1:
            request.flags |= SHARE_BLOCKS
            ctypes.c_uint64.from_address(self.arena.base).value = 0
        message = bytes(request) + payload
        deadline = time.monotonic() + request.seconds + 10
        workers, outcomes = self._get(count), []
        try:
            for worker in workers:
                worker.send(message)
            for worker in workers:
                outcomes.append(worker.receive(deadline))
        except WorkerDied:
            for worker in workers:
                worker.end()
            self.workers = [w for w in self.workers if w not in workers]
            if not outcomes or all(o.reply.report.problem == 0 for o in outcomes):
                raise
        except BaseException:  # Ctrl-C in a notebook: whatever the kernel was doing ends here
            for worker in workers:
                worker.end()
            self.workers = [w for w in self.workers if w not in workers]
            raise
        ended = [w for w, o in zip(workers, outcomes) if o.reply.ended]
        for worker in ended:
            worker.end()
        self.workers = [w for w in self.workers if w not in ended]
        return outcomes

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers = []


PROBLEMS = ("ok", "out_of_bounds", "misaligned", "uninitialized", "race", "block_race", "barrier", "collective", "trap",
            "timeout", "stack_overflow", "crash", "unwritten", "load_failed")


def pack(request: Request, arrays, shared, variables, arguments: list[bytes], library: str, entry: str) -> bytes:
    """Everything that follows a Request: array table, symbol tables, arguments (16-byte aligned), names."""
    offsets, blob = [], bytearray()
    for value in arguments:
        blob += b"\0" * (-len(blob) % 16)
        offsets.append(len(blob))
        blob += value
    if len(blob) > 4096:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: invalid argument: a kernel takes at most 4,096 bytes of arguments, "
                              f"these have {len(blob):,}")
    names = [s.encode() + b"\0" for s in (library, entry)]
    request.arrays, request.shared_symbols, request.variables = len(arrays), len(shared), len(variables)
    request.argument_bytes, request.library_chars, request.entry_chars = len(blob), len(names[0]), len(names[1])
    return b"".join([
        *(struct.pack("<QQQ", *a) for a in arrays), *(struct.pack("<QQ", *s) for s in (*shared, *variables)),
        struct.pack("<I", len(offsets)), struct.pack(f"<{len(offsets)}I", *offsets), bytes(blob), *names])

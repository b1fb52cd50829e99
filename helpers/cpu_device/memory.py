"""Device memory without a device: one shared mapping that this process and the workers see at the same address."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import threading
import weakref

import numpy as np

ARENA_BYTES = 1 << 38       # address space, not memory: pages exist once they are written
SLOT_BYTES = 1 << 20        # every array has slots of its own, so that a small overrun lands in no other array
GAP_BYTES = 1 << 16
ALIGNMENT = 512             # as CuPy aligns, so that sector counts agree with a GPU's
PAGE = 1 << 16              # at least a page of any system
_WANTED = 0x2000_0000_0000  # far from where loaders put things, or the workers could not map it at the same place


class Allocation:
    """One array's bytes: `offset` in the arena, `nbytes`, and whether every byte has been written."""

    def __init__(self, arena: "Arena", offset: int, nbytes: int, initialized: bool):
        self.arena, self.offset, self.nbytes, self.initialized = arena, offset, nbytes, initialized

    @property
    def address(self) -> int:
        return self.arena.base + self.offset

    def buffer(self, shadow: bool = False) -> ctypes.Array:
        """The bytes, or with `shadow` the marks of which bytes have been written (1) or not (0)."""
        return (ctypes.c_ubyte * max(self.nbytes, 1)).from_address(self.address + (ARENA_BYTES if shadow else 0))


class Arena:
    """Allocates from the shared mapping; freed slots are given back to the system and used again."""

    def __init__(self):
        self.fd = _anonymous_file(2 * ARENA_BYTES)
        self.base = _map_at(_WANTED, 2 * ARENA_BYTES, self.fd)
        self._live: dict[int, weakref.ref[Allocation]] = {}
        self._next = SLOT_BYTES  # the first slot belongs to the workers
        self._free: dict[int, list[int]] = {}
        self._lock = threading.RLock()  # a garbage collection inside allocate() may free
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def live(self) -> list[Allocation]:
        """All allocations there are, by address."""
        with self._lock:
            found = [a for reference in self._live.values() if (a := reference()) is not None]
        return sorted(found, key=lambda a: a.offset)

    def allocate(self, nbytes: int, initialized: bool) -> Allocation:
        """Bytes aligned to 512; filled with 0xFF (NaN, or -1) unless the caller is about to write them all."""
        slots = 1 << (-(-(nbytes + GAP_BYTES) // SLOT_BYTES) - 1).bit_length()
        with self._lock:
            free = self._free.setdefault(slots, [])
            start = free.pop() if free else self._next
            if start == self._next:
                if start + slots * SLOT_BYTES > ARENA_BYTES:
                    raise MemoryError(f"the CPU device has no room for {nbytes:,} bytes: delete arrays, or use smaller ones")
                self._next += slots * SLOT_BYTES
        offset = start + ALIGNMENT * (start // SLOT_BYTES % 29)  # arrays start in different cache sets
        allocation = Allocation(self, offset, nbytes, initialized)
        if not initialized and nbytes:
            ctypes.memset(allocation.address, 0xFF, nbytes)
        with self._lock:
            self._live[start] = weakref.ref(allocation)
        weakref.finalize(allocation, self._give_back, start, slots, offset, nbytes).atexit = False
        return allocation

    def _give_back(self, start: int, slots: int, offset: int, nbytes: int) -> None:
        for base in (self.base + start, self.base + ARENA_BYTES + start):
            if _libc.madvise(ctypes.c_void_p(base), ctypes.c_size_t(slots * SLOT_BYTES), _MADV_REMOVE) != 0:
                ctypes.memset(base + offset - start, 0, nbytes)
        with self._lock:
            self._live.pop(start, None)
            self._free[slots].append(start)

    def _after_fork(self) -> None:
        """A forked child gets its own copy of the arrays, as it gets its own copy of everything else."""
        self._lock = threading.RLock()
        old, self.fd = self.fd, _anonymous_file(2 * ARENA_BYTES)
        for allocation in self.live():
            os.pwrite(self.fd, allocation.buffer(), allocation.offset)
            os.pwrite(self.fd, allocation.buffer(shadow=True), ARENA_BYTES + allocation.offset)
        _map(self.base, 2 * ARENA_BYTES, self.fd, _MAP_FIXED)
        os.close(old)

    def bytes_at(self, offset: int, nbytes: int) -> ctypes.Array:
        """Some bytes of the arena, without asking whose they are."""
        return (ctypes.c_ubyte * nbytes).from_address(self.base + offset)

    def shadow_of(self, view: np.ndarray) -> np.ndarray:
        """The written-marks of `view`'s bytes, with the view's shape: assign `_ONES(itemsize)` to mark."""
        address = view.__array_interface__["data"][0] + ARENA_BYTES
        low, high = np.lib.array_utils.byte_bounds(view) if view.size else (address, address)
        raw = (ctypes.c_ubyte * max(high - low, 1)).from_address(low + ARENA_BYTES if view.size else self.base)
        offset = address - ARENA_BYTES - low if view.size else 0
        return np.ndarray(view.shape, f"V{view.itemsize}", buffer=raw, offset=offset, strides=view.strides)


def written_mark(itemsize: int):
    """The value that marks one element of `itemsize` bytes as written in a shadow view."""
    return np.frombuffer(b"\1" * itemsize, dtype=f"V{itemsize}")[0]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_MADV_REMOVE = 9 if sys.platform == "linux" else -1
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_MAP_FIXED = 0x10


def _anonymous_file(nbytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("cpu_device")
    else:
        fd, path = tempfile.mkstemp(prefix="cpu_device")
        os.unlink(path)
    os.ftruncate(fd, nbytes)
    return fd


def _map(address: int, nbytes: int, fd: int, flags: int = 0) -> int | None:
    return _libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_NORESERVE | flags, fd, 0)


def _map_at(wanted: int, nbytes: int, fd: int) -> int:
    for attempt in range(8):
        hint = wanted + attempt * 4 * ARENA_BYTES
        got = _map(hint, nbytes, fd)
        if got == hint:
            return hint
        if got not in (None, ctypes.c_void_p(-1).value):
            _libc.munmap(ctypes.c_void_p(got), ctypes.c_size_t(nbytes))
    raise MemoryError("the CPU device could not reserve its address space (256 GiB of addresses, no memory yet)")

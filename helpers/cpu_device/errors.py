"""What goes wrong in a kernel, as Python exceptions that name line, thread, array and index."""

from __future__ import annotations


class KernelError(RuntimeError):
    """A kernel did something that CUDA forbids.  Nothing is lost: the arrays and the next launch are fine.

    `kind` is one of out_of_bounds, misaligned, uninitialized, race, block_race, barrier, collective, trap, timeout,
    stack_overflow, crash, unwritten.  `file` and `line` say where in the .cu, `thread` and `block` who ([x, y, z]),
    `array` and `index` on what; each is None where it has no meaning.  For a race `other_line` and `other_thread` name
    the other access.
    """

    def __init__(self, message: str, kind: str, *, file=None, line=None, thread=None, block=None, array=None, index=None,
                 other_line=None, other_thread=None):
        super().__init__(message)
        self.kind, self.file, self.line, self.thread, self.block = kind, file, line, thread, block
        self.array, self.index, self.other_line, self.other_thread = array, index, other_line, other_thread


class CUDADriverError(RuntimeError):
    """A launch the driver would refuse: named as in CuPy, with the limit and the way out in the text."""


class CompileException(Exception):
    """The kernel's source does not compile; the text is the compiler's, with the line numbers of the .cu file."""


class NoCompiler(RuntimeError):
    """No C++ compiler was found; the text says what to install."""

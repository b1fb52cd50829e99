"""What the judges of kernel exercises share: the source, a launch on the CPU device whose diagnosis becomes the hint."""

from __future__ import annotations

from helpers import cpu_device
from helpers.exercises import Wrong
from helpers.snippets import load


def build(answer, entry: str):
    """A kernel of the CPU device from the learner's source, or from the name of a file."""
    if not isinstance(answer, str):
        raise Wrong('pass the source of the kernel: load("exercises/….cu")')
    return cpu_device.RawKernel(load(answer) if answer.endswith(".cu") else answer, entry, options=("-std=c++17",))


def run(kernel, case: str, grid, block, args, outputs, explain, seed: int = 0):
    """Counters of one launch; what the CPU device diagnoses becomes the hint, in the words of `explain(error)` if it has any.

    `outputs` are arrays that the launch must write whole.
    """
    try:
        with cpu_device.settings(checked=True, outputs=outputs, seed=seed, seconds=20.0) as settings:
            kernel(grid, block, args)
            return settings.last
    except cpu_device.CompileException as error:
        lines = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
        raise Wrong(f"the kernel does not compile: {lines[0].strip()}") from None
    except cpu_device.KernelError as error:
        raise Wrong(f"{case}: {explain(error) or said_by(error)}") from None
    except (cpu_device.CUDADriverError, cpu_device.NoCompiler, TypeError, ValueError) as error:
        raise Wrong(str(error).splitlines()[0]) from None


def said_by(error) -> str:
    """What a KernelError says, without the kernel's name and the place."""
    return str(error).splitlines()[0].split(": ", 1)[-1]


def changed(source: str, *pairs: tuple[str, str]) -> str:
    """`source` with replacements, each of which must apply exactly once: a known-wrong answer."""
    for old, new in pairs:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} occurs {source.count(old)} times")
        source = source.replace(old, new)
    return source

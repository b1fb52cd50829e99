"""Exercises: `check(id, answer)` judges, `hint(id)` helps step by step, `solution(id)` shows, `progress()` counts.

An exercise of notebook NN is registered in nbNN.py.  Its heading in the notebook says how hard it is, how long it takes
and what it practises.
A Python answer is a function or values in a cell; a kernel answer is a file in cuda_snippets/exercises/ that the
learner edits, between the comments "your part" and "end of your part".
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers import snippets

SECONDS = 10.0  # that one call of a learner's function may take


class Wrong(Exception):
    """Raised by a judge; its text is the hint that fits what went wrong."""


class Unsolved(Exception):
    """Raised by `call` when the stub was not touched: it still returns or is `...`."""


class _TooLong(BaseException):
    """Raised in the learner's function when its time is over; no `except Exception` of theirs stops it."""


@dataclass
class Exercise:
    """One exercise: how to judge it, how to help, and the answers that tests hold the judge against."""

    id: str
    title: str
    judge: Callable[[Any], None]
    hints: tuple[str, ...]
    solution: Any
    wrong: dict[str, tuple[Any, str]] = field(default_factory=dict)  # name -> (answer, words its hint must contain)
    untouched: str = ""  # of a kernel: the digest of its stub
    hints_given: int = 0

    @property
    def stub(self) -> str | None:
        """The file that the learner edits, as `load` takes it; None if the answer stands in the notebook."""
        return self.solution.replace("solutions/", "exercises/") if self.untouched else None


_REGISTRY: dict[str, Exercise] = {}


def exercise(id: str, title: str, *, hints: tuple[str, ...], solution: Any, wrong: dict[str, tuple[Any, str]], untouched: str = ""):
    """Register the decorated function as the judge of exercise `id`.

    The judge takes the learner's answer and returns if it is right, or raises `Wrong(hint)`.  `solution` is a right
    answer, `wrong` maps a name to a plausible wrong answer and words that its hint must contain.  For a kernel,
    `solution` is "solutions/….cu", its stub has the same name in exercises/, and `untouched` is `digest` of the stub.
    """

    def register(judge: Callable[[Any], None]):
        _REGISTRY[id] = Exercise(id, title, judge, hints, solution, wrong, untouched)
        return judge

    return register


def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by id, in reading order."""
    for module in sorted(Path(__file__).parent.glob("nb*.py")):
        import_module(f"{__name__}.{module.stem}")
    return dict(sorted(_REGISTRY.items(), key=lambda item: item[0][:2]))


def _find(id: str) -> Exercise:
    exercises = all_exercises()
    if id not in exercises:
        close = difflib.get_close_matches(str(id), exercises, n=3, cutoff=0.4) or list(exercises)
        raise KeyError(f"no exercise {id!r}; did you mean {', '.join(close)}?")
    return exercises[id]


# ------------------------------------------------------------------------------------------------ judging


def is_stub(value: Any) -> bool:
    """True for an answer nobody has written yet: `...`, or a tuple holding one."""
    return value is ... or (isinstance(value, tuple) and any(v is ... for v in value))


def call(answer: Callable, *args):
    """Call the learner's function for a judge: an untouched stub is `Unsolved`, an exception or an endless loop inside it is `Wrong`."""
    if not callable(answer):
        raise Wrong(f"the answer is a function; you passed {type(answer).__name__}")
    try:
        with _time_limit():
            value = answer(*args)
    except Wrong:
        raise
    except _TooLong:
        raise Wrong(f"your function still ran after {SECONDS:g} s: does its loop end?") from None
    except (Exception, SystemExit) as error:
        raise Wrong(f"your function raised {type(error).__name__}{_line_of(error, answer)}: {error}") from error
    if is_stub(value):
        raise Unsolved
    return value


@contextlib.contextmanager
def _time_limit():
    """Interrupt what runs inside after `SECONDS`, where the system has such a clock (not on Windows, nor in a thread)."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    running = signal.setitimer(signal.ITIMER_REAL, SECONDS, 1.0)  # again every second, should the learner's code catch the first
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *running)  # somebody else's clock goes on


def _line_of(error: BaseException, answer: Callable) -> str:
    """" in line 3" of the learner's cell, as far as it is known."""
    file, line, at = getattr(getattr(answer, "__code__", None), "co_filename", None), None, error.__traceback__
    while at:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == file else line
        at = at.tb_next
    return f" in line {line}" if line else ""


def verdict(id: str, answer: Any) -> tuple[str, str]:
    """Judge without printing: ("solved" | "open" | "wrong", hint).

    "open" is a stub nobody touched; of a kernel's stub the hint says what is wrong with it as it stands.  A kernel is
    judged on the CPU device, which survives whatever it does; if that accepts it and a GPU is there, on the GPU as well.
    """
    from . import kernels

    ex = _find(id)
    try:
        if is_stub(answer):
            raise Unsolved
        if ex.untouched:
            answer = kernels.source(answer)
        ex.judge(answer)
        if ex.untouched:
            kernels.judge_on_gpu(id, answer)
    except Unsolved:
        return "open", ""
    except Wrong as wrong:
        untouched = ex.untouched and isinstance(answer, str) and kernels.digest(answer) == ex.untouched
        return "open" if untouched else "wrong", " ".join(str(wrong).split())  # an answer may print in many lines
    except Exception as error:  # a form of answer that the judge did not think of
        return "wrong", f"this answer cannot be judged ({type(error).__name__}: {error}); what should it be, by the text of the exercise?"
    return "solved", ""


def check(id: str, answer: Any) -> None:
    """Print one line: solved, open (stub untouched), or wrong with the hint that fits.  Never raises for an answer."""
    state, text = verdict(id, answer)
    if state == "solved":
        _remember(id)
        print(f"{id}: solved")
    elif state == "open" and (stub := _find(id).stub):
        print(f"{id}: open - edit cuda_snippets/{stub}, save it and run this cell again. As it stands: {text}")
    elif state == "open":
        print(f'{id}: open - replace the ... above and run again; hint("{id}") helps')
    else:
        print(f"{id}: not yet - {text}")


# ------------------------------------------------------------------------------------------------ helping


def hint(id: str) -> None:
    """Print the next hint of exercise `id`; after the last one it starts again."""
    ex = _find(id)
    number = ex.hints_given % len(ex.hints)
    ex.hints_given += 1
    print(f"hint {number + 1} of {len(ex.hints)}: {ex.hints[number]}")


def solution(id: str) -> None:
    """Show the tested solution of exercise `id`: the function, the values or the kernel file."""
    ex = _find(id)
    if ex.untouched:
        snippets.show_snippet(ex.solution)
    else:
        print(inspect.getsource(ex.solution) if callable(ex.solution) else repr(ex.solution))


# ------------------------------------------------------------------------------------------------ progress


def progress() -> None:
    """Print which exercises you have solved, by notebook; remembered from session to session outside the repository."""
    done, exercises = _solved(), all_exercises()
    for id, ex in exercises.items():
        print(f"[{'x' if id in done else ' '}] {id:14} {ex.title}")
    print(f"{len(done & set(exercises))} of {len(exercises)} solved; remembered in {_progress_file()}")


def _progress_file() -> Path:
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "online-softmax-course" / "progress.json"


def _solved() -> set[str]:
    try:
        known = json.loads(_progress_file().read_text())
    except (OSError, ValueError):
        return set()
    return {id for id in known if isinstance(id, str)} if isinstance(known, list) else set()


def _remember(id: str) -> None:
    try:
        _progress_file().parent.mkdir(parents=True, exist_ok=True)
        _progress_file().write_text(json.dumps(sorted(_solved() | {id})))
    except OSError:
        pass  # a read-only home must not spoil a right answer

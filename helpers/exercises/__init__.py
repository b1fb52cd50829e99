"""Exercises: `check(id, answer)` judges, `hint(id)` helps step by step, `solution(id)` shows, `progress()` counts."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any


class Wrong(Exception):
    """Raised by a judge; its text is the hint that fits what went wrong."""


class Unsolved(Exception):
    """Raised by `call` when the stub was not touched: it still returns or is `...`."""


@dataclass
class Exercise:
    """One exercise: how to judge it, how to help, and the answers that tests hold the judge against."""

    id: str
    title: str
    judge: Callable[[Any], None]
    hints: tuple[str, ...]
    solution: Any
    wrong: dict[str, tuple[Any, str]] = field(default_factory=dict)  # name -> (answer, words its hint must contain)
    hints_given: int = 0


_REGISTRY: dict[str, Exercise] = {}


def exercise(id: str, title: str, *, hints: tuple[str, ...], solution: Any, wrong: dict[str, tuple[Any, str]]):
    """Register the decorated function as the judge of exercise `id`.

    The judge takes the learner's answer and returns if it is right, or raises `Wrong(hint)`.  `solution` is a right
    answer, `wrong` maps a name to a plausible wrong answer and words that its hint must contain.
    """

    def register(judge: Callable[[Any], None]):
        _REGISTRY[id] = Exercise(id, title, judge, hints, solution, wrong)
        return judge

    return register


def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by id, in reading order."""
    for module in sorted(Path(__file__).parent.glob("nb*.py")):
        import_module(f"{__name__}.{module.stem}")
    return dict(sorted(_REGISTRY.items()))


def _find(id: str) -> Exercise:
    exercises = all_exercises()
    if id not in exercises:
        raise KeyError(f"no exercise {id!r}; there are: {', '.join(exercises)}")
    return exercises[id]


def is_stub(value: Any) -> bool:
    """True for an answer nobody has written yet: `...`, or a tuple holding one."""
    return value is ... or (isinstance(value, tuple) and any(v is ... for v in value))


def call(answer: Callable, *args):
    """Call the learner's function for a judge: an untouched stub is `Unsolved`, an exception inside it is `Wrong`."""
    try:
        value = answer(*args)
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"your function raised {type(error).__name__}: {error}") from error
    if is_stub(value):
        raise Unsolved
    return value


def verdict(id: str, answer: Any) -> tuple[str, str]:
    """Judge without printing: ("solved" | "open" | "wrong", hint)."""
    ex = _find(id)
    try:
        if is_stub(answer):
            raise Unsolved
        ex.judge(answer)
    except Unsolved:
        return "open", ""
    except Wrong as wrong:
        return "wrong", str(wrong)
    return "solved", ""


def check(id: str, answer: Any) -> None:
    """Print one line: solved, open (stub untouched), or wrong with the hint that fits.  Never raises for an answer."""
    state, text = verdict(id, answer)
    if state == "solved":
        _remember(id)
        print(f"{id}: solved")
    elif state == "open":
        print(f'{id}: open - replace the ... above and run again; hint("{id}") helps')
    else:
        print(f"{id}: not yet - {text}")


def hint(id: str) -> None:
    """Print the next hint of exercise `id`; after the last one it starts again."""
    ex = _find(id)
    number = ex.hints_given % len(ex.hints)
    ex.hints_given += 1
    print(f"hint {number + 1} of {len(ex.hints)}: {ex.hints[number]}")


def solution(id: str) -> None:
    """Print the tested solution of exercise `id`."""
    answer = _find(id).solution
    print(inspect.getsource(answer) if callable(answer) else repr(answer))


def progress() -> None:
    """Print which exercises you have solved, by notebook; remembered outside the repository."""
    done = _solved()
    for id, ex in all_exercises().items():
        print(f"[{'x' if id in done else ' '}] {id:24} {ex.title}")


def _progress_file() -> Path:
    base = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))
    return base / "online-softmax-course" / "progress.json"


def _solved() -> set[str]:
    try:
        return set(json.loads(_progress_file().read_text()))
    except (OSError, ValueError):
        return set()


def _remember(id: str) -> None:
    try:
        _progress_file().parent.mkdir(parents=True, exist_ok=True)
        _progress_file().write_text(json.dumps(sorted(_solved() | {id})))
    except OSError:
        pass  # a read-only home must not spoil a right answer

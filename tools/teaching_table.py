"""Write the table of TEACHING.md - minutes of every notebook and its exercises, seconds that its cells run - from notebooks and records.

    python tools/teaching_table.py                       rewrite the table
    python tools/teaching_table.py --measure h200 [0 1]  run all notebooks (or those that start so) with nothing compiled yet, record their
                                                         seconds under the name of this machine, rewrite
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
from run_notebooks import Progress, execute, find

from helpers.device import device_sentence

ROOT = Path(__file__).resolve().parents[1]
TEACHING = ROOT / "TEACHING.md"
RECORD = ROOT / "helpers" / "data" / "notebook_seconds.json"  # machine -> {"run": where and when, "seconds": by notebook}
MACHINES = {"cpu-2-cores": "2 CPU cores", "h200": "H200"}
EXERCISE = r"^### Exercise (.*?) · (.*) \((★+), (\d+) min\)\n\nPractises: (.+?)[.:](?: |\n)"


@dataclass
class Lesson:
    """What a notebook says about itself; an exercise is (label, title, stars, minutes, what it practises)."""

    path: Path
    title: str
    read: int
    teach: int
    sections: list[str]
    exercises: list[tuple[str, str, str, int, str]]

    @property
    def link(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def lessons() -> list[Lesson]:
    """All notebooks in reading order."""
    found = []
    for path in find():
        text = "\n\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
        time = re.search(r"(\d+) min to read · (\d+) min to teach", text)
        exercises = [(a, b, c, int(d), e) for a, b, c, d, e in re.findall(EXERCISE, text, re.M)]
        title = re.search(r"^# (?:\d+ · )?(.*)", text, re.M)[1]
        found.append(Lesson(path, title, int(time[1]), int(time[2]), re.findall(r"^## (.*)", text, re.M), exercises))
    return found


def records() -> dict[str, dict]:
    """What was recorded on each machine, in the order of `MACHINES`."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {machine: known[machine] for machine in MACHINES if machine in known}


def table() -> str:
    """The table and its provenance, as Markdown."""
    ran = records()
    lines = ["| notebook | read | teach | exercises | " + " | ".join(f"runs on {MACHINES[m]}" for m in ran) + " |",
             "|---" * (4 + len(ran)) + "|"]
    for lesson in lessons():
        own = [f"{r['seconds'][lesson.path.stem]:.0f} s" if lesson.path.stem in r["seconds"] else "–" for r in ran.values()]
        number = f"{lesson.path.stem[:2]} " if lesson.path.stem[0].isdigit() else ""
        lines.append(f"| [{number}{lesson.title}]({lesson.link}) | {lesson.read} | {lesson.teach} | "
                     f"{sum(e[3] for e in lesson.exercises)} ({len(lesson.exercises)}) | " + " | ".join(own) + " |")
    where = "; ".join(f"{MACHINES[m]}: {sum(r['seconds'].values()) / 60:.1f} minutes in all, on {r['run']['date']}" for m, r in ran.items())
    return "\n".join([
        *lines, "", f"Minutes; seconds that all cells of a notebook take in a first run, with no kernel compiled yet. {where}."])


def exercise_table() -> str:
    """Every exercise with its difficulty, minutes and what it practises."""
    lines = ["| | exercise | | min | practises |", "|---|---|---|---|---|"]
    for lesson in lessons():
        lines += [f"| {' | '.join(map(str, exercise))} |" for exercise in lesson.exercises]
    return "\n".join(lines)


def updated(text: str) -> str:
    """TEACHING.md with both tables made anew."""
    for name, make in (("minutes", table), ("exercises", exercise_table)):
        text = re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", lambda m, t=make: m[1] + t() + m[2], text, flags=re.S)
    return text


def measure(machine: str, only: list[str], cache: str) -> None:
    """Run notebooks and record how long their cells took; one that fails keeps what was recorded before.  `cache` is an empty folder."""
    os.environ.update(XDG_CACHE_HOME=cache, CUPY_CACHE_DIR=cache)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    run = {"machine": f"{MACHINES[machine]}, {platform.machine()}", "kernels": device_sentence, "python": platform.python_version(),
           "date": datetime.date.today().isoformat(), "command": f"python tools/teaching_table.py --measure {machine}"}
    ran, paths = dict(known.get(machine, {}).get("seconds", {})), find(only=only)
    progress = Progress(len(paths))
    for path in paths:
        result = execute(nbformat.read(path, as_version=4), path, progress)
        progress.report(result)
        if result.error:
            print(result.error)
            continue
        ran[path.stem] = round(result.seconds, 1)
        RECORD.write_text(json.dumps(known | {machine: {"run": run, "seconds": ran}}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        with tempfile.TemporaryDirectory() as cache:
            measure(sys.argv[2], sys.argv[3:], cache)
    TEACHING.write_text(updated(TEACHING.read_text(encoding="utf-8")), encoding="utf-8")

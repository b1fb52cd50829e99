"""Every exercise: the stub runs and is open, the solution passes, wrong answers get their hint, and no answer breaks the session."""

import builtins
import functools
import json
import math
import os
import re
import shutil
import subprocess
import sys

import nbformat
import numpy as np
import pytest
from run_notebooks import find

from helpers import cpu_device, device, exercises, gradients, reference
from helpers.exercises import all_exercises, check, hint, kernels, progress, solution, verdict
from helpers.snippets import ROOT, load, text

EXERCISES = all_exercises()
KERNELS = [id for id, ex in EXERCISES.items() if ex.untouched]
PYTHON = [id for id in EXERCISES if id not in KERNELS]
WRONG = [(id, name) for id, ex in EXERCISES.items() for name in ex.wrong]
YOURS = r"[ \t]*// --- your part\n.*?// --- end of your part\n"


@functools.cache
def judged(id: str, name: str) -> tuple[str, str]:
    return verdict(id, EXERCISES[id].wrong[name][0])


@functools.cache
def cells() -> dict[str, tuple[str, str, str]]:
    """Exercise -> (notebook, all of its text, the cell that checks it)."""
    found = {}
    for path in find():
        nb = nbformat.read(path, as_version=4)
        prose = "\n".join(cell.source for cell in nb.cells)
        for cell in nb.cells:
            for id in re.findall(r'\bcheck\("([^"]+)"', cell.source) if cell.cell_type == "code" else []:
                assert id not in found, f"{id} is checked twice"
                found[id] = path.stem, prose, cell.source
    return found


# --- stub, solution, wrong answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", PYTHON)
def test_untouched_stub_is_open(id):
    assert verdict(id, ...) == ("open", "")


@pytest.mark.parametrize("id", KERNELS)
def test_untouched_kernel_runs_and_is_open(id):
    state, why = verdict(id, load(EXERCISES[id].stub))
    assert state == "open" and why and "compile" not in why


@pytest.mark.parametrize("id", KERNELS)
def test_stub_is_known_by_its_digest(id):
    source = load(EXERCISES[id].stub)
    assert kernels.digest(source) == EXERCISES[id].untouched, f'the stub has changed: untouched="{kernels.digest(source)}" in nb{id[:2]}.py'
    assert kernels.digest(source.replace("\n", "\n\n").replace("{", "{ // a comment")) == EXERCISES[id].untouched
    assert kernels.digest(source.replace("threadIdx.x", "threadIdx.y")) != EXERCISES[id].untouched


@pytest.mark.parametrize("id", EXERCISES)
def test_solution_passes(id):
    answer = EXERCISES[id].solution
    assert verdict(id, load(answer) if id in KERNELS else answer) == ("solved", "")


@pytest.mark.parametrize("id, name", WRONG)
def test_wrong_answer_is_rejected_with_its_hint(id, name):
    state, hint = judged(id, name)
    assert state == "wrong" and EXERCISES[id].wrong[name][1] in hint


@pytest.mark.parametrize("id", EXERCISES)
def test_enough_known_wrong_answers_with_distinct_hints(id):
    hints = [judged(id, name)[1] for name in EXERCISES[id].wrong]
    assert len(hints) >= 3 and len(set(hints)) == len(hints)


@pytest.mark.parametrize("id", KERNELS)
def test_stub_and_solution_differ_only_in_marked_regions(id):
    """The comment that opens a file says what it is, and may differ."""
    def frame(name):
        source = re.sub(r"\A(//[^\n]*\n|\n)*", "", text(name))
        return re.sub(YOURS, "<yours>\n", source, flags=re.S)

    assert frame(EXERCISES[id].stub) == frame(EXERCISES[id].solution)
    assert "<yours>" in frame(EXERCISES[id].stub) and "your part" not in frame(EXERCISES[id].stub)


def test_every_exercise_file_belongs_to_an_exercise():
    for folder, names in (("exercises", {EXERCISES[id].stub for id in KERNELS}), ("solutions", {EXERCISES[id].solution for id in KERNELS})):
        assert names == {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).iterdir()}


# --- what a learner reads ---------------------------------------------------------------------------------------------

LANGUAGE = {"exp", "log", "lambda", "write", "size_t", "show_diff", "load", "__shared__",
            "__syncthreads", "__syncwarp", "__shfl_xor_sync", "__half2float", "__float2half"}


@pytest.mark.parametrize("id", EXERCISES)
def test_hints_name_things_that_exist(id):
    """Whatever looks like code in a hint stands in the stub or its notebook's text, in a header, in NumPy - or the hint introduces it."""
    ex = EXERCISES[id]
    prose, code = cells()[id][1:]
    known = set(re.findall(r"\w+", prose + code)) | LANGUAGE | set(dir(builtins))
    for module in (np, np.ndarray, math, reference, cpu_device, gradients):
        known |= set(dir(module))
    if id in KERNELS:
        known |= set(re.findall(r"\w+", load(ex.stub) + text("reduce.h") + text("common.h")))
    said = [*ex.hints, *(judged(id, name)[1] for name in ex.wrong if "compile" not in judged(id, name)[1])]
    known |= set(re.findall(r"\b(\w+)(?:\[\w+\])* =(?!=)", " ".join(ex.hints)))  # `head = min(...)`
    known |= set(re.findall(r"lambda (\w)", " ".join(ex.hints)))
    for sentence in said:
        names = re.findall(r"\b[A-Za-z_]\w*(?=[\[(])|\b[A-Za-z]\w*_\w+\b", sentence)
        assert not set(names) - known, sentence
        for file in re.findall(r'"(\w+/\w+\.cu)"', sentence):
            assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("id", KERNELS)
def test_lines_in_hints_are_the_learners(id):
    """A line number is one of the answer's own file, and the compiler's complaint quotes it."""
    lines = text(EXERCISES[id].stub).split("\n")
    at = next(i for i, line in enumerate(lines) if "// --- your part" in line) + 1
    lines.insert(at, "    float oops = nothing_of_that_name;")
    source = load(EXERCISES[id].stub).replace(text(EXERCISES[id].stub).split("\n", at)[at], "\n".join(lines[at:]))
    state, hint = verdict(id, source)
    assert state == "wrong" and f"line {at + 1}: " in hint and "float oops = nothing_of_that_name;" in hint, hint
    for name, (answer, _) in EXERCISES[id].wrong.items():
        length = max(len(kernels.source(answer).splitlines()), 1)
        assert all(int(n) <= length for n in re.findall(r"\blines? (\d+)", judged(id, name)[1]))


def test_every_exercise_has_its_place_in_a_notebook():
    assert set(cells()) == set(EXERCISES)
    for id, (notebook, _, code) in cells().items():
        assert notebook[:2] == id[:2], f"{id} stands in {notebook}"
        if id in KERNELS:
            assert f'check("{id}", load("{EXERCISES[id].stub}"))' in code
    for number in {notebook[:2] for notebook, *_ in cells().values()}:
        assert 2 <= sum(id.startswith(number) for id in EXERCISES) <= 4, f"notebook {number}"


@pytest.mark.parametrize("path", find(), ids=lambda path: path.stem)
def test_headings_say_how_hard_and_how_long(path):
    nb = nbformat.read(path, as_version=4)
    prose = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^### Exercise (.*)\n\n(.*)", prose, re.M)
    minutes, number = 0, path.stem[:2]
    for letter, (heading, first) in zip("abcdefg", headings):
        label = f"{number}-{letter} · " if number.isdigit() else ""
        m = re.fullmatch(rf"{label}\S.* \(★{{1,3}}, (\d+) min\)", heading)
        assert m and first.startswith("Practises: "), heading
        minutes += int(m[1])
    said = re.search(r"(\d+) min for the exercises", prose)
    assert said and abs(int(said[1]) - minutes) <= 2.5, f"the exercises take {minutes} min"


def test_solution_shows_what_is_tested(capsys):
    for id in EXERCISES:
        solution(id)
    shown = capsys.readouterr().out
    assert "def _update(m, d, x):" in shown and "(5, 3)" in shown


def test_hints_come_in_steps(capsys):
    ex = EXERCISES["03-update"]
    for _ in range(len(ex.hints) + 1):
        hint("03-update")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["hint 1 of 3", "hint 2 of 3", "hint 3 of 3", "hint 1 of 3"]
    with pytest.raises(KeyError, match="did you mean 03-update"):
        hint("03-updat")


def test_progress_is_kept_outside_the_repository(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    check("02-traffic", (5, 3))
    check("00-blocks", EXERCISES["00-blocks"].solution)
    check("02-mask", lambda row, visible: ...)
    capsys.readouterr()
    progress()
    out = capsys.readouterr().out
    assert "[x] 00-blocks" in out and "[x] 02-traffic" in out and "[ ] 02-mask" in out
    file = tmp_path / "online-softmax-course" / "progress.json"
    assert out.splitlines()[-1] == f"2 of {len(EXERCISES)} solved; remembered in {file}"
    for broken in ("{", "3", '{"a": 1}', "[1, null]"):
        file.write_text(broken)
        progress()
        check("02-traffic", (5, 3))
        assert json.loads(file.read_text()) == ["02-traffic"]
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/nowhere")
    check("02-traffic", (5, 3))


def test_check_prints_one_line(capsys):
    for id, answer in (("02-traffic", (5, 3)), ("02-traffic", (3, 1)), ("02-traffic", ...), ("05-race", load("exercises/05_race.cu"))):
        check(id, answer)
        assert capsys.readouterr().out.count("\n") == 1
    check("05-race", load("exercises/05_race.cu"))
    line = capsys.readouterr().out
    assert line.startswith("05-race: open - edit cuda_snippets/exercises/05_race.cu, save it and run this cell again. As it stands: M = 2")


# --- nothing breaks the session ---------------------------------------------------------------------------------------


def ends(*_):
    sys.exit(3)


def recurses(*arguments):
    return recurses(*arguments)


ODD = [None, 3, -1.5, math.nan, "text", "no_such_file.cu", "", [], {}, {"A": 1}, (), (1, 2), (None,) * 5, ("a",) * 5, [[]], object(),
       np.zeros(3), lambda: None, lambda *a: None, lambda *a: "text", lambda *a: [], lambda *a: {}, lambda *a: (None, None),
       lambda *a: (1, 2, 3), lambda *a: a, lambda *a: object(), lambda *a: np.zeros((2, 2)), lambda *a: 1 / 0, ends, recurses]


@pytest.mark.parametrize("id", EXERCISES)
def test_odd_answers_are_wrong_and_nothing_worse(id, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for answer in ODD:
        check(id, answer)
        out = capsys.readouterr().out
        assert out.startswith(f"{id}: not yet - ") and out.count("\n") == 1, (answer, out)


def test_endless_function_is_stopped(monkeypatch):
    monkeypatch.setattr(exercises, "SECONDS", 0.2)

    def stubborn(n, threads):
        while True:
            try:
                while True:
                    pass
            except Exception:
                pass

    assert verdict("00-blocks", stubborn) == ("wrong", "your function still ran after 0.2 s: does its loop end?")
    assert verdict("00-blocks", EXERCISES["00-blocks"].solution)[0] == "solved"


def test_an_exception_names_the_line():
    def answer(n, threads):
        blocks = n / threads
        return blocks.nothing

    line = answer.__code__.co_firstlineno + 2
    said = verdict("00-blocks", answer)[1]
    assert said == f"your function raised AttributeError in line {line}: 'float' object has no attribute 'nothing'"


CRASHES = {
    "null pointer": "*(volatile int*)0 = 1;", "endless loop": "while (true) {}", "trap": "__trap();",
    "wild pointer": "y[1ll << 40] = 1;", "division by zero": "volatile int zero = 0; y[0] = 1 / zero;",
    "waits for ever": "volatile int go = 0; while (!go) {}", "no braces": "} } }", "returns": "return;",
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_crashing_kernel_is_a_wrong_answer(name, monkeypatch):
    monkeypatch.setattr(kernels, "SECONDS", 1.0)
    source = load("solutions/05_coalesce.cu").replace("    for (int i", f"    {CRASHES[name]}\n    for (int i")
    state, hint = verdict("05-coalesce", source)
    assert state == "wrong" and hint
    assert verdict("05-coalesce", load("solutions/05_coalesce.cu")) == ("solved", "")


@pytest.mark.skipif(not shutil.which("clang++") or bool(os.environ.get("CXX")), reason="needs clang++ beside the compiler of the whole run")
def test_the_other_compiler_judges_the_same():
    code = """if True:
        from helpers.exercises import all_exercises, verdict
        for id in ("05-race", "13-repair"):
            ex = all_exercises()[id]
            assert verdict(id, ex.solution) == ("solved", "")
            for name, (answer, words) in ex.wrong.items():
                state, hint = verdict(id, answer)
                assert state == "wrong" and words in hint, (id, name, state, hint)
    """
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "CXX": "clang++"}, cwd=ROOT.parent, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr


# --- and then the GPU -------------------------------------------------------------------------------------------------


class Done:
    def __init__(self, stdout="", stderr="", returncode=0):
        self.stdout, self.stderr, self.returncode = stdout, stderr, returncode


def test_what_the_gpu_says_counts(monkeypatch):
    """Without a GPU: every end that the process judging there can have becomes a verdict."""
    answer = load("solutions/05_coalesce.cu")
    monkeypatch.setattr(device, "on_gpu", True)
    asked = []

    def reply(done):
        def run(command, input, timeout, **_):
            asked.append((command[-1], input))
            if isinstance(done, Exception):
                raise done
            return done
        monkeypatch.setattr(subprocess, "run", run)

    for done, words in ((Done('{"wrong": "y is not 2 * x"}'), "on the GPU: y is not 2 * x"),
                        (Done(stderr="x\nillegal address", returncode=1), "illegal address"), (Done(returncode=-11), "exit status -11"),
                        (subprocess.TimeoutExpired("python", 60), "did not end within 60 s")):
        reply(done)
        with pytest.raises(exercises.Wrong, match=re.escape(words)):
            kernels.judge_on_gpu("05-coalesce", answer)
    reply(Done('warning\n{"wrong": ""}\n'))
    kernels.judge_on_gpu("05-coalesce", answer)
    assert asked[-1] == ("05-coalesce", answer)


@pytest.mark.gpu
def test_the_gpu_judges_by_itself(monkeypatch):
    """A kernel that only the CPU device takes for right: the GPU's own process finds out."""
    source = load("solutions/05_coalesce.cu").replace("y[i] = 2", "\n#ifdef __CPU_DEVICE__\ny[i] = 2\n#else\ny[i] = 3\n#endif\n")
    state, hint = verdict("05-coalesce", source)
    assert state == "wrong" and "on the GPU" in hint and "not 2 * x" in hint
    crash = load("solutions/05_coalesce.cu").replace("y[i] = 2", "\n#ifndef __CPU_DEVICE__\n*(int*)8 = 1;\n#endif\ny[i] = 2")
    assert verdict("05-coalesce", crash)[0] == "wrong"
    monkeypatch.setattr(kernels, "GPU_SECONDS", 20)
    loop = "while (*(volatile const float*)x == *(volatile const float*)x) {}"
    endless = load("solutions/05_coalesce.cu").replace("    for", f"\n#ifndef __CPU_DEVICE__\n{loop}\n#endif\n    for")
    assert "did not end" in verdict("05-coalesce", endless)[1]
    assert verdict("05-coalesce", load("solutions/05_coalesce.cu")) == ("solved", "")

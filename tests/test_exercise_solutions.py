"""tools/run_solutions.py: solutions come into the notebooks as a learner would write them, and a check that is not solved is found."""

import os
import re
from pathlib import Path

import nbformat
import pytest
import run_solutions
from run_notebooks import find
from test_exercises import EXERCISES, PYTHON, cells

from helpers import load, reference
from helpers.exercises import verdict

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("id", PYTHON)
def test_solution_in_place_of_the_stub_is_solved(id):
    _, everything, cell = cells()[id]
    said = []
    scope = {"check": lambda id, answer: said.append(verdict(id, answer)), "load": load, "reference": reference}
    exec("import math\nimport numpy as np\nimport ml_dtypes\nimport torch", scope)
    exec(cell, scope)
    exec(run_solutions.solved(cell, EXERCISES[id]), scope)
    assert said == [("open", ""), ("solved", "")]
    stub_lines = [line for line in cell.split("\n") if "..." not in line]
    kept = run_solutions.solved(cell, EXERCISES[id]).split("\n")
    assert all(line in kept for line in stub_lines if re.match(r"check\(|def state", line))


def test_the_copy_has_solutions_in_place_of_files_and_stubs(tmp_path):
    (tmp_path / "cuda_snippets" / "solutions").mkdir(parents=True)
    (tmp_path / "cuda_snippets" / "exercises").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "cuda_snippets" / "solutions" / "05_race.cu").write_text("// solved")
    (tmp_path / "cuda_snippets" / "exercises" / "05_race.cu").write_text("// stub")
    stub = 'def who_handles(i, threads):\n    return ..., ...\n\n\ncheck("00-who", who_handles)'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(stub)]), tmp_path / "notebooks" / "00_a.ipynb")
    run_solutions.solve(tmp_path)
    assert (tmp_path / "cuda_snippets" / "exercises" / "05_race.cu").read_text() == "// solved"
    (path,) = find(tmp_path / "notebooks")
    assert nbformat.read(path, as_version=4).cells[0].source == \
        'def who_handles(i, threads):\n    return i // threads, i % threads\n\n\ncheck("00-who", who_handles)'


@pytest.mark.parametrize("source, words", [
    ('check("02-traffic", (5, 3))', ""),
    ('check("02-traffic", (3, 1))', "not solved: 02-traffic"),
    ('check("02-traffic", (..., ...))', "not solved: 02-traffic"),
    ("print('02-traffic: solved')", "there is no check"),
    ('1 / 0\ncheck("02-traffic", (5, 3))', "ZeroDivisionError"),
])
def test_a_check_that_is_not_solved_is_a_failure(source, words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    cells = [nbformat.v4.new_code_cell(source) for source in ("from helpers import check", source)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "02_a.ipynb")
    result = run_solutions.run(tmp_path / "02_a.ipynb")
    assert words in result.error if words else not result.error

"""Run every notebook with all exercises solved, as a learner would leave it, and insist that each check says so.

    python tools/run_solutions.py                     all notebooks
    python tools/run_solutions.py --only 05 06        those whose path starts so

Nothing in the repository changes: a copy of it gets the tested solutions, in the notebooks in place of the stubs, in
cuda_snippets/exercises in place of the files.  Outputs are not compared.  The exit status is 1 if a notebook or a check fails.
"""

import argparse
import ast
import inspect
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from run_notebooks import Progress, Result, execute, find, table

from helpers.exercises import Exercise, all_exercises

ROOT = Path(__file__).resolve().parents[1]
CHECK = r'^check\("([^"]+)", (.+)\)$'


def solved(source: str, exercise: Exercise) -> str:
    """The code of a cell that checks `exercise`, with the tested solution in place of the stub."""
    if exercise.untouched:
        return source  # the file that it loads has been replaced
    tree, answer, name = ast.parse(source), exercise.solution, re.search(CHECK, source, re.M)[2]
    if callable(answer):
        stubs = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        text = re.sub(rf"\b{answer.__name__}\b", name, inspect.getsource(answer)).rstrip()
        used = sorted(set(answer.__code__.co_names) & set(answer.__globals__) - {answer.__name__})
        text = (f"from {answer.__module__} import {', '.join(used)}\n\n\n" if used else "") + text
    else:
        stubs = [node for node in tree.body if isinstance(node, ast.Assign) and any(
            isinstance(part, ast.Constant) and part.value is ... for part in ast.walk(node.value))]
        text = f"{name.strip('()')} = {answer!r}"
    lines = source.split("\n")
    return "\n".join([*lines[:stubs[0].lineno - 1], text, *lines[stubs[-1].end_lineno:]])


def solve(folder: Path) -> None:
    """Put the solutions into a copy of the repository."""
    exercises = all_exercises()
    for file in (folder / "cuda_snippets" / "solutions").iterdir():
        shutil.copy(file, folder / "cuda_snippets" / "exercises" / file.name)
    for path in find(folder / "notebooks"):
        nb = nbformat.read(path, as_version=4)
        for cell in nb.cells:
            if cell.cell_type == "code" and (found := re.search(CHECK, cell.source, re.M)):
                cell.source = solved(cell.source, exercises[found[1]])
        nbformat.write(nb, path)


def run(path: Path) -> Result:
    """Execute one notebook; it fails if a check does not say "solved", or if there is none."""
    nb = nbformat.read(path, as_version=4)
    result = execute(nb, path, Progress(1, open(os.devnull, "w")))
    checks = [cell for cell in nb.cells if cell.cell_type == "code" and re.search(CHECK, cell.source, re.M)]
    said = "".join(output.get("text", "") for cell in checks for output in cell.outputs)
    wanted = [re.search(CHECK, cell.source, re.M)[1] for cell in checks]
    missing = [id for id in wanted if f"{id}: solved\n" not in said]
    if not result.error and (missing or not wanted):
        result.error = f"{path.name}: not solved: {', '.join(missing) or 'there is no check'}\n{said}"
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="START", help="notebooks whose path starts so, e.g. 03 or beyond/")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "course"
        for part in ("helpers", "cuda_snippets", "notebooks"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        solve(copy)
        os.environ["PYTHONPATH"] = str(copy)  # of the notebooks' kernels; `progress` of the reader stays as it is
        os.environ["XDG_DATA_HOME"] = folder
        paths = find(copy / "notebooks", options.only)
        progress, results = Progress(len(paths)), []
        with ProcessPoolExecutor(2) as pool:
            for result in pool.map(run, paths):
                progress.report(result)
                results.append(result)
    for result in results:
        if result.error:
            print(f"\nFAILED in {result.error}")
    print("\n" + table(results))
    return int(not results or any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())

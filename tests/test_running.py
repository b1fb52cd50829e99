"""`make run` and `make test` on small notebooks: failures are found, named and do not stop the rest; nothing is left out."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import run_notebooks
from run_notebooks import canonical

ROOT = Path(__file__).resolve().parents[1]


def run_tool(*arguments) -> tuple[int, str]:
    """Exit status and output of tools/run_notebooks.py."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = run_notebooks.main([str(argument) for argument in arguments])
    return status, out.getvalue()


def notebook(path: Path, *sources: str):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nb, path)


def test_run_notebooks_goes_on_after_a_failure_and_says_where(tmp_path):
    notebook(tmp_path / "01_bad.ipynb", "x = 1", "print('before')\nraise ValueError('the reason')")
    notebook(tmp_path / "beyond" / "a.ipynb", "import os; print(os.getcwd())")
    status, out = run_tool("--folder", tmp_path, "--html", tmp_path / "html", "--update")
    assert status == 1
    assert "FAILED in code cell [2] of 01_bad.ipynb" in out and "ValueError: the reason" in out
    assert re.search(r"^01_bad +\| +2 \| +[\d.]+ \| FAILED$", out, re.M)
    assert re.search(r"^a +\| +1 \| +[\d.]+ \| ok$", out, re.M)
    assert str(tmp_path / "beyond") in (tmp_path / "html" / "beyond" / "a.html").read_text()  # ran in its own folder
    stored = (tmp_path / "beyond" / "a.ipynb").read_text()
    assert stored == canonical(nbformat.v4.reads(stored), "a") and str(tmp_path) in stored
    assert "before" not in (tmp_path / "01_bad.ipynb").read_text().replace("print('before')", "")


def test_run_notebooks_survives_a_dead_kernel_and_an_endless_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(run_notebooks, "CELL_TIMEOUT", 2)
    notebook(tmp_path / "01_dead.ipynb", "x = 1", "import os; os._exit(1)")
    notebook(tmp_path / "02_endless.ipynb", "while True: pass")
    notebook(tmp_path / "03_good.ipynb", "x = 1")
    status, out = run_tool("--folder", tmp_path)
    assert status == 1
    assert re.search(r"FAILED in code cell \[2\] of 01_dead.ipynb:\s+DeadKernelError", out)
    assert re.search(r"FAILED in code cell \[1\] of 02_endless.ipynb:\s+CellTimeoutError", out)
    assert re.search(r"^03_good .*ok$", out, re.M)


def test_run_notebooks_only(tmp_path):
    notebook(tmp_path / "01_good.ipynb", "1 + 1")
    notebook(tmp_path / "02_bad.ipynb", "1 / 0")
    assert run_tool("--folder", tmp_path, "--only", "01")[0] == 0
    assert run_tool("--folder", tmp_path, "--only", "03")[0] == 1


def test_cell_ids_are_kept_and_repaired():
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x") for _ in range(3)])
    nb.cells[0]["id"], nb.cells[1]["id"], nb.cells[2]["id"] = "mine", "mine", None
    text = canonical(nb, "03_name")
    ids = [cell.id for cell in nbformat.v4.reads(text).cells]
    assert ids[0] == "mine" and len(set(ids)) == 3 and all(i.startswith("03-") for i in ids[1:])
    assert canonical(nbformat.v4.reads(text), "03_name") == text


def run_nbval(folder: Path):
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "notebooks"],
                          cwd=folder, capture_output=True, text=True)


@pytest.fixture
def course(tmp_path):
    """A copy of what steers nbval, without notebooks."""
    (tmp_path / "notebooks").mkdir()
    for file in ("conftest.py", "pyproject.toml"):
        (tmp_path / file).write_text((ROOT / file).read_text())
    return tmp_path


def executed(path: Path, *sources: str):
    notebook(path, *sources)
    status, out = run_tool("--folder", path.parent, "--update")
    assert status == 0, out


def test_nbval_counts_and_compares(course):
    executed(course / "notebooks" / "01_a.ipynb", "print(1)", "print(2)")
    done = run_nbval(course)
    assert done.returncode == 0, done.stdout
    assert "nbval: 1 of 1 notebooks, 2 code cells; passed: 2 executed, 2 of them compared" in done.stdout
    path = course / "notebooks" / "01_a.ipynb"
    path.write_text(path.read_text().replace("2\\n", "3\\n"))
    done = run_nbval(course)
    assert done.returncode == 1 and "passed: 1 executed, 1 of them compared" in done.stdout


def test_nbval_refuses_to_miss_a_notebook(course):
    assert "there is no notebook" in run_nbval(course).stderr
    notebook(course / "notebooks" / "01_a.ipynb", "print(1)")
    notebook(course / "notebooks" / "02_empty.ipynb")
    done = run_nbval(course)
    assert done.returncode != 0 and "did not collect these notebooks: 02_empty.ipynb" in done.stderr


def test_nbval_does_not_compare_svg(course):
    source = "from IPython.display import SVG, display\ndisplay(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\"/>'))"
    path = course / "notebooks" / "01_a.ipynb"
    executed(path, source.format(1))
    changed = path.read_text().replace('\\"1\\"/>\'))', '\\"2\\"/>\'))')
    assert changed != path.read_text()
    path.write_text(changed)
    done = run_nbval(course)
    assert done.returncode == 0, done.stdout

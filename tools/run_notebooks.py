"""Run every notebook of the course from top to bottom, in reading order, and print a table of what happened.

    python tools/run_notebooks.py                     all notebooks; the files stay as they are
    python tools/run_notebooks.py --only 03 beyond    those whose path starts so
    python tools/run_notebooks.py --html build/html   also write each executed notebook as a web page
    python tools/run_notebooks.py --update            also store the outputs, in canonical form

A failing notebook does not stop the others; the exit status is 1 if any failed.
"""

import argparse
import hashlib
import re
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CELL_TIMEOUT = 120  # seconds; `make test` uses the same
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass
class Result:
    """How one notebook went; `error` is empty if it ran to its end."""

    name: str
    cells: int
    seconds: float
    error: str = ""


def find(folder: Path = NOTEBOOKS, only: list[str] | None = None) -> list[Path]:
    """The notebooks below `folder` in reading order; `only` keeps those whose path in it starts with one of the strings."""
    paths = [path for path in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]
    return [path for path in paths if path.relative_to(folder).as_posix().startswith(tuple(only or [""]))]


# --- the canonical form -----------------------------------------------------------------------------------------------


def cell_id(notebook: str, source: str) -> str:
    """The same for the same text: `03-1f0c22ab` for a cell of 03_online_softmax."""
    return f"{notebook.split('_')[0]}-{hashlib.sha1(source.encode()).hexdigest()[:8]}"


def canonical(nb: nbformat.NotebookNode, name: str) -> str:
    """Text of the file for notebook `name`: nothing that differs from run to run or from machine to machine.

    Cell metadata is reduced to the tags, notebook metadata to `METADATA`; cell ids are kept, and made where they are
    missing or repeated; the JSON has sorted keys, one blank a level, and one string a line of text.
    """
    nb = nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": METADATA, "cells": nb.cells})
    seen: set[str] = set()
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict({key: value for key, value in cell.metadata.items() if key == "tags"})
        base = unique = cell.get("id") if cell.get("id") not in {None, *seen} else cell_id(name, cell.source)
        while unique in seen:
            unique = f"{base}-{sum(i.startswith(base) for i in seen)}"
        cell["id"] = unique
        seen.add(unique)
    return nbformat.writes(nb) + "\n"


# --- one notebook -----------------------------------------------------------------------------------------------------


class Progress:
    """`[######......] 03_online_softmax 12/30` on a terminal; nothing elsewhere, where only the results are printed."""

    WIDTH = 30

    def __init__(self, total: int, stream=sys.stdout):
        self.total, self.done, self.stream, self.live = total, 0, stream, stream.isatty()

    def show(self, name: str, cell: int, cells: int):
        """`cell` of `cells` of the notebook `name` is running; `done` notebooks are behind us."""
        if self.live:
            full = round(self.WIDTH * (self.done + cell / max(cells, 1)) / self.total)
            bar = "#" * full + "." * (self.WIDTH - full)
            print(f"\r\033[K[{bar}] {name} {cell}/{cells}", end="", file=self.stream, flush=True)

    def report(self, result: Result):
        """One notebook is finished."""
        self.done += 1
        clear = "\r\033[K" if self.live else ""
        verdict = "FAILED" if result.error else "ok"
        print(f"{clear}[{self.done}/{self.total}] {result.name} {result.seconds:.1f} s {verdict}", file=self.stream, flush=True)


def execute(nb: nbformat.NotebookNode, path: Path, progress: Progress) -> Result:
    """Run `nb` in a fresh kernel in the folder of `path`; the outputs are left in `nb`."""
    name = path.stem
    code = [i for i, cell in enumerate(nb.cells) if cell.cell_type == "code"]
    now = 0  # the running code cell, counted from 1 as Jupyter shows it

    def starts(cell, cell_index):
        nonlocal now
        if cell.cell_type == "code":
            now = code.index(cell_index) + 1
            progress.show(name, now - 1, len(code))

    for cell in nb.cells:
        cell.metadata.pop("execution", None)
    start, error = time.monotonic(), ""
    client = NotebookClient(nb, timeout=CELL_TIMEOUT, kernel_name="python3", record_timing=False, coalesce_streams=True,
                            on_cell_start=starts, extra_arguments=["--log-level=ERROR"], resources={"metadata": {"path": str(path.parent)}})
    try:
        client.execute()
    except CellExecutionError as problem:
        error = problem.traceback
    except Exception as problem:  # a dead kernel, a cell that ran too long, ...
        error = f"{type(problem).__name__}: {problem}"
    if error:
        lines = [line for line in re.sub(r"\x1b\[[\d;]*m", "", error).splitlines() if line.strip()]
        error = f"code cell [{now}] of {name}.ipynb:\n" + "\n".join("    " + line for line in lines[-8:])
    return Result(name, len(code), time.monotonic() - start, error)

# Code that a cell shows as Markdown stands in a proportional font on nbconvert's pages.
SNIPPETS_CSS = (".jp-OutputArea .highlight pre { font-family: var(--jp-code-font-family, monospace); font-size: 13px;"
                " white-space: pre; overflow-x: auto }")


def write_html(nb: nbformat.NotebookNode, path: Path, folder: Path, root: Path = NOTEBOOKS) -> Path:
    """Write `nb` as a web page below `folder`; links to other notebooks lead to their pages, figures keep their alt text."""
    from nbconvert import HTMLExporter

    target = folder / path.relative_to(root).with_suffix(".html")
    body, _ = HTMLExporter().from_notebook_node(nb, resources={"metadata": {"name": path.stem}})
    body = re.sub(r'(href="(?!\w+:)[^"]+)\.ipynb\b', r"\1.html", body)
    alts = iter([output.metadata.get("image/png", {}).get("alt", "") for cell in nb.cells if cell.cell_type == "code"
                 for output in cell.outputs if "image/png" in output.get("data", {})])
    body = re.sub(r'alt="No description has been provided for this image"',  # what nbconvert writes into each of them
                  lambda _: f'alt="{escape(next(alts, ""))}"', body)
    body = body.replace("</head>", f"<style>{SNIPPETS_CSS}</style></head>", 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(body, encoding="utf-8")
    return target


def table(results: list[Result]) -> str:
    """notebook | cells | seconds | result, and a last row with the sums."""
    width = max(len("notebook"), *(len(result.name) for result in results))
    failed = sum(bool(result.error) for result in results)
    rows = [("notebook", "cells", "seconds", "result"), ("-" * width, "-----", "-------", "------")]
    rows += [(r.name, str(r.cells), f"{r.seconds:.1f}", "FAILED" if r.error else "ok") for r in results]
    rows += [(f"{len(results)} notebooks", str(sum(r.cells for r in results)), f"{sum(r.seconds for r in results):.1f}",
              f"{failed} FAILED" if failed else "all ok")]
    return "\n".join(f"{a:<{width}} | {b:>5} | {c:>7} | {d}" for a, b, c, d in rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="START", help="notebooks whose path starts so, e.g. 03 or beyond/")
    parser.add_argument("--html", type=Path, metavar="FOLDER", help="write the executed notebooks as web pages")
    parser.add_argument("--update", action="store_true", help="store the outputs in the notebooks, if they ran to the end")
    parser.add_argument("--folder", type=Path, default=NOTEBOOKS, help="where the notebooks are")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    paths = find(folder, options.only)
    if not paths:
        print(f"No notebook in {folder} fits: see `ls notebooks`, and give the start of a name, e.g. --only 03.")
        return 1

    progress, results = Progress(len(paths)), []
    for path in paths:
        nb = nbformat.read(path, as_version=4)
        results.append(execute(nb, path, progress))
        if options.update and not results[-1].error:
            path.write_text(canonical(nb, path.stem), encoding="utf-8")
        if options.html:
            write_html(nb, path, options.html, folder)
        progress.report(results[-1])

    for result in results:
        if result.error:
            print(f"\nFAILED in {result.error}")
    print("\n" + table(results))
    if options.html:
        print(f"\nWeb pages: {options.html}")
    return int(any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())

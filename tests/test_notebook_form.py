"""The form of every notebook: complete, stable, readable on GitHub; and each rule catches what it is there for.

A rule is a generator: it gets a `Notebook` and yields one sentence for each thing that is wrong.
"""

import ast
import copy
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from run_notebooks import METADATA, canonical, find

ROOT = Path(__file__).resolve().parents[1]
PATHS = find(ROOT / "notebooks")
SHOWING = {"check", "display", "hint", "print", "show_diff", "show_snippet", "solution"}  # calls that leave an output
TAGS = {"nbval-ignore-output", "raises-exception", "hide-input"}
MAX_BYTES, MAX_LINES = 1_000_000, 25
UNKNOWN_COMMANDS = r"\\(?:(?:re)?newcommand|def|tag|label|(?:eq)?ref|require|DeclareMathOperator|operatorname)\b|\\\|"
ENVIRONMENTS = {"aligned", "array", "bmatrix", "cases", "matrix", "pmatrix"}  # what GitHub's renderer knows inside $$


@dataclass
class Notebook:
    """A notebook file: where it is, its text, and the text as JSON (`source`, `text` and `data` joined to strings)."""

    path: Path
    text: str

    @functools.cached_property
    def nb(self) -> nbformat.NotebookNode:
        return nbformat.v4.reads(self.text)

    def cells(self, kind: str) -> list[tuple[int, nbformat.NotebookNode]]:
        """(number from 1 among its kind, cell)."""
        return list(enumerate((cell for cell in self.nb.cells if cell.cell_type == kind), 1))

    def outputs(self) -> list[tuple[int, nbformat.NotebookNode, nbformat.NotebookNode]]:
        """(number of the code cell, cell, output)."""
        return [(n, cell, output) for n, cell in self.cells("code") for output in cell.outputs]

    def prose(self) -> list[tuple[int, str]]:
        """(number, text) of the markdown cells, without code blocks and code spans."""
        return [(n, re.sub(r"```.*?```|``.*?``|`[^`\n]*`", "", cell.source, flags=re.S)) for n, cell in self.cells("markdown")]


RULES = {}


def rule(function):
    RULES[function.__name__] = function
    return function


# --- the file ---------------------------------------------------------------------------------------------------------


@rule
def is_valid_nbformat_4_5(book):
    raw = json.loads(book.text)
    if (raw["nbformat"], raw["nbformat_minor"]) != (4, 5):
        yield f"nbformat {raw['nbformat']}.{raw['nbformat_minor']} is not 4.5"
    for error in nbformat.validator.iter_validate(raw, version=4, version_minor=5):
        yield f"not valid: {error.message[:200]}"


@rule
def has_unique_cell_ids(book):
    ids = [cell.get("id") for cell in json.loads(book.text)["cells"]]
    if None in ids:
        yield "a cell has no id"
    yield from (f"the id {i} occurs {ids.count(i)} times" for i in set(ids) - {None} if ids.count(i) > 1)


@rule
def has_only_stable_metadata(book):
    if book.nb.metadata != METADATA:
        yield f"notebook metadata is not {METADATA}"
    for n, cell in enumerate(book.nb.cells, 1):
        if set(cell.metadata) - {"tags"}:
            yield f"cell {n} has metadata beside tags: {sorted(cell.metadata)}"


@rule
def is_canonical_json(book):
    if book.text != canonical(copy.deepcopy(book.nb), book.path.stem):
        yield "the file differs from its canonical form: run `make update`"


@rule
def is_small(book):
    size = len(book.text.encode())
    if size > MAX_BYTES:
        yield f"{size:,} bytes are more than {MAX_BYTES:,}"


# --- code cells and outputs -------------------------------------------------------------------------------------------


@rule
def is_executed_in_order(book):
    """nbval compares nothing in a cell without count and outputs, so a stripped notebook would pass it."""
    for n, cell in book.cells("code"):
        if cell.execution_count != n:
            yield f"code cell {n} has execution count {cell.execution_count}"


@rule
def stores_what_cells_show(book):
    """A cell that prints, judges or ends in a value has an output; definitions, imports and assignments need none."""
    for n, cell in book.cells("code"):
        body = ast.parse(re.sub(r"^[%!].*$", "", cell.source, flags=re.M)).body
        calls = [s.value.func for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
        shows = any(isinstance(f, ast.Name) and f.id in SHOWING for f in calls)
        value = body and isinstance(body[-1], ast.Expr) and not isinstance(body[-1].value, (ast.Call, ast.Constant))
        if (shows or value) and not cell.outputs:
            yield f"code cell {n} shows something, but no output is stored"


@rule
def has_no_errors_and_warnings(book):
    for n, cell, output in book.outputs():
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
            yield f"code cell {n} stores an error: {output.ename}"
        if output.output_type == "stream" and output.name == "stderr":
            yield f"code cell {n} stores text on stderr: {output.text[:80]!r}"


@rule
def has_no_widgets(book):
    for n, _, output in book.outputs():
        if any("widget" in kind for kind in output.get("data", {})):
            yield f"code cell {n} shows a widget"


@rule
def has_figures_with_alt_text(book):
    for n, _, output in book.outputs():
        for kind in output.get("data", {}):
            if kind.startswith("image/") and not str(output.metadata.get(kind, {}).get("alt", "")).strip():
                yield f"code cell {n} shows a figure without alt text"
    for n, text in book.prose():
        for image in re.findall(r"!\[\s*\]\([^)]*\)|<img(?![^>]*\balt=[\"'][^\"'])[^>]*>", text):
            yield f"markdown cell {n} has an image without alt text: {image[:60]}"


@rule
def has_short_code_cells(book):
    for n, cell in book.cells("code"):
        lines = len(cell.source.strip().splitlines())
        if lines > MAX_LINES:
            yield f"code cell {n} has {lines} lines; longer code belongs in helpers/"


@rule
def has_no_absolute_paths(book):
    texts = [(f"{cell.cell_type} cell {n}", cell.source) for kind in ("code", "markdown") for n, cell in book.cells(kind)]
    for n, _, output in book.outputs():
        for kind, text in {**output.get("data", {}), "stream": output.get("text", "")}.items():
            texts.append((f"output of code cell {n}", "" if kind in {"image/png", "image/jpeg"} else str(text)))
    for where, text in texts:
        for found in re.findall(r"(?<![\w./~-])/(?:home|root|Users|tmp|mnt|opt|srv|work|workspaces?)/\S*|\b[CD]:\\\w\S*", text):
            yield f"{where} names a path of one machine: {found[:60]}"


@rule
def has_known_tags(book):
    for n, cell in enumerate(book.nb.cells, 1):
        for tag in set(cell.metadata.get("tags", [])) - TAGS:
            yield f"cell {n} has the tag {tag}; known are {', '.join(sorted(TAGS))}"
        if re.search(r"^\s*#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source, re.M):
            yield f"cell {n} steers nbval by a comment; use a tag"


# --- prose ------------------------------------------------------------------------------------------------------------


INLINE = r"\$((?:(?!\n\s*\n)[^$])+)\$"


def formulas(text: str) -> tuple[list[str], list[str], str]:
    """($$ formulas, $ formulas, the rest) of prose; a `$` that is left in the rest has no partner in its paragraph."""
    text = text.replace(r"\$", "")
    display, text = re.findall(r"\$\$(.*?)\$\$", text, re.S), re.sub(r"\$\$.*?\$\$", "", text, flags=re.S)
    return display, re.findall(INLINE, text), re.sub(INLINE, "", text)


@rule
def has_math_that_github_renders(book):
    for n, text in book.prose():
        display, inline, rest = formulas(text)
        where = f"markdown cell {n}"
        if "$" in rest:
            yield f"{where} has a $ without a partner"
        if r"\begin{" in rest:
            yield f"{where} has a formula outside of dollars"
        for formula in display + inline:
            for command in re.findall(UNKNOWN_COMMANDS, formula):
                yield f"{where} uses {command}, which GitHub does not render"
            for name in set(re.findall(r"\\begin\{([\w*]+)\}", formula)) - ENVIRONMENTS:
                yield f"{where} uses the environment {name}; known are {', '.join(sorted(ENVIRONMENTS))}"
            if sorted(re.findall(r"\\begin\{(.*?)\}", formula)) != sorted(re.findall(r"\\end\{(.*?)\}", formula)):
                yield f"{where} has \\begin and \\end that do not match"
            if re.sub(r"\\[{}]", "", formula).count("{") != re.sub(r"\\[{}]", "", formula).count("}"):
                yield f"{where} has braces that do not match: {formula.strip()[:60]}"
        for formula in inline:
            if formula != formula.strip():
                yield f"{where} has blanks inside the dollars of ${formula}$"
            if re.search(rf"\w\${re.escape(formula)}\$|\${re.escape(formula)}\$\w", text):
                yield f"{where} has a letter or digit that touches ${formula}$"
        for line in text.splitlines():
            if line.lstrip().startswith("|") and any("|" in formula for formula in formulas(line)[1]):
                yield f"{where} has a | in a formula of a table row; use \\lvert or \\mid"
        for block in re.finditer(r"^\$\$.*?\$\$[^\n]*$", text, re.S | re.M):
            before, after = text[:block.start()], text[block.end():]
            if not re.search(r"(^|\n[ \t]*\n)$", before) or not re.match(r"\n[ \t]*(\n|$)|$", after):
                yield f"{where} needs a blank line before and after the $$ formula {block[0].strip()[:50]!r}"


@rule
def has_links_that_lead_somewhere(book):
    for n, text in book.prose():
        _, _, text = formulas(text)
        for target in re.findall(r"\]\(\s*<?([^)\s>]+)|(?:href|src)=[\"']([^\"']+)", text):
            target = target[0] or target[1]
            path = target.split("#")[0]
            if re.match(r"[a-z]+:", target) or not path:
                continue
            goal = (book.path.parent / path).resolve()
            if not goal.exists() or ROOT not in goal.parents:
                yield f"markdown cell {n} links to {target}, which is not there"


@rule
def has_the_sections_of_a_lesson(book):
    text = "\n\n".join(cell.source for _, cell in book.cells("markdown"))
    code = "\n".join(cell.source for _, cell in book.cells("code"))
    first = book.nb.cells[0].source if book.nb.cells and book.nb.cells[0].cell_type == "markdown" else ""
    number = re.match(r"\d+", book.path.stem)
    title = rf"# {number[0]} · \S" if number else r"# \S"
    if not re.match(title, first):
        yield f"the first cell does not start with the title `{title[:-2]}…`"
    if len(re.findall(r"^# ", re.sub(r"```.*?```", "", text, flags=re.S), re.M)) > 1:
        yield "there is more than one title"
    if "You will be able to" not in text:
        yield "it does not say: You will be able to"
    sections = {name: body for name, body in re.findall(r"^## +(.+?)\s*\n(.*?)(?=^## |\Z)", text, re.S | re.M)}
    if not re.search(r"^\|[-: |]+\|\s*$", sections.get("Summary", ""), re.M):
        yield "there is no section `## Summary` with a table"
    if not re.search(r"\w", sections.get("References", "")):
        yield "there is no section `## References` with an entry"
    if not re.search(r"^### Exercise ", text, re.M) or not re.search(r"^check\(", code, re.M):
        yield "there is no exercise: a heading `### Exercise …` and a cell with check(…)"


# --- the tests --------------------------------------------------------------------------------------------------------


def test_there_are_notebooks():
    assert PATHS, "notebooks/ has no notebook"


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_notebook(path, name):
    problems = list(RULES[name](Notebook(path, path.read_text(encoding="utf-8"))))
    if problems:
        pytest.fail("\n".join([f"{path.name} breaks the rule {name}:", *problems]), pytrace=False)


LESSON = [  # a notebook that follows every rule
    ("markdown", "# 99 · A lesson\n\n**You will be able to** see $x_1$ and [the rest](../pyproject.toml)."),
    ("code", "x = 1\nprint(x)", {"output_type": "stream", "name": "stdout", "text": "1\n"}),
    ("code", "x", {"output_type": "display_data", "data": {"image/png": "AA=="}, "metadata": {"image/png": {"alt": "A dot."}}}),
    ("markdown", "A formula:\n\n$$\\begin{aligned} a &= b \\end{aligned}$$\n\nand `code $`."),
    ("markdown", "### Exercise 99-a · one\n\nDo it."),
    ("code", "check('99-one', ...)", {"output_type": "stream", "name": "stdout", "text": "open\n"}),
    ("markdown", "## Summary\n\n| what | seen |\n|---|---|\n| a | b |\n\n## References\n\n* A. Author, A paper, 2026."),
]


def lesson(change=lambda raw: None) -> Notebook:
    """The good notebook after `change` of its JSON."""
    cells = []
    for n, (kind, source, *outputs) in enumerate(LESSON):
        cell = {"cell_type": kind, "id": f"99-{n}", "metadata": {}, "source": source}
        if kind == "code":
            cell.update(outputs=copy.deepcopy(outputs), execution_count=1 + sum(c["cell_type"] == "code" for c in cells))
        cells.append(cell)
    raw = {"nbformat": 4, "nbformat_minor": 5, "metadata": copy.deepcopy(METADATA), "cells": cells}
    change(raw)
    return Notebook(ROOT / "notebooks" / "99_lesson.ipynb", nbformat.v4.writes(nbformat.from_dict(raw)) + "\n")


def markdown(text):
    """A change: one more markdown cell."""
    return lambda raw: raw["cells"].insert(3, {"cell_type": "markdown", "id": "99-new", "metadata": {}, "source": text})


def code(**fields):
    """A change: other fields in the first code cell."""
    return lambda raw: raw["cells"][1].update(fields)


def output(**fields):
    return code(outputs=[fields])


def replace(old, new):
    """A change of the text of every cell."""
    def change(raw):
        for cell in raw["cells"]:
            cell["source"] = cell["source"].replace(old, new)
    return change


def image(**metadata):
    return output(output_type="display_data", data={"image/png": "AA=="}, metadata=metadata)


def stream(text, name="stdout"):
    return output(output_type="stream", name=name, text=text)


def strip(raw):
    for cell in raw["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)


WIDGET = "application/vnd.jupyter.widget-view+json"
BROKEN = [  # rule, change, words of the complaint
    ("is_valid_nbformat_4_5", lambda raw: raw.update(nbformat_minor=4), "not 4.5"),
    ("is_valid_nbformat_4_5", code(outputs=[{"output_type": "stream", "text": "x"}]), "not valid"),
    ("is_valid_nbformat_4_5", lambda raw: raw["cells"][1].pop("execution_count"), "not valid"),
    ("has_unique_cell_ids", lambda raw: raw["cells"][0].pop("id"), "no id"),
    ("has_unique_cell_ids", code(id="99-0"), "99-0 occurs 2 times"),
    ("has_only_stable_metadata", lambda raw: raw["metadata"]["kernelspec"].update(name="conda-env"), "notebook metadata"),
    ("has_only_stable_metadata", lambda raw: raw["metadata"]["language_info"].update(version="3.11.7"), "notebook metadata"),
    ("has_only_stable_metadata", lambda raw: raw["metadata"].update(widgets={}), "notebook metadata"),
    ("has_only_stable_metadata", code(metadata={"execution": {"iopub.status.busy": "now"}}), "metadata beside tags"),
    ("is_canonical_json", code(metadata={"collapsed": True}), "canonical"),
    ("is_small", stream("x" * MAX_BYTES), "more than"),
    ("is_executed_in_order", strip, "execution count None"),
    ("is_executed_in_order", code(execution_count=7), "execution count 7"),
    ("stores_what_cells_show", code(outputs=[]), "no output is stored"),
    ("stores_what_cells_show", code(source="x = 1\nx", outputs=[]), "no output is stored"),
    ("stores_what_cells_show", lambda raw: raw["cells"][5].update(outputs=[]), "no output is stored"),
    ("has_no_errors_and_warnings", output(output_type="error", ename="ValueError", evalue="", traceback=[]), "stores an error"),
    ("has_no_errors_and_warnings", stream("RuntimeWarning: overflow", name="stderr"), "on stderr"),
    ("has_no_widgets", output(output_type="display_data", metadata={}, data={WIDGET: {}}), "widget"),
    ("has_figures_with_alt_text", image(), "figure without alt text"),
    ("has_figures_with_alt_text", image(**{"image/png": {"alt": " "}}), "figure without alt text"),
    ("has_figures_with_alt_text", markdown("![](../docs/a.png)"), "image without alt text"),
    ("has_figures_with_alt_text", markdown('<img src="a.png" width="3">'), "image without alt text"),
    ("has_short_code_cells", code(source="x = 1\n" * 26), "26 lines"),
    ("has_no_absolute_paths", code(source="open('/home/me/x')"), "/home/me/x"),
    ("has_no_absolute_paths", markdown("Look into /Users/me/course."), "/Users/me"),
    ("has_no_absolute_paths", stream("C:\\Users\\me"), "C:\\Users"),
    ("has_no_absolute_paths", stream("cached in /root/.cache\n"), "/root/.cache"),
    ("has_no_absolute_paths", stream("File /srv/x.py\n"), "/srv/x.py"),
    ("has_known_tags", code(metadata={"tags": ["nbval-skip"]}), "nbval-skip"),
    ("has_known_tags", code(metadata={"tags": ["nbval-raises-exception"]}), "nbval-raises-exception"),  # unknown to `make run`
    ("has_known_tags", code(source="# NBVAL_IGNORE_OUTPUT\nprint(1)"), "by a comment"),
    ("has_math_that_github_renders", markdown("It costs $5."), "without a partner"),
    ("has_math_that_github_renders", markdown("From $x\n\nto y$."), "without a partner"),
    ("has_math_that_github_renders", markdown(r"$\newcommand{\m}{x}$"), r"\newcommand"),
    ("has_math_that_github_renders", markdown(r"$$x \tag{1}$$"), r"\tag"),
    ("has_math_that_github_renders", markdown(r"$\operatorname{ulp}$"), r"\operatorname"),
    ("has_math_that_github_renders", markdown("\\begin{aligned} x \\end{aligned}"), "outside of dollars"),
    ("has_math_that_github_renders", markdown(r"$\|x\|$"), r"\|"),
    ("has_math_that_github_renders", markdown("$$\\begin{align} x \\end{align}$$"), "environment align"),
    ("has_math_that_github_renders", markdown("$$\\begin{align*} x \\end{align*}$$"), "environment align*"),
    ("has_math_that_github_renders", markdown("$$\\begin{cases} x$$"), "do not match"),
    ("has_math_that_github_renders", markdown("$x_{1$"), "braces that do not match"),
    ("has_math_that_github_renders", markdown("$ x $"), "blanks inside"),
    ("has_math_that_github_renders", markdown("the $k$th"), "touches"),
    ("has_math_that_github_renders", markdown("| a |\n|---|\n| $|x|$ |"), "table row"),
    ("has_math_that_github_renders", markdown("Then\n$$x$$\n\nholds."), "blank line"),
    ("has_math_that_github_renders", markdown("Then\n\n$$\nx\n$$\nholds."), "blank line"),
    ("has_links_that_lead_somewhere", markdown("[next](98_missing.ipynb#part)"), "98_missing"),
    ("has_links_that_lead_somewhere", markdown('<a href="nowhere.md">x</a>'), "nowhere.md"),
    ("has_links_that_lead_somewhere", markdown("[out](../../)"), "not there"),
    ("has_the_sections_of_a_lesson", replace("# 99 ·", "# 98 ·"), "title"),
    ("has_the_sections_of_a_lesson", lambda raw: raw["cells"].pop(0), "title"),
    ("has_the_sections_of_a_lesson", markdown("# Another"), "more than one title"),
    ("has_the_sections_of_a_lesson", replace("You will be able to", "You learn to"), "You will be able to"),
    ("has_the_sections_of_a_lesson", replace("## Summary", "## The end"), "Summary"),
    ("has_the_sections_of_a_lesson", replace("|---|---|", ""), "Summary"),
    ("has_the_sections_of_a_lesson", replace("* A. Author, A paper, 2026.", ""), "References"),
    ("has_the_sections_of_a_lesson", replace("### Exercise", "### Task"), "no exercise"),
    ("has_the_sections_of_a_lesson", replace("check(", "print("), "no exercise"),
]


@pytest.mark.parametrize("name", RULES)
def test_good_notebook_passes(name):
    assert list(RULES[name](lesson())) == []


def test_other_layouts_are_not_canonical():
    good = lesson()
    for text in (good.text[:-1], json.dumps(json.loads(good.text)), json.dumps(good.nb, indent=1, sort_keys=True) + "\n"):
        assert list(RULES["is_canonical_json"](Notebook(good.path, text)))


@pytest.mark.parametrize("name, change, words", BROKEN, ids=[f"{name}-{words}" for name, _, words in BROKEN])
def test_broken_notebook_is_caught(name, change, words):
    assert words in "\n".join(RULES[name](lesson(change)))


def test_every_rule_has_a_broken_notebook():
    assert set(RULES) == {name for name, _, _ in BROKEN}

"""The README's result tables are what the records say, and every notebook is on its map."""

from pathlib import Path

import readme_tables

ROOT = Path(__file__).resolve().parent.parent


def test_tables_are_generated_from_the_records():
    assert readme_tables.updated(readme_tables.README.read_text(encoding="utf-8")) == readme_tables.README.read_text(encoding="utf-8")


def test_course_map_lists_exactly_the_notebooks_there_are():
    text = readme_tables.README.read_text(encoding="utf-8")
    listed = {line.split("](notebooks/")[1].split(")")[0] for line in text.splitlines() if line.startswith("|") and "](notebooks/" in line}
    assert listed == {p.relative_to(ROOT / "notebooks").as_posix() for p in (ROOT / "notebooks").rglob("*.ipynb")}

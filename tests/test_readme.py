"""The README's result tables are what the records say, and every notebook is on its map."""

import re
from pathlib import Path

import readme_tables

ROOT = Path(__file__).resolve().parent.parent


def test_tables_are_generated_from_the_records():
    assert readme_tables.updated(readme_tables.README.read_text(encoding="utf-8")) == readme_tables.README.read_text(encoding="utf-8")


def test_course_map_lists_exactly_the_notebooks_there_are_with_their_minutes():
    text = readme_tables.README.read_text(encoding="utf-8")
    listed = dict(re.findall(r"\]\(notebooks/(\S+)\) \|[^|]*\| (\d+ / \d+) min \|", text))
    minutes = r"(\d+) min to read · (\d+) min to teach"
    assert listed == {p.relative_to(ROOT / "notebooks").as_posix(): " / ".join(re.search(minutes, p.read_text(encoding="utf-8")).groups())
                      for p in (ROOT / "notebooks").rglob("*.ipynb")}

"""TEACHING.md: its tables are what the notebooks and the record say, and its plans add up and name what exists."""

import re
from pathlib import Path

import pytest
import teaching_table

ROOT = Path(__file__).resolve().parents[1]
TEXT = teaching_table.TEACHING.read_text(encoding="utf-8")
LESSONS = {lesson.link: lesson for lesson in teaching_table.lessons()}
EXERCISES = {label: minutes for lesson in LESSONS.values() for label, _, _, minutes, _ in lesson.exercises}
PLANS = re.findall(r"^## ([^\n]*?)(\d+) (minutes.*?)\n(.*?)(?=^## )", TEXT, re.M | re.S)
ROW = r"^\| (\d+) \| (.*) \| (.*) \|$"


def test_tables_are_generated():
    assert teaching_table.updated(TEXT) == TEXT, "run python tools/teaching_table.py"


def test_readme_leads_here():
    assert "(TEACHING.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_is_a_plan_for_each_length():
    assert [int(minutes) for _, minutes, *_ in PLANS] == [90, 210, 420]


@pytest.mark.parametrize("title, minutes, rest, body", PLANS, ids=[plan[1] for plan in PLANS])
def test_plan_adds_up(title, minutes, rest, body):
    for table in re.findall(r"(?:^\|.*\n)+", body, re.M):
        rows = re.findall(r"^\| (\d+) \|", table, re.M)
        assert sum(map(int, rows)) == int(minutes)


def test_plans_name_what_exists():
    rows = [row for *_, body in PLANS for row in re.findall(ROW, body, re.M)]
    assert len(rows) > 20
    for minutes, what, exercises in rows:
        books = [LESSONS[link] for link in re.findall(r"\]\((notebooks/[^)]+)\)", what)]
        for section in re.findall(r'"([^"]+)"', what):
            assert any(section in lesson.sections for lesson in books), section
        named = re.findall(r"(\w+-\w) \((\d+) min\)", exercises)
        assert exercises in ("", " ") or ", ".join(f"{label} ({m} min)" for label, m in named) == exercises
        assert all(EXERCISES[label] == int(m) for label, m in named), exercises
        if "of your choice" not in what:
            assert sum(int(m) for _, m in named) < int(minutes), what
        for lesson in books:
            assert lesson.path.stem[:2] in what

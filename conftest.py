"""Rules for strict nbval runs (`pytest --nbval notebooks`): nothing may be left out silently.

This file lies in the root because pytest applies the hooks of tests/conftest.py only to files below tests/.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
CELL = "compared with its stored output"


def is_cell(item) -> bool:
    return item.path.suffix == ".ipynb"


def pytest_collectstart(collector):
    """SVG differs by a byte from version to version; like PNG it is not compared, while the text beside it is."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("image/svg+xml",)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    """Skip `gpu` tests without a GPU; refuse an nbval run over notebooks/ that misses a notebook."""
    for item in items:
        if item.get_closest_marker("gpu"):
            from helpers.device import on_gpu
            if not on_gpu:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: make gpu-check"))

    cells = [item for item in items if is_cell(item)]
    for item in cells:  # travels with the report, also from one process to another
        item.user_properties.append((CELL, bool(item.options["check"])))
    folder = ROOT / "notebooks"
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    whole = config.option.nbval and any(path == folder or path in folder.parents for path in asked)
    if whole and not config.getoption("lf", False) and not session.testsfailed:
        there = {path for path in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts}
        missed = sorted(path.name for path in there - {item.path for item in cells})
        if missed or not there:
            raise pytest.UsageError(f"nbval did not collect these notebooks: {', '.join(missed)}" if missed else
                                    f"there is no notebook in {folder}")


def pytest_terminal_summary(terminalreporter):
    """How much was executed, and how much of it compared with the stored outputs; also when workers share the tests."""
    reports = {report.nodeid: report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])
               if report.when == "call" and CELL in dict(report.user_properties)}
    if reports:
        passed = [report for report in reports.values() if report.passed]
        compared = sum(dict(report.user_properties)[CELL] for report in passed)
        notebooks = {nodeid.split("::")[0] for nodeid in reports}
        total = len(list((ROOT / "notebooks").rglob("*.ipynb")))
        terminalreporter.write_line(
            f"nbval: {len(notebooks)} of {total} notebooks, {len(reports)} code cells; "
            f"passed: {len(passed)} executed, {compared} of them compared with the stored output")

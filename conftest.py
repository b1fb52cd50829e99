"""Rules for strict nbval runs (`pytest --nbval notebooks`): nothing may be left out silently.

This file lies in the root because pytest applies the hooks of tests/conftest.py only to files below tests/.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
CELLS = pytest.StashKey[list]()


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
    config.stash[CELLS] = cells
    folder = ROOT / "notebooks"
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    whole = config.option.nbval and any(path == folder or path in folder.parents for path in asked)
    if whole and not config.getoption("lf", False) and not session.testsfailed:
        there = {path for path in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts}
        missed = sorted(path.name for path in there - {item.path for item in cells})
        if missed or not there:
            raise pytest.UsageError(f"nbval did not collect these notebooks: {', '.join(missed)}" if missed else
                                    f"there is no notebook in {folder}")


def pytest_terminal_summary(terminalreporter, config):
    """How much was executed, and how much of it compared with the stored outputs."""
    cells = config.stash.get(CELLS, [])
    if cells:
        passed = {report.nodeid for report in terminalreporter.stats.get("passed", []) if report.when == "call"}
        compared = {item.nodeid for item in cells if item.options["check"]}
        total = len(list((ROOT / "notebooks").rglob("*.ipynb")))
        terminalreporter.write_line(
            f"nbval: {len({item.path for item in cells})} of {total} notebooks, {len(cells)} code cells; "
            f"passed: {len(passed & {item.nodeid for item in cells})} executed, "
            f"{len(passed & compared)} of them compared with the stored output")

"""The plots of 01 and 02 draw, carry alt text, and their ranges and outcomes agree with exact arithmetic."""

from decimal import Decimal

import ml_dtypes
import numpy as np
import pytest

from helpers.data import attention_scores
from helpers.figures import overflow


@pytest.fixture
def shown(monkeypatch):
    """Collect (figure, alt) instead of displaying."""
    seen = []
    monkeypatch.setattr(overflow, "show", lambda fig, alt: seen.append((fig, alt)))
    return seen


@pytest.mark.parametrize("name", overflow.FORMATS)
def test_ranges_bracket_exact_exp(name):
    info = ml_dtypes.finfo(overflow.FORMATS[name])
    low, normal, high = (Decimal(v) for v in overflow.exp_range(overflow.FORMATS[name]))
    largest, smallest, tiny = (Decimal(float(v)) for v in (info.max, info.smallest_subnormal, info.tiny))
    step = Decimal("1e-9")
    assert (high - step).exp() < largest < (high + step).exp()
    assert (low - step).exp() < smallest / 2 < (low + step).exp()
    assert (normal - step).exp() < tiny < (normal + step).exp()


@pytest.mark.parametrize("row, expected", [
    ([10, 10], "right"), ([12, 0, 0], "nan"), ([11, 11], "zeros"), ([-1000] * 512, "nan"), ([-17, -16], "wrong"),
    ([-20, 5], "right")])
def test_outcome_names_each_failure(row, expected):
    assert overflow.outcome(np.array(row, np.float16)) == expected


def test_every_figure_draws_and_has_alt_text(shown):
    overflow.number_line(attention_scores(), attention_scores(scaled=True))
    overflow.outcome_map()
    walk = [("read", i) for i in range(3)]
    overflow.passes({"naive": walk + [("read", 0), ("write", 0)], "safe": walk * 2})
    overflow.shift_window(np.linspace(-3, 3, 8), np.arange(-20, 25, 5.0))
    errors = {"a": [1e-7, 1e-6], "b": [1e-3, np.inf]}
    overflow.log_softmax_errors([1.0, 10.0], errors, [5.0, 110.0], errors)
    assert len(shown) == 5 and all(len(alt) > 80 for _, alt in shown)
    for fig, _ in shown:
        fig.canvas.draw()


def test_passes_counts_what_it_is_given(shown):
    walk = [("read", i) for i in range(4)]
    overflow.passes({"safe": walk * 3 + [("write", i) for i in range(4)]})
    (fig, alt), = shown
    assert "3 reads + 1 write" in fig.axes[0].get_title(loc="left") and "3 reads and 1 write" in alt

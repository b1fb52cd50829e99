"""Plots of notebooks 01 and 02: where exp ends, how the naive formula fails, what three passes read, what a shift costs."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap

from .. import reference
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, new_figure, show

FORMATS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64}


def exp_range(dtype) -> tuple[float, float, float]:
    """Real x between which exp(x) fits `dtype`: (last x that gives 0, first with all digits, first that gives inf)."""
    info = ml_dtypes.finfo(dtype)
    half_smallest = math.log(float(info.smallest_subnormal)) - math.log(2.0)
    return half_smallest, math.log(float(info.tiny)), math.log(float(info.max))


def outcome(row, tolerance: float = 0.01) -> str:
    """What the naive formula makes of one row (shape [N]) in its own dtype: "right", "nan", "zeros" or "wrong".

    "zeros": finite, but the row sums to 0.  "wrong": a probability is off by more than `tolerance` of the largest one.
    """
    got = np.asarray(reference.naive_softmax(row), dtype=np.float64)
    if np.isnan(got).any():
        return "nan"
    if got.sum() == 0:
        return "zeros"
    truth = reference.softmax(row)
    return "right" if np.abs(got - truth).max() <= tolerance * truth.max() else "wrong"


def number_line(raw, scaled) -> None:
    """Histograms of attention scores (any shape) above the range of exp in each format, on one axis."""
    fig, (top, bottom) = new_figure(7.5, 4.6, rows=2, sharex=True, height_ratios=[3, 2.4])
    bins = np.arange(-250, 251, 5)
    raw, scaled = (np.asarray(a, dtype=np.float64).ravel() for a in (raw, scaled))
    top.hist(raw, bins, color="#D0D0D0", edgecolor=GREY, linewidth=0.4, label="q·k")
    top.hist(scaled, bins, histtype="stepfilled", facecolor=SKY, edgecolor=BLUE, linewidth=1.6, alpha=0.75,
             label="q·k / √D")
    top.set_yscale("log")
    top.set_ylabel("scores per bin of 5")
    top.legend(loc="upper left")
    top.set_title("Attention scores of a real transformer layer (4 heads, 128 tokens)", loc="left")
    for y, dtype in enumerate(FORMATS.values()):
        low, normal, high = exp_range(dtype)
        bottom.barh(y, high - normal, left=normal, height=0.55, color=GREEN)
        bottom.barh(y, normal - low, left=low, height=0.55, facecolor="white", edgecolor=GREEN, hatch="/////",
                    linewidth=0.8)
        if high < 250:
            bottom.text(high + 4, y, f"inf past {high:.2f}", va="center", fontsize=9)
            bottom.text(low - 4, y, f"0 below −{-low:.1f}", va="center", ha="right", fontsize=9)
        else:
            bottom.text(246, y, f"→ {high:.2f}", va="center", ha="right", fontsize=9, color="white", weight="bold")
            bottom.text(-246, y, f"−{-low:.1f} ←", va="center", ha="left", fontsize=9, color="white", weight="bold")
    for x, style in ((exp_range(np.float16)[2], "-"), (exp_range(np.float32)[2], "--")):
        for ax in (top, bottom):
            ax.axvline(x, color=VERMILLION, linestyle=style, linewidth=1.2, zorder=0.5 if ax is bottom else 3)
    top.text(exp_range(np.float16)[2] + 3, 3e4, "fp16 ends", color=VERMILLION, fontsize=9)
    top.text(exp_range(np.float32)[2] + 3, 3e4, "bf16 and fp32 end", color=VERMILLION, fontsize=9)
    bottom.set_yticks(range(len(FORMATS)), FORMATS)
    bottom.invert_yaxis()
    bottom.grid(False, axis="y")
    bottom.set_xlim(-250, 250)
    bottom.set_xlabel("x   (green: exp(x) with all its digits, hatched: exp(x) subnormal, losing digits)")
    show(fig, alt="Top: histogram of attention scores from -219 to 234 before the division by the square root of D, and "
                  "from -39 to 41 after it. Bottom: bars of the x for which exp(x) is neither 0 nor infinite: fp16 from "
                  "-17.3 to 11.09, bf16 from -92.9 to 88.72, fp32 from -104.0 to 88.72, fp64 far beyond both edges. Many "
                  "scores of both histograms lie to the right of the fp16 bar.")


_OUTCOMES = {"right": "#CDEBDD", "wrong": "#E69F00", "zeros": "#7FB9DC", "nan": "#B04A00"}


def outcome_map(dtype=np.float16) -> None:
    """What the naive formula gives for rows of N scores spread evenly from s - 1 to s: a map over s and N."""
    scores = np.arange(-24.0, 16.01, 0.5)
    lengths = 2 ** np.arange(2, 17)
    names = list(_OUTCOMES)
    grid = np.empty((len(lengths), len(scores)), dtype=int)
    for i, n in enumerate(lengths):
        spread = np.linspace(-1.0, 0.0, n)
        for j, s in enumerate(scores):
            grid[i, j] = names.index(outcome((s + spread).astype(dtype)))
    fig, ax = new_figure(7.5, 3.6)
    edges_x = np.append(scores - 0.25, scores[-1] + 0.25)
    edges_y = np.append(np.log2(lengths) - 0.5, np.log2(lengths[-1]) + 0.5)
    levels = np.arange(-0.5, len(names))
    ax.pcolormesh(edges_x, edges_y, grid, cmap=ListedColormap(list(_OUTCOMES.values())),
                  norm=BoundaryNorm(levels, len(names)))
    for x, y, text, color in ((-20.9, 8.5, "NaN\n0 / 0", "white"), (-15.0, 8.5, "wrong\ndigits", BLACK),
                              (-2.5, 8.5, "right", BLACK), (6.8, 13.2, "zeros\n(the sum is inf)", BLACK),
                              (13.6, 8.5, "NaN\ninf / inf", "white")):
        ax.text(x, y, text, ha="center", va="center", color=color, fontsize=10, weight="bold")
    line = np.log2(ml_dtypes.finfo(dtype).max) - (scores + math.log(1 - math.exp(-1))) / math.log(2)
    ax.plot(scores, line, color=BLACK, linestyle="--", linewidth=1.2)
    ax.set_xlim(edges_x[0], edges_x[-1])
    ax.set_ylim(edges_y[0], edges_y[-1])
    ax.set_yticks([2, 4, 8, 12, 16], ["4", "16", "256", "4,096", "65,536"])
    ax.set_xlabel("largest score s in the row")
    ax.set_ylabel("row length N")
    ax.grid(False)
    ax.set_title("Naive softmax in fp16: rows of N scores between s − 1 and s", loc="left")
    show(fig, alt="A map over score and row length. From left to right: NaN from 0/0 for scores below about -17, wrong "
                  "digits up to about -13, right, zeros where the sum overflows, NaN above 11.09. The right region is cut "
                  "by a dashed diagonal, log of the sum equal to log 65504: it narrows as rows get longer and ends near "
                  "score 0 at N = 65,536.")


def passes(logs: dict[str, list[tuple[str, int]]]) -> None:
    """One panel per algorithm: every access in time order, and each element's reads and writes as stacked bars.

    `logs` maps a name to accesses in the order they happened, each ("read" | "write", element).
    """
    longest = max(len(log) for log in logs.values())
    size = 1 + max(i for log in logs.values() for _, i in log)
    fig, axes = new_figure(7.5, 2.45 * len(logs), rows=len(logs), cols=2, width_ratios=[3.2, 1], sharey=True,
                           sharex="col", squeeze=False)
    shades = (BLUE, SKY, PURPLE, GREEN)
    for (walk, bars), (name, log) in zip(axes, logs.items(), strict=True):
        seen = np.zeros(size, dtype=int)
        for time, (kind, i) in enumerate(log):
            if kind == "read":
                color = shades[seen[i] % len(shades)]
                walk.plot(time, i, marker="o", color=color, markersize=6)
                bars.barh(i, 1, left=seen[i], height=0.7, color=color, edgecolor="white")
                bars.text(seen[i] + 0.5, i, str(seen[i] + 1), ha="center", va="center", fontsize=8, weight="bold",
                          color="white" if seen[i] == 0 else BLACK)
                seen[i] += 1
            else:
                walk.plot(time, i, marker="s", color=ORANGE, markersize=6)
                bars.barh(i, 1, left=seen[i], height=0.7, color=ORANGE, edgecolor=BLACK, hatch="////", linewidth=0.6)
        reads = sum(kind == "read" for kind, _ in log)
        walk.set_title(f"{name}: {reads // size} reads + {(len(log) - reads) // size} write of each element", loc="left")
        walk.set_ylabel("element")
        walk.set_xlim(-1, longest)
        walk.set_yticks(range(size))
        bars.grid(False)
        bars.set_xlim(0, 4.2)
        bars.set_xticks(range(5))
    axes[0, 0].invert_yaxis()
    axes[-1, 0].set_xlabel("access, in time order   (dot: read of x, square: write of y)")
    axes[-1, 1].set_xlabel("accesses per element\n(number: which read)")
    parts = [f"{name}: {sum(k == 'read' for k, _ in log) // size} reads and "
             f"{sum(k == 'write' for k, _ in log) // size} write of each of the {size} elements" for name, log in logs.items()]
    show(fig, alt="Accesses to a row in time order: each pass is a diagonal of dots through all elements, the last pass "
                  "also writes. Stacked bars count them. " + "; ".join(parts) + ".")


def shift_window(row, shifts) -> None:
    """Error of exp(x - c) / sum over the shift c, for fp16 and fp32; `row` float64 [N], `shifts` c - max(row)."""
    row, shifts = np.asarray(row, dtype=np.float64), np.asarray(shifts, dtype=np.float64)
    fig, ax = new_figure(7.5, 3.4)
    for name, color, marker, level in (("fp16", VERMILLION, "o", 3.0), ("fp32", BLUE, "s", 12.0)):
        x = row.astype(FORMATS[name])
        truth = reference.softmax(x)
        errors = []
        for shift in shifts:
            c = x.dtype.type(np.float64(x.max()) + shift)
            got = np.asarray(reference.naive_softmax(x - c), dtype=np.float64)
            bad = np.isnan(got).any() or got.sum() == 0
            errors.append(np.nan if bad else np.abs(got - truth).max())
        errors = np.array(errors)
        ok = ~np.isnan(errors)
        ax.plot(shifts[ok], errors[ok], color=color, marker=marker, markersize=3, label=name)
        ax.plot(shifts[~ok], np.full((~ok).sum(), level), color=color, marker="x", linestyle="none", markersize=4)
    ax.axvline(0, color=BLACK, linestyle="--", linewidth=1.2)
    ax.text(1.5, 1e-11, "c = m", fontsize=10)
    ax.text(shifts[0], 60, "× : NaN or zeros", fontsize=9, va="bottom")
    ax.set_yscale("log")
    ax.set_ylim(1e-12, 1e3)
    ax.set_yticks([1e-12, 1e-9, 1e-6, 1e-3, 1])
    ax.set_xlabel("shift c − m, distance from the row's maximum")
    ax.set_ylabel("largest error of a probability")
    ax.legend(loc="lower right")
    ax.set_title("Any shift near the maximum works; how near depends on the format", loc="left")
    show(fig, alt="Error of the shifted softmax against the distance of the shift from the row's maximum. Each format has "
                  "a flat valley around 0: fp16 from about -10 to about 8, fp32 from about -87 to about 90. Left of the "
                  "valley the result is zeros or NaN, right of it the error rises and ends in NaN.")


def log_softmax_errors(maxima, by_maximum: dict, distances, by_distance: dict) -> None:
    """Two panels: error of three forms of log-softmax over the row's maximum, and over the distance below it."""
    fig, (left, right) = new_figure(7.5, 3.5, cols=2, sharey=True)
    for name, color, marker, line in zip(by_maximum, (GREEN, VERMILLION, BLUE), "os^", ("-", "--", ":"), strict=False):
        left.plot(maxima, by_maximum[name], color=color, marker=marker, linestyle=line, label=name)
        error = np.asarray(by_distance[name], dtype=np.float64)
        ok = np.isfinite(error)
        right.plot(np.asarray(distances)[ok], error[ok], color=color, marker=marker, linestyle=line, markersize=4)
        if not ok.all():
            right.plot(np.asarray(distances)[~ok], np.full((~ok).sum(), 10.0), color=color, marker="x", linestyle="none")
            right.text(np.asarray(distances)[~ok].mean(), 25.0, "−inf", color=color, ha="center")
    left.plot(maxima, np.spacing(np.asarray(maxima, dtype=np.float32)) / 2, color=GREY, linewidth=1, zorder=0,
              label="half the gap between\nfp32 numbers near m")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_ylim(1e-8, 1e2)
    left.set_xlabel("maximum m of the row")
    left.set_ylabel("largest error against float64")
    left.set_title("big scores", loc="left")
    left.legend(fontsize=8, loc="upper left")
    right.set_xlabel("distance of x below m")
    right.set_title("unlikely entries", loc="left")
    show(fig, alt="Left: errors over the row's maximum from 1 to a million; (x-m)-log d and log(softmax) stay near 1e-6, "
                  "x-(m+log d) grows in proportion to the maximum up to 0.03. Right: errors over the distance below the "
                  "maximum; the first two forms stay small, log(softmax) grows past 87 and is minus infinity past 104.")

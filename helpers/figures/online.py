"""Plots of notebook 03: the state along a row, how often the maximum changes, what the recurrence does to rounding."""

from __future__ import annotations

import numpy as np

from helpers import reference
from helpers.figures.style import BLUE, GREEN, GREY, ORANGE, VERMILLION, new_figure, show


def trace(row) -> None:
    """Draw x_k with m_k, then d_k, then the correction factor, along one row of shape [N]."""
    row = np.asarray(row)
    m, d, factor = reference.online_trace(row)
    k = np.arange(1, len(row) + 1)
    changes = np.diff(m, prepend=-np.inf) > 0
    fig, (top, middle, bottom) = new_figure(8.2, 6.0, rows=3, sharex=True, height_ratios=(1.3, 1, 0.8))
    for ax in (top, middle, bottom):
        ax.grid(axis="x", visible=False)
        for position in k[changes]:
            ax.axvline(position, color=GREY, linewidth=1, linestyle=":")
    top.plot(k, row, "o", color=BLUE, markersize=4, label="element $x_k$")
    top.step(k, m, where="post", color=VERMILLION, label="row_max $m_k$")
    top.set(ylabel="score", ylim=(None, m[-1] + 0.35 * np.ptp(row)), xlim=(0, len(row) + 1),
            title=f"{changes.sum()} of {len(row)} elements raise the maximum (dotted lines)")
    top.legend(loc="upper left", ncols=2)
    middle.plot(k, d, "s-", color=GREEN, markersize=3.5)
    middle.axhline(1, color=GREY, linewidth=1, linestyle="--")
    middle.set(ylabel="normalizer $d_k$", ylim=(0, None),
               title="A new maximum scales the sum down, then adds 1: it never falls below 1 (dashed)")
    bottom.plot(k[~changes], factor[~changes], "D", color=GREY, markersize=3)
    bottom.vlines(k[changes], factor[changes], 1, color=ORANGE, linewidth=2.5)
    bottom.plot(k[changes], factor[changes], "D", color=ORANGE, markeredgecolor="black", markersize=5)
    bottom.set(ylabel="$e^{m_{k-1}-m_k}$", xlabel="position k in the row", ylim=(-0.08, 1.12),
               title="The correction factor: 1 unless the maximum has just changed")
    show(fig, alt=f"Three panels along a row of {len(row)} elements. Top: the elements as dots, their running maximum "
                  f"as a staircase with {changes.sum()} steps. Middle: the normalizer, rising between the steps and "
                  "scaled down at each of them, at least 1. Bottom: the correction factor, 1 except at the steps.")


def rescales(sizes, counts, attention=None) -> None:
    """New maxima per row against N: `counts` holds one array of counts per size; `attention` is (N, mean per head)."""
    sizes = np.asarray(sizes)
    fig, ax = new_figure(8.2, 3.8)
    line = np.geomspace(sizes[0], sizes[-1], 200)
    ax.plot(line, np.log(line) + np.euler_gamma, color=VERMILLION, label=r"$\ln N + 0.58$")
    mean = [np.mean(c) for c in counts]
    low, high = ([np.percentile(c, p) for c in counts] for p in (10, 90))
    ax.errorbar(sizes, mean, yerr=[np.subtract(mean, low), np.subtract(high, mean)], fmt="o", color=BLUE, capsize=3,
                label="random rows: mean, 10th to 90th percentile")
    if attention:
        n, means = attention
        ax.plot([n] * len(means), means, "D", color=ORANGE, markeredgecolor="black",
                label="attention scores: mean of each head")
    ax.plot(line, line, "--", color=GREY, label="ascending row: N")
    ax.axhline(1, color=GREY, linestyle=":", label="descending row: 1")
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.set(ylim=(0, 1.7 * max(high)), xlabel="row length N", ylabel="new maxima in a row",
           title="A random row raises its maximum about ln N times")
    ax.legend(loc="upper right", ncols=2, fontsize=9)
    show(fig, alt="Number of new maxima in a row against the row length N, from "
                  f"{sizes[0]} to {sizes[-1]} on a logarithmic axis. The means of random rows lie on the curve "
                  "ln N + 0.58, near 11.7 at N = 65536. An ascending row would have N of them, a descending row one. "
                  "Diamonds show four attention heads at N = 128, between 2 and 6.")


def rounding(results) -> None:
    """Error of the sum d per order of the row, and how far the outputs move.

    `results` maps the name of an order to a dict: `online`, `chain`, `pairwise` (errors of d against float64, in units
    of 2^-24, one per row) and `ulp` (distances between online and safe outputs, both summed in the same order).
    """
    fig, (left, right) = new_figure(9.4, 3.9, cols=2, width_ratios=(1.15, 1))
    looks = {"pairwise": ("safe, pairwise sum", GREEN, "^"), "chain": ("safe, one term after the other", BLUE, "o"),
             "online": ("online", ORANGE, "D")}
    for shift, (key, (label, color, marker)) in zip((-0.22, 0, 0.22), looks.items(), strict=True):
        for row, errors in enumerate(results.values()):
            values = [max(np.percentile(errors[key], p), 0.1) for p in (10, 50, 90)]
            left.plot([values[0], values[2]], [row + shift] * 2, color=color, linewidth=1.5)
            left.plot(values[1], row + shift, marker, color=color, label=label if row == 0 else None)
    left.set_yticks(range(len(results)), list(results))
    left.set_xscale("log")
    left.set(xlabel="error of d, in units of $2^{-24}$ (median, 10th to 90th percentile)",
             ylim=(len(results) - 0.5, -1.45), title="What rounding does to the sum")
    left.legend(loc="upper right", fontsize=9)
    edges = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, np.inf]
    names = ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256+"]
    width, looks = 0.8 / len(results), ((BLUE, ""), (GREEN, "//"), (ORANGE, ".."), (VERMILLION, "xx"))
    for i, ((name, errors), (color, hatch)) in enumerate(zip(results.items(), looks, strict=True)):
        share = np.histogram(errors["ulp"], edges)[0] / np.size(errors["ulp"])
        right.bar(np.arange(len(names)) + (i - (len(results) - 1) / 2) * width, 100 * share, width, color=color,
                  label=name, hatch=hatch, edgecolor="white")
    right.set_xticks(range(len(names)), names, rotation=45)
    right.grid(axis="x", visible=False)
    right.set(xlabel="ulp between online and safe, same order", ylabel="outputs [%]", ylim=(0, 105),
              title="How far the outputs move")
    right.legend(fontsize=9, loc="upper center")
    show(fig, alt="Left: error of the normalizer for three ways of summing and four orders of the row. Pairwise "
                  "summation is always near 1 unit; the two one-after-the-other sums lie together, between 1 and 50 "
                  "units, except for the slowly rising row, where online reaches about 230 units and safe 5. Right: "
                  "distance in ulp between online and safe outputs: all 0 for descending rows, 0 to 31 for random and "
                  "ascending rows, more than 128 for the slowly rising row.")

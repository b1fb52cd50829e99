"""Plots of notebook 04: merge trees with the state on every node, the error of a chain and of a tree, a start at 0."""

from __future__ import annotations

import numpy as np

from helpers.figures import style
from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILLION, new_figure, show
from helpers.reference import EMPTY, NEG_INF, State, merge, state_of


def _number(value: float, digits: int = 2) -> str:
    return "−∞" if value == NEG_INF else f"{value:.{digits}f}".replace("-", "−")


def _levels(states: list[State]) -> list[list[State]]:
    """All levels of a binary merge tree, the leaves first."""
    levels = [states]
    while len(levels[-1]) > 1:
        below = levels[-1] + [EMPTY] * (len(levels[-1]) % 2)
        levels.append([merge(a, b) for a, b in zip(below[0::2], below[1::2], strict=True)])
    return levels


def tree(blocks) -> None:
    """The merge tree of a list of blocks (a power of two of them): a state on each node, a factor on each edge."""
    levels = _levels([state_of(np.asarray(block, dtype=np.float64)) for block in blocks])
    fig, ax = new_figure(8.2, 0.6 + 1.1 * len(levels))
    ax.axis("off")
    ax.set(xlim=(-0.65, len(blocks) - 0.35), ylim=(-0.8, len(levels) - 0.68))
    box = dict(boxstyle="round,pad=0.45", linewidth=1.5)
    places = [np.arange(len(blocks), dtype=float)]
    for height, states in enumerate(levels):
        if height:
            places.append((places[-1][0::2] + places[-1][1::2]) / 2)
        for i, state in enumerate(states):
            x = places[height][i]
            empty = state.row_max == NEG_INF
            edge = GREY if empty else (BLUE, GREEN, VERMILLION)[min(height, 2)]
            ax.text(x, height, f"m = {_number(state.row_max)}\nd = {_number(state.normalizer)}", ha="center",
                    va="center", zorder=3, fontsize=10, color=GREY if empty else BLACK,
                    bbox=box | dict(facecolor="white", edgecolor=edge, linestyle="--" if empty else "-"))
            for child in (2 * i, 2 * i + 1) if height else ():
                low = levels[height - 1][child]
                factor = np.exp(low.row_max - state.row_max)
                start = places[height - 1][child]
                ax.plot([start, x], [height - 1, height], color=GREY, linewidth=1.2, zorder=1)
                label = f"× {factor:.0f}" if factor in (0, 1) else f"× {factor:.2f}"
                ax.text((start + x) / 2, height - 0.5, label, ha="center", va="center", fontsize=9,
                        color=GREY if factor in (0, 1) else VERMILLION, zorder=2,
                        bbox=dict(facecolor="white", edgecolor="none", pad=1.5))
    for x, block in zip(places[0], blocks, strict=True):
        ax.text(x, -0.62, "  ".join(_number(v, 1) for v in block), ha="center", va="center", fontsize=10, color=BLUE)
    ax.text(-0.62, -0.62, "scores", va="center", fontsize=9, color=GREY)
    root = levels[-1][0]
    show(fig, alt=f"A binary tree over {len(blocks)} blocks of scores. Each node carries its state (m, d), each edge "
                  "the factor that brings the child's d to the parent's maximum; one of the two factors below a node "
                  f"is always 1, and the factor of the masked block is 0. The root has m = {root.row_max:.2f} and "
                  f"d = {root.normalizer:.2f}.")


def five_levels(row) -> None:
    """One row of 32 scores merged by thread, warp, block, split and GPU, with the state on every node."""
    row = np.asarray(row, dtype=np.float64)
    levels = _levels([State(x, 1.0) for x in row])
    names = ("thread", "warp", "block", "split", "GPU")
    units = ("16 threads", "8 warps", "4 blocks", "2 splits", "the whole row")
    colors = (BLUE, style.SKY, GREEN, ORANGE, VERMILLION)
    root = levels[-1][0]
    fig, ax = new_figure(9.6, 5.4)
    ax.axis("off")
    ax.set(xlim=(-4.2, 32.2), ylim=(-1.35, 4.95))
    places = np.arange(32, dtype=float)
    heights = (row - row.min()) / np.ptp(row) * 0.8 + 0.12
    ax.bar(places, heights, width=0.6, bottom=-1.15, color=np.where(row == row.max(), BLACK, GREY))
    ax.text(-4, -0.75, "32 scores", fontsize=10, color=BLACK, va="center")
    tops = -1.15 + heights
    for level, (name, unit, color, states) in enumerate(zip(names, units, colors, levels[1:], strict=True)):
        parents = (places[0::2] + places[1::2]) / 2
        for i, (x, state) in enumerate(zip(parents, states, strict=True)):
            for child in (2 * i, 2 * i + 1):
                ax.plot([places[child], x], [tops[child] + 0.03, level + 0.5], color=color, linewidth=1, zorder=1)
            ax.text(x, level + 0.5, f"{_number(state.row_max, 1)}\n{_number(state.normalizer, 1)}", ha="center",
                    va="center", fontsize=8 if level < 2 else 9.5, linespacing=1.05, zorder=3,
                    bbox=dict(boxstyle="round,pad=0.22", edgecolor=color, linewidth=1.4,
                              facecolor=style.YELLOW if state.row_max == root.row_max else "white"))
        ax.text(-4, level + 0.6, name, fontsize=11, color=BLACK, weight="bold", va="center")
        ax.text(-4, level + 0.27, unit, fontsize=8.5, color=BLACK, va="center")
        places, tops = parents, np.full(len(parents), level + 0.5)
    ax.text(32.2, 4.6, "each node: m above, d below\nyellow: the maximum of the row", ha="right", fontsize=9,
            va="center", color=BLACK)
    show(fig, alt="A binary merge tree over 32 scores with five levels, from bottom to top: thread, warp, block, "
                  "split, GPU. Every node carries its m and d; the maximum of the row travels up along one path. The "
                  f"root has m = {root.row_max:.1f} and d = {root.normalizer:.1f}.")


def error_growth(sizes, errors) -> None:
    """Error of d against N: `errors` maps a title to {label: one median per size}; one panel for each title."""
    fig, axes = new_figure(9.2, 3.7, cols=len(errors), sharey=True)
    looks = ((ORANGE, "D", "-"), (BLUE, "s", "--"), (GREEN, "^", "-"))
    for ax, (title, curves) in zip(np.atleast_1d(axes), errors.items(), strict=True):
        for (label, values), (color, marker, line) in zip(curves.items(), looks, strict=True):
            ax.plot(sizes, values, line, marker=marker, color=color, label=label)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.set(xlabel="row length N", title=title)
    axes[0].set(ylabel="error of d, in units of $2^{-24}$")
    axes[0].legend(fontsize=9)
    show(fig, alt="Error of the normalizer in fp32 against the row length, for random rows and for slowly rising "
                  "rows. The chain grows from about 2 units at N = 64 to over 100 at N = 16384, and in rising rows "
                  "reaches over 200. The tree, and 256 chains joined by a tree, stay between 0.5 and 3 units.")


def start_at_zero(offsets, errors) -> None:
    """Largest relative error of a softmax whose running maximum starts at 0, for a row moved down by each offset."""
    offsets, errors = np.asarray(offsets), np.asarray(errors)
    subnormal, zero = 126 * np.log(2), 150 * np.log(2)
    fig, ax = new_figure(8.2, 3.5)
    ax.axvspan(subnormal, zero, color=ORANGE, alpha=0.18)
    ax.axvspan(zero, offsets[-1], color=style.PURPLE, alpha=0.25)
    known = np.isfinite(errors)
    ax.plot(offsets[known], np.maximum(errors[known], 1e-9), ".", color=VERMILLION, markersize=4)
    ax.set_yscale("log")
    ax.set(xlim=(offsets[0], offsets[-1]), ylim=(1e-8, 30), xlabel="the row is moved down by c",
           ylabel="largest relative error", title="A running maximum that starts at 0, in fp32")
    for x, text in ((subnormal, f"{subnormal:.1f}: exp turns subnormal"), (zero, f"{zero:.1f}: exp is 0")):
        ax.axvline(x, color=GREY, linestyle="--", linewidth=1)
        ax.text(x - 0.3, 8, text, ha="right", fontsize=9)
    ax.text((zero + offsets[-1]) / 2, 1e-4, "NaN", ha="center", fontsize=11, weight="bold")
    show(fig, alt="Largest relative error of a softmax with a running maximum started at 0, against how far the row is "
                  "moved below zero. Up to 87 the error is near 1e-7. Between 87.3 and 104, where exp is subnormal, it "
                  "rises by orders of magnitude to more than 10 percent. Beyond about 104 the result is NaN.")

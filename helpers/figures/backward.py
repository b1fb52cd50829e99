"""Plots of the backward passes: what pulls a gradient up or down, how well differences can check it, what was measured."""

from __future__ import annotations

import numpy as np
from IPython.display import Markdown, display
from matplotlib.lines import Line2D

from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, new_figure, show

_LOOKS = {  # whose kernel -> colour, marker, line, label
    "": (BLUE, "o", "-", "this course"), "_from_x": (SKY, "s", "--", "this course, from x and the state"),
    "torch_": (ORANGE, "^", "-", "torch"), "quack_": (VERMILLION, "D", ":", "QuACK"),
}
_PASSES = {"softmax_backward": ("add", "softmax backward"), "cross_entropy": ("read", "cross-entropy, loss"),
           "cross_entropy_backward": ("copy", "cross-entropy, gradient")}


def pull(y, dy) -> None:
    """Bars of y, dy beside its mean under y, and dx = y * (dy - mean)."""
    y, dy = (np.asarray(v, dtype=np.float64) for v in (y, dy))
    mean, index = float((y * dy).sum()), np.arange(len(y))
    dx = y * (dy - mean)
    fig, axes = new_figure(9.2, 2.9, cols=3)
    axes[0].bar(index, y, color=BLUE, width=0.7)
    axes[0].set(title="y: the weights", ylim=(0, 1.15 * y.max()))
    axes[1].axhline(mean, color=BLACK, linestyle="--", linewidth=1.4)
    axes[1].vlines(index, mean, dy, color=GREY, linewidth=2)
    axes[1].plot(index, dy, "o", color=ORANGE, markersize=7)
    axes[1].set(title=f"dy, and s = Σ y·dy = {mean:.2f}")
    colors = [GREEN if v > 0 else VERMILLION for v in dx]
    bars = axes[2].bar(index, dx, color=colors, width=0.7)
    for bar, v in zip(bars, dx, strict=True):
        if v < 0:
            bar.set(hatch="///", edgecolor="white")
    axes[2].axhline(0, color=BLACK, linewidth=0.9)
    axes[2].set(title="dx = y · (dy − s)")
    for ax in axes:
        ax.set_xticks(index)
        ax.grid(axis="x", visible=False)
        ax.set_xlabel("column")
    told = "; ".join(f"{i}: {a:.2f}, {b:.2f}, {c:+.2f}" for i, (a, b, c) in enumerate(zip(y, dy, dx, strict=True)))
    show(fig, alt=f"Three plots over {len(y)} columns. The weights y; dy with a dashed line at its mean under y, {mean:.2f}; and dx, which "
                  f"is positive where dy lies above the line, and larger where y is. Column: y, dy, dx: {told}.")


def differences(steps, errors) -> None:
    """How far the central difference is from the derivative, over its step, for two floating types: `errors` maps a name to errors."""
    fig, ax = new_figure(7.6, 3.4)
    told = []
    for (name, values), color, marker in zip(errors.items(), (BLUE, VERMILLION), ("o", "s")):
        ax.loglog(steps, values, marker=marker, color=color, label=name, markersize=4)
        best = int(np.argmin(values))
        told.append(f"{name}: best about {values[best]:.0e} at a step of {steps[best]:.0e}")
    ax.set(xlabel="step ε", ylabel="relative error of the difference", title="Too large a step bends, too small a step rounds")
    ax.legend(fontsize=9)
    show(fig, alt=f"Relative error of the central difference over the step, both axes logarithmic; each curve falls, then rises again "
                  f"towards small steps. {'; '.join(told)}.")


def measured(record) -> None:
    """Bandwidth of the backward kernels, torch's and QuACK's, as a share of a plain add, read or copy in the same run."""
    fig, axes = new_figure(10.2, 5.6, rows=2, cols=3, sharex=True, sharey=True)
    there = {(r["name"], r["dtype"], r["shape"][1]): r["tbs"] for r in record.rows}
    columns = sorted({r["shape"][1] for r in record.rows})
    told, used = [], {}
    for line, dtype in zip(axes, ("float32", "bfloat16"), strict=True):
        for ax, (name, (plain, title)) in zip(line, _PASSES.items(), strict=True):
            for who, (color, marker, style, label) in _LOOKS.items():
                full = name + who if who.startswith("_") else who + name
                mine = [n for n in columns if (full, dtype, n) in there]
                if not mine:
                    continue
                shares = [100 * there[full, dtype, n] / there[plain, dtype, n] for n in mine]
                ax.plot(mine, shares, color=color, marker=marker, linestyle=style)
                used[label] = Line2D([], [], color=color, marker=marker, linestyle=style, label=label)
                told.append(f"{title}, {dtype}, {label}: {min(shares):.0f} to {max(shares):.0f}")
            ax.axhline(100, color=GREY, linewidth=1.2, linestyle="--")
            ax.set_xscale("log", base=2)
            ax.set_xticks(columns[::2], [f"{n // 1024}K" for n in columns[::2]])
            ax.set(ylim=(0, 115), title=f"{title}, {dtype}", **({"xlabel": "columns N"} if dtype == "bfloat16" else {}))
            ax.text(columns[-1], 102, f"a plain {plain}", ha="right", va="bottom", fontsize=8.5)
        line[0].set_ylabel("bandwidth, %")
    fig.legend(handles=list(used.values()), loc="outside lower center", ncols=len(used), fontsize=9)
    fig.suptitle(f"Recorded on one {record.run['device']}, {record.run['date']}", fontsize=11, x=0.01, ha="left")
    show(fig, alt=f"Bandwidth in percent of a plain kernel that moves the same bytes, over the columns from {columns[0]:,} to "
                  f"{columns[-1]:,}: {'; '.join(told)} percent.")


def comparison(record) -> None:
    """A table: each kernel's bandwidth as a share of the plain kernel's, and what torch and QuACK take in multiples of its time."""
    rows = {(r["name"], r["dtype"], r["shape"][1]): r for r in record.rows}
    plain = {"softmax_backward": "add", "softmax_backward_from_x": "add", "log_softmax_backward": "add", "cross_entropy": "read",
             "cross_entropy_backward": "copy"}
    lines = ["| kernel | type | bandwidth | torch takes | QuACK takes |", "|---|---|---|---|---|"]
    for name, base in plain.items():
        for dtype in ("float32", "bfloat16"):
            ours = {n: r for (who, kind, n), r in rows.items() if (who, kind) == (name, dtype)}
            cells = [_range(100 * r["tbs"] / rows[base, dtype, n]["tbs"] for n, r in ours.items()) + f" % of a plain {base}"]
            same = name.removesuffix("_from_x")
            for peer in ("torch_", "quack_"):
                times = [rows[peer + same, dtype, n]["us"] / r["us"] for n, r in ours.items() if (peer + same, dtype, n) in rows]
                cells.append(_range(times, 1) + " times as long" if times else "not measured")
            lines.append(f"| `{name}` | {dtype} | {' | '.join(cells)} |")
    columns = sorted({n for _, _, n in rows})
    lines.append(f"\nRows of {columns[0]:,} to {columns[-1]:,} columns, {record.where()}.")
    display(Markdown("\n".join(lines)))


def _range(values, digits: int = 0) -> str:
    values = list(values)
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

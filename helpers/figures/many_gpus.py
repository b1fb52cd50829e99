"""Plots of notebook beyond/many_gpus: who holds what, the ring in time, causal balance, scaling from the record, the plan."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Patch, Rectangle

from helpers.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, new_figure, show
from helpers.many_gpus import tokens, visible_part

RANKS = (BLUE, ORANGE, GREEN, PURPLE)  # differ in lightness
HATCHES = ("", "//", "..", "xx")


def who_holds_what(ranks: int = 4) -> None:
    """Left: the columns of the logits over ranks, and what a row leaves on each.  Right: tokens of Q, K, V and O over ranks."""
    fig, (left, right) = new_figure(9.4, 3.3, cols=2)
    for ax in (left, right):
        ax.axis("off")
    left.set(xlim=(-0.9, ranks + 0.1), ylim=(-1.5, 4.3), title="A vocabulary over ranks: columns")
    for rank in range(ranks):
        for row in range(4):
            left.add_patch(Rectangle((rank, 3 - row), 0.96, 0.9, facecolor=RANKS[rank], hatch=HATCHES[rank], edgecolor="white"))
        left.text(rank + 0.48, 4.05, f"rank {rank}", ha="center", fontsize=10)
        left.annotate(f"$m_{rank},\\ d_{rank}$", (rank + 0.48, -0.05), (rank + 0.48, -0.75), ha="center", va="center", fontsize=11,
                      arrowprops=dict(arrowstyle="<-", color=BLACK))
    left.text(-0.1, 2, "M rows\nof logits", ha="right", va="center", fontsize=9)
    left.text(ranks / 2, -1.35, "two numbers a row leave a rank: (m, d)", ha="center", fontsize=10)
    right.set(xlim=(-0.2, 4.6), ylim=(-1.5, 4.3), title="A sequence over ranks: tokens")
    for column, name in enumerate("QKVO"):
        for rank in range(ranks):
            right.add_patch(Rectangle((1.05 * column, 3 - rank), 0.8, 0.92, facecolor=RANKS[rank], hatch=HATCHES[rank], edgecolor="white"))
        right.text(1.05 * column + 0.4, 4.05, f"${name}$", ha="center", fontsize=11)
    for rank in range(ranks):
        right.text(4.1, 3.46 - rank, f"rank {rank}", va="center", fontsize=10)
    right.text(2.1, -1.35, "K and V go round; or (O, LSE) are gathered", ha="center", fontsize=10)
    right.add_patch(Rectangle((1.0, -0.12), 1.96, 4.1, fill=False, edgecolor=VERMILLION, linewidth=2))
    right.text(1.98, -0.55, "these travel", ha="center", color=VERMILLION, fontsize=10)
    show(fig, alt=f"Two pictures of arrays cut over {ranks} ranks. Left: a matrix of logits, each rank holds a stretch of the columns of "
                  "every row and gives two numbers a row, m and d. Right: Q, K, V and O as columns of tokens, each rank holds a stretch of "
                  "the tokens of all four; a frame around K and V says that these travel.")


def ring(compute: float, transfer: float, ranks: int = 4) -> None:
    """Steps of the ring in time, in units of one block of attention: waiting for keys, and with transfers behind the work."""
    fig, axes = new_figure(9.4, 4.4, rows=2, sharex=True)
    ends = []
    for ax, overlap in zip(axes, (False, True), strict=True):
        clock = 0.0
        for step in range(ranks):
            last = step == ranks - 1
            start = clock + (0 if overlap or last else transfer)
            for rank in range(ranks):
                source = (rank - step) % ranks
                ax.barh(rank - 0.12, compute, left=start, height=0.5, color=RANKS[source], hatch=HATCHES[source], edgecolor="white")
                ax.text(start + compute / 2, rank - 0.12, f"keys of {source}", ha="center", va="center", fontsize=9,
                        bbox=dict(facecolor="white", edgecolor="none", pad=1))
                if not last:
                    ax.barh(rank + 0.27, transfer, left=clock, height=0.2, color=VERMILLION)
            clock = max(start + compute, clock + transfer)
        ends.append(clock)
        ax.axvline(clock, color=GREY, linestyle="--", linewidth=1)
        ax.set_yticks(range(ranks), [f"rank {r}" for r in range(ranks)])
        ax.set(ylim=(ranks - 0.4, -0.6), title=("send first, then compute", "send while computing")[overlap])
        ax.grid(axis="y", visible=False)
    axes[1].set(xlabel="time, in blocks of attention", xlim=(0, 1.03 * max(ends)))
    axes[0].legend(handles=[Patch(color=VERMILLION, label="K and V on their way to the next rank")], loc="upper left",
                   bbox_to_anchor=(0.55, 1.2), fontsize=9)
    show(fig, alt=f"Two time lines of {ranks} ranks. In each of {ranks} steps every rank attends to the keys of another rank, shifted "
                  f"by one from rank to rank. Above, transfers and blocks alternate and the last block ends at {ends[0]:.1f}; below, the "
                  f"transfers run beside the blocks and it ends at {ends[1]:.1f}.")


def causal_balance(S: int = 48, ranks: int = 4) -> None:
    """Who computes which part of the causal triangle, and the work of each rank in each step: stretches above, zig-zag below."""
    fig, axes = new_figure(9.2, 6.2, rows=2, cols=2, width_ratios=(1, 1.7))
    told = []
    for (triangle, bars), zigzag in zip(axes, (False, True), strict=True):
        work = step_work(S, ranks, zigzag)
        for rank in range(ranks):
            for part in tokens(S, ranks, rank, zigzag):
                triangle.fill_between([0, part.start, part.stop], [part.start, part.start, part.stop], [part.stop] * 3, color=RANKS[rank],
                                      hatch=HATCHES[rank], edgecolor="white", linewidth=0.5)
        triangle.set(xlim=(0, S), ylim=(S, 0), xlabel="keys", ylabel="queries", aspect="equal",
                     title="zig-zag: two stretches a rank" if zigzag else "one stretch a rank")
        triangle.set_xticks([])
        triangle.set_yticks([])
        start = 0.0
        for step in range(ranks):
            for rank in range(ranks):
                bars.barh(rank, work[step, rank], left=start, color=RANKS[rank], hatch=HATCHES[rank], edgecolor="white", height=0.7)
            start += work[step].max()
            bars.axvline(start, color=GREY, linestyle="--", linewidth=1)
        bars.set_yticks(range(ranks), [f"rank {r}" for r in range(ranks)])
        bars.set(ylim=(ranks - 0.5, -0.5), xlim=(0, 3.9), title=f"busy {work.sum() / ranks / start:.0%} of the time",
                 xlabel="time, in whole blocks of attention (dashed: end of a step)" if zigzag else "")
        bars.grid(axis="y", visible=False)
        told.append(f"{start:.1f} blocks, busy {work.sum() / ranks / start:.0%}")
    show(fig, alt=f"Left: the causal triangle of queries by keys, coloured by the rank that computes it. Right: what each of {ranks} ranks "
                  f"does in each step of the ring. With one stretch a rank, later ranks have more to do and the others wait: {told[0]}. "
                  f"With two stretches, one from the front and one from the back, all are busy together: {told[1]}.")


def step_work(S: int, ranks: int, zigzag: bool) -> np.ndarray:
    """Visible pairs of each step and rank [ranks, ranks], in units of a block of S/ranks queries by as many keys."""
    stretches = [tokens(S, ranks, rank, zigzag) for rank in range(ranks)]
    lengths = [[t.stop - t.start for t in mine] for mine in stretches]
    n = S // ranks
    work = np.zeros((ranks, ranks))
    work[0] = n * (n + 1) / 2
    for step in range(1, ranks):
        for rank in range(ranks):
            source = (rank - step) % ranks
            part = visible_part(rank, source, lengths[rank], lengths[source])
            if part:
                work[step, rank] = len(range(n)[part[0]]) * len(range(n)[part[1]])
    return work / n**2


def scaling(record) -> None:
    """Speed-up of two GPUs over one from the record: the same work on two (strong), and twice the work (weak)."""
    fig, (left, right) = new_figure(9.4, 3.6, cols=2, width_ratios=(1.5, 1))
    names = ["attention", "causal,\none stretch", "causal,\nzig-zag", "cross-\nentropy", "its\ngradient", "softmax", "top-k"]
    strong = [speed_up(record, *case) for case in STRONG]
    colors = [BLUE] * 3 + [ORANGE] * 4
    left.bar(range(len(strong)), strong, color=colors, hatch=[""] * 3 + ["//"] * 4, edgecolor="white")
    left.axhline(2, color=BLACK, linestyle="--", linewidth=1)
    left.axhline(1, color=GREY, linestyle=":", linewidth=1)
    for x, y in enumerate(strong):
        left.text(x, y + 0.03, f"{y:.2f}", ha="center", fontsize=9)
    left.set_xticks(range(len(names)), names, fontsize=8.5)
    left.set(ylabel="times as fast as one GPU", ylim=(0, 2.35), title="Strong: the same work on two GPUs")
    weak = [weak_efficiency(record, *case) for case in STRONG]
    right.bar(range(len(weak)), [100 * w for w in weak], color=colors, hatch=[""] * 3 + ["//"] * 4, edgecolor="white")
    right.axhline(100, color=BLACK, linestyle="--", linewidth=1)
    for x, y in enumerate(weak):
        right.text(x, 100 * y + 1.5, f"{100 * y:.0f}", ha="center", fontsize=9)
    short = ["attention", "one stretch", "zig-zag", "cross-entropy", "gradient", "softmax", "top-k"]
    right.set_xticks(range(len(short)), short, fontsize=8, rotation=35, ha="right", rotation_mode="anchor")
    right.set(ylabel="% of the speed of one GPU", ylim=(0, 118), title="Weak: as much work for each")
    show(fig, alt="Bars from the record. Left, the same work on two GPUs, times as fast as one: "
                  + ", ".join(f"{n} {y:.2f}" for n, y in zip([n.replace(chr(10), " ") for n in names], strong, strict=True))
                  + ". Right, twice the work on two GPUs, speed of each in percent of one alone: "
                  + ", ".join(f"{100 * w:.0f}" for w in weak) + ".")


ATTENTION = (1, 16, 65_536, 65_536, 128)
WEAK_ATTENTION = (1, 16, 46_336, 46_336, 128)
LOGITS, HALF = (8192, 131_072), (8192, 65_536)
STRONG = (  # name on two GPUs, name on one, shape, half the work, dtype
    ("ring", "attention", (*ATTENTION, False), (*WEAK_ATTENTION, False)),
    ("ring", "attention", (*ATTENTION, True), (*WEAK_ATTENTION, True)),
    ("ring_zigzag", "attention", (*ATTENTION, True), (*WEAK_ATTENTION, True)),
    *((name, name, LOGITS, HALF) for name in ("cross_entropy", "cross_entropy_gradient", "softmax", "topk")),
)


def speed_up(record, on_two: str, on_one: str, shape, half) -> float:
    """How many times as fast two GPUs are as one, for the same work in bf16."""
    times = [record.find(name=name, shape=shape, gpus=gpus, dtype="bfloat16")["us"] for name, gpus in ((on_one, 1), (on_two, 2))]
    return times[0] / times[1]


def weak_efficiency(record, on_two: str, on_one: str, shape, half) -> float:
    """Time of one GPU with half the work, over the time of two with all of it."""
    alone = record.find(name=on_one, shape=half, gpus=1, dtype="bfloat16")["us"]
    return alone / record.find(name=on_two, shape=shape, gpus=2, dtype="bfloat16")["us"]


def plan(curves, title: str) -> None:
    """Efficiency over the number of GPUs: `curves` maps a label to (GPUs, share of the ideal speed)."""
    fig, ax = new_figure(8.4, 3.7)
    looks = zip((BLUE, ORANGE, GREEN, SKY), ("o", "s", "^", "D"), ("-", "--", "-.", ":"), strict=True)
    for (label, (gpus, share)), (color, marker, line) in zip(curves.items(), looks, strict=False):
        ax.plot(gpus, 100 * np.asarray(share), line, marker=marker, color=color, label=label)
    ax.set_xscale("log", base=2)
    ax.set_xticks(gpus, [f"{n:,}" for n in gpus])
    ax.axhline(50, color=GREY, linestyle=":", linewidth=1)
    ax.set(xlabel="GPUs", ylabel="% of the ideal speed-up", ylim=(0, 105), title=title)
    ax.legend(fontsize=9)
    show(fig, alt=f"{title}: computed share of the ideal speed-up over the number of GPUs, from 100 percent downwards. "
                  + " ".join(f"{label}: {100 * share[-1]:.0f} percent at {gpus[-1]:,} GPUs." for label, (gpus, share) in curves.items()))


"""Plots for kernels: who computes what, which addresses a warp reads and when, bandwidth bars, the roofline."""

from __future__ import annotations

import matplotlib
import numpy as np

from helpers.figures.style import BLACK, BLUE, CYCLE, GREEN, GREY, MARKERS, ORANGE, SKY, VERMILLION, YELLOW, new_figure, show

SECTOR = 32  # bytes: what global memory is moved in
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")


def _index_of(counters, array: str) -> int:
    return next(i for i, name in counters.array_names.items() if name == array)


def _accesses(counters, array: str, kind: int) -> np.ndarray:
    """The events on one global array; `kind` 0 loads, 1 stores."""
    events = counters.events
    return events[(events["space"] == 0) & (events["kind"] == kind) & (events["array"] == _index_of(counters, array))]


# ------------------------------------------------------------------------------------------ who computes what


def owners(counters, shape, block: int, title: str, array: str = "y") -> None:
    """Which thread of which block writes each element: from `access_map` of a small launch.

    `shape` is (M, N) of `array` (4-byte elements), `block` the threads of a block (one dimension).
    """
    M, N = shape
    stores = _accesses(counters, array, kind=1)
    cell = stores["address"].astype(np.int64) // 4
    owner = np.full((M, N, 2), -1)
    owner[cell // N, cell % N] = np.stack([stores["block"], stores["thread"]], axis=1)
    busy = {(int(b), int(t)) for b, t in owner.reshape(-1, 2)}
    idle = [(b, t) for b in range(counters.blocks) for t in range(block) if (b, t) not in busy]
    fig, ax = new_figure(8.2, 0.95 + 0.4 * M + (0.4 if idle else 0))
    ax.axis("off")
    ax.set(xlim=(-2.1, N + 0.1), ylim=(M + (1.0 if idle else 0.1), -0.75), title=title)
    fills = (SKY, YELLOW, "#B9E3D3", "#F5C9A9", "#E4C6D9", "#D9D9D9")
    for r in range(M):
        ax.text(-0.15, r + 0.5, f"row {r}", ha="right", va="center", fontsize=10)
        for c in range(N):
            b, t = owner[r, c]
            ax.add_patch(matplotlib.patches.Rectangle((c, r), 1, 1, facecolor=fills[b % len(fills)], edgecolor="white", linewidth=2))
            ax.text(c + 0.5, r + 0.5, f"{t}", ha="center", va="center", fontsize=10)
        if r == 0 or owner[r, 0, 0] != owner[r - 1, 0, 0]:
            last = max(i for i in range(M) if owner[i, 0, 0] == owner[r, 0, 0])
            ax.plot([-1.15, -1.25, -1.25, -1.15], [r + 0.08, r + 0.08, last + 0.92, last + 0.92], color=BLACK, linewidth=1.2)
            ax.text(-1.4, (r + last + 1) / 2, f"block {owner[r, 0, 0]}", ha="right", va="center", fontsize=10, weight="bold")
    ax.text(0, -0.3, f"{N} columns; the number in a cell is the thread that computes it", fontsize=9, va="center")
    if idle:
        names = ", ".join(f"thread {t} of block {b}" for b, t in idle)
        ax.text(0, M + 0.5, f"no row left for {names}", fontsize=9, va="center", style="italic")
    show(fig, alt=f"{title}. A matrix of {M} rows and {N} columns, coloured by block; each cell carries the number of the thread "
                  f"that computes it. {counters.blocks} blocks of {block} threads; {len(idle)} threads have nothing to compute.")


# --------------------------------------------------------------------------------- lane x address, time as colour


def _requests(counters, array: str, block: int, warp: int, count: int) -> list[np.ndarray]:
    """The first `count` load requests of one warp on `array`, each an array of events (one for each lane)."""
    loads = _accesses(counters, array, kind=0)
    mine = loads[(loads["block"] == block) & (loads["thread"] // 32 == warp)]
    starts = np.flatnonzero(np.diff(mine["step"].astype(np.int64)))[: count] + 1
    return np.split(mine, starts)[:count]


def access_map(maps, array: str = "x", requests: int = 8, block: int = 0, warp: int = 0) -> None:
    """Lane against address for the first load requests of a warp, time as colour: `maps` is {title: access_map(...)}.

    Only the 32-byte sectors that these requests touch are drawn; a break in the axis stands for the bytes between two
    that are not neighbours.
    """
    fig, axes = new_figure(9.6, 3.35 * len(maps), rows=len(maps), squeeze=False)
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, requests))
    told = []
    for ax, (title, counters) in zip(axes[:, 0], maps.items(), strict=True):
        groups = _requests(counters, array, block, warp, requests)
        spans = [np.stack([g["address"], g["address"] + g["bytes"]]).astype(np.int64) for g in groups]
        touched = [np.unique(np.concatenate([np.arange(a // SECTOR, -(-b // SECTOR)) for a, b in s.T])) for s in spans]
        sectors = np.unique(np.concatenate(touched))
        apart = np.flatnonzero(np.diff(sectors) > 1) + 1
        left = np.arange(len(sectors)) * 8.0 + np.cumsum(np.isin(np.arange(len(sectors)), apart)) * 3.0
        at = dict(zip(sectors.tolist(), left, strict=True))
        for sector, x in at.items():
            ax.add_patch(matplotlib.patches.Rectangle((x, -0.5), 8, 32, edgecolor="#B5B5B5", linewidth=0.6,
                                                      facecolor="#FBE7A1" if sector in touched[0] else "#F2F2F2"))
        for color, group, span in zip(colors, groups, spans, strict=True):
            for lane, (a, b) in zip(group["thread"] % 32, span.T, strict=True):
                x = at[a // SECTOR] + a % SECTOR / 4
                ax.add_patch(matplotlib.patches.Rectangle((x, lane - 0.5), (b - a) / 4, 1, facecolor=color, edgecolor="none"))
        shown = np.arange(0, len(sectors), max(1, len(sectors) // 8))
        ax.set_xticks(left[shown], [f"{sectors[i] * SECTOR:,}" for i in shown])
        ax.set_yticks((0, 8, 16, 24, 31))
        ax.grid(visible=False)
        moved = [len(t) for t in touched]
        told.append(f"{title}: {moved[0]} sectors a request")
        ax.set(xlim=(-1, left[-1] + 9), ylim=(31.9, -0.9), ylabel="lane",
               title=f"{title}: each request touches {moved[0]} sectors, {sum(moved)} in {len(groups)} requests")
    axes[-1, 0].set_xlabel(f"address in {array}, in bytes. A box is one sector of 32 bytes, yellow if request 1 touches it; "
                           "a gap stands for bytes not touched.", fontsize=9)
    mappable = matplotlib.cm.ScalarMappable(matplotlib.colors.BoundaryNorm(np.arange(requests + 1) + 0.5, requests),
                                            matplotlib.colors.ListedColormap(colors))
    bar = fig.colorbar(mappable, ax=axes[:, 0], ticks=range(1, requests + 1), shrink=0.8, pad=0.01)
    bar.set_label("time: number of the request")
    show(fig, alt=f"Lane against address for the first {requests} load requests of a warp, coloured by time. {'; '.join(told)}. "
                  "Where lanes read neighbouring addresses one request fills whole sectors; where they do not, every request "
                  "touches a sector for each lane and uses 4 of its 32 bytes.")


# ----------------------------------------------------------------------------------------------- measured bars


def bandwidth_bars(record, steps, title: str, shapes=None, claims=None, ceiling: str = "copy") -> None:
    """Effective bandwidth of some steps for some shapes [M, N], beside that of a copy measured in the same run.

    `steps` maps names in the record to labels, `claims` names to a claimed share of the bandwidth (0 to 1), drawn as a
    share of the copy.  The bars carry their share of the copy in percent; the whiskers are the 10th and 90th percentile.
    """
    claims = claims or {}
    shapes = shapes or [r["shape"] for r in record.rows if r["name"] == ceiling]
    tops = [record.find(name=ceiling, shape=tuple(s))["tbs"] for s in shapes]
    fig, ax = new_figure(9.6, 4.0)
    ax.grid(axis="x", visible=False)
    width, told = 0.84 / len(steps), []
    for i, (name, label) in enumerate(steps.items()):
        rows = [record.find(name=name, shape=tuple(s)) for s in shapes]
        x = np.arange(len(shapes)) + (i - (len(steps) - 1) / 2) * width
        tbs = np.array([r["tbs"] for r in rows])
        spread = [[r["tbs"] - r["tbs"] * r["us"] / r["us_p90"] for r in rows], [r["tbs"] * r["us"] / r["us_p10"] - r["tbs"] for r in rows]]
        ax.bar(x, tbs, width * 0.94, yerr=np.maximum(spread, 0), label=label, color=CYCLE[i % len(CYCLE)], hatch=HATCHES[i % len(HATCHES)],
               edgecolor="white", error_kw={"linewidth": 1})
        for j, (a, b, top) in enumerate(zip(x, tbs, tops, strict=True)):
            mark = claims.get(name, 0) * top
            above = mark if 0 <= mark - b < 0.09 * max(tops) else b  # not through the mark of the claim
            share = 100 * b / top
            ax.text(a, above + 0.014 * max(tops), f"{share:.{0 if share >= 1 else 1}f} %", ha="center", va="bottom", fontsize=8.5)
            if name in claims:
                ax.plot([a - width * 0.47, a + width * 0.47], [mark, mark], color=BLACK, linewidth=2.2,
                        label="claimed share of a copy" if not told and j == 0 else None)
        told.append(f"{label}: " + ", ".join(f"{100 * b / t:.0f}" for b, t in zip(tbs, tops, strict=True)))
    for j, top in enumerate(tops):
        ax.plot([j - 0.46, j + 0.46], [top, top], "--", color=GREY, label="a copy, measured" if j == 0 else None)
    ax.set_xticks(range(len(shapes)), [f"{M:,} × {N:,}" for M, N in shapes])
    ax.set(ylabel="effective bandwidth [TB/s]", xlabel="rows M × columns N", ylim=(0, 1.22 * max(tops)),
           title=f"{title} (recorded on one {record.run['device']}, {record.run['date']})")
    ax.legend(loc="upper left", ncols=len(steps) + 2, fontsize=9)
    show(fig, alt=f"{title}. Bars for {len(shapes)} shapes, labelled in percent of a copy. " + "; ".join(told) + " percent.")


# --------------------------------------------------------------------------------------------------- roofline


def roofline(points, copy_tbs: float, title: str, datasheet_tbs: float | None = None, datasheet_tflops: float | None = None) -> None:
    """Operations a second against operations per byte: `points` is a list of (label, flop per byte, TFLOP/s).

    The slope is the bandwidth of a measured copy; `datasheet_tbs` and `datasheet_tflops` are drawn as claims.
    """
    fig, ax = new_figure(8.6, 4.6)
    x = np.geomspace(0.03, 200, 200)
    roof = datasheet_tflops or np.inf
    ax.plot(x, np.minimum(x * copy_tbs, roof), color=BLACK, label=f"roof: a copy, {copy_tbs:.2f} TB/s (measured)")
    if datasheet_tbs:
        ax.plot(x, np.minimum(x * datasheet_tbs, roof), ":", color=GREY, label=f"datasheet bandwidth, {datasheet_tbs:g} TB/s (claim)")
    if datasheet_tflops:
        ax.axhline(roof, color=GREY, linestyle="--", linewidth=1.2, label=f"datasheet fp32, {roof:g} TFLOP/s (claim)")
        ridge = roof / copy_tbs
        ax.axvline(ridge, color=GREY, linewidth=0.8, linestyle=":")
        ax.text(ridge * 1.1, 30, f"ridge:\n{ridge:.0f} flop per byte", fontsize=9, va="top")
    colors = (VERMILLION, BLUE, ORANGE, GREEN, *CYCLE[4:])
    lowest: dict[float, float] = {}  # label height reached so far, for each intensity: labels must not overlap
    order = sorted(range(len(points)), key=lambda i: -points[i][2])
    for i in order:
        label, intensity, tflops = points[i]
        ax.plot(intensity, tflops, MARKERS[i % len(MARKERS)], color=colors[i % len(colors)], markersize=9, markeredgecolor=BLACK,
                alpha=0.85)
        height = min(tflops, lowest.get(intensity, np.inf) / 1.5)
        lowest[intensity] = height
        share = 100 * tflops / min(intensity * copy_tbs, roof)
        ax.text(intensity * 1.2, height, f"{label}, {share:.0f} % of the roof", fontsize=9, va="center")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(xlim=(0.03, 200), ylim=(0.01, 200), xlabel="arithmetic intensity [flop per byte]", ylabel="TFLOP/s", title=title)
    ax.legend(fontsize=9, loc="lower right")
    told = "; ".join(f"{label} at {t:.2g} TFLOP/s" for label, _, t in points)
    show(fig, alt=f"{title}. Roofline on logarithmic axes: the roof rises with the measured copy bandwidth of {copy_tbs:.2f} TB/s. "
                  f"Points: {told}.")

"""Plots and tables of the two ladders: counters, times, limits, where reads are answered, claims beside measurements."""

from __future__ import annotations

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from helpers.figures.style import BLACK, BLUE, CYCLE, GREEN, GREY, MARKERS, ORANGE, SKY, VERMILLION, YELLOW, new_figure, show, table
from helpers.ladder import STEPS

ISSUE_GHZ = 4 * 132 * 1.98  # warp instructions a nanosecond: 4 schedulers on each of 132 SMs at the highest clock of an H200


def _of_copy(record, name: str, shape) -> float:
    """Effective bandwidth of a step as a share of the copy's, measured in the same run."""
    return record.find(name="copy", shape=shape)["us"] / record.find(name=name, shape=shape)["us"]


# ------------------------------------------------------------------------------------------ how a step works


def butterfly(values) -> None:
    """The maximum of 8 lanes in three exchanges: what every lane holds after each, and whose value it took."""
    values = list(values)
    lanes = len(values)
    bits = [1 << i for i in range(lanes.bit_length() - 2, -1, -1)]
    fig, ax = new_figure(8.2, 0.9 + 0.78 * (len(bits) + 1))
    ax.axis("off")
    ax.set(xlim=(-2.6, lanes - 0.4), ylim=(len(bits) * 1.0 + 0.45, -0.75))
    colors = [CYCLE[i % len(CYCLE)] for i in range(lanes)]
    for lane in range(lanes):
        ax.text(lane, -0.55, f"lane {lane}", ha="center", va="center", fontsize=9)
    told = []
    for level in range(len(bits) + 1):
        for lane, value in enumerate(values):
            best = value == max(values)
            ax.add_patch(Rectangle((lane - 0.3, level - 0.2), 0.6, 0.4, facecolor=YELLOW if best else "white", edgecolor=BLACK, zorder=3))
            ax.text(lane, level, f"{value:g}", ha="center", va="center", fontsize=10, zorder=4)
        told.append(" ".join(f"{v:g}" for v in values))
        ax.text(-0.6, level, "start" if level == 0 else f"lanes {bits[level - 1]} apart", ha="right", va="center", fontsize=9)
        if level == len(bits):
            break
        for lane in range(lanes):
            other = lane ^ bits[level]
            ax.plot([other, lane], [level + 0.2, level + 0.8], color=colors[min(lane, other)], linewidth=1.2, zorder=1)
            ax.plot([lane, lane], [level + 0.2, level + 0.8], color="#C8C8C8", linewidth=1.2, zorder=1)
        values = [max(value, values[lane ^ bits[level]]) for lane, value in enumerate(values)]
    show(fig, alt=f"Eight lanes exchange values in {len(bits)} steps, with the partner 4, then 2, then 1 lane away, and keep the "
                  f"larger. Held after each step: {'; '.join(told)}. In the end all lanes hold the maximum.")


def alignment(N: int, rows: int, head) -> None:
    """Rows of N floats one after the other in memory, on a grid of 16 bytes; `head(row)` says how many floats come before it."""
    fig, ax = new_figure(9.2, 0.85 + 0.5 * rows)
    ax.axis("off")
    width = max(-head(r) % 4 + N for r in range(rows))
    width += -width % 4
    ax.set(xlim=(-2.6, width + 0.1), ylim=(rows + 0.15, -0.75))
    told = []
    for r in range(rows):
        start = -head(r) % 4  # place of the row's first float in its 16 bytes
        n_head, vectors = min(N, head(r)), (N - min(N, head(r))) // 4
        for j in range(N):
            kind = "head" if j < n_head else "vector" if j < n_head + 4 * vectors else "tail"
            look = {"head": (ORANGE, "//"), "vector": (SKY, ""), "tail": (GREEN, "..")}[kind]
            ax.add_patch(Rectangle((start + j, r + 0.12), 1, 0.66, facecolor=look[0], hatch=look[1], edgecolor="white", linewidth=1.5))
        for k in range(vectors):
            ax.add_patch(Rectangle((start + n_head + 4 * k, r + 0.12), 4, 0.66, fill=False, edgecolor=BLACK, linewidth=1.4))
        ax.text(-0.4, r + 0.45, f"row {r}", ha="right", va="center", fontsize=10)
        told.append(f"row {r}: {n_head} floats, {vectors} vectors, {N - n_head - 4 * vectors} floats")
    for x in range(0, width + 1, 4):
        ax.plot([x, x], [0, rows], color=GREY, linewidth=1, linestyle=":", zorder=0)
    ax.text(0, -0.2, "dotted lines: addresses that are multiples of 16", fontsize=9, va="center")
    ax.legend(handles=[Patch(facecolor=ORANGE, hatch="//", edgecolor="white", label="head"),
                       Patch(facecolor=SKY, edgecolor=BLACK, label="vectors of four"),
                       Patch(facecolor=GREEN, hatch="..", edgecolor="white", label="tail")],
              loc="upper right", ncols=3, fontsize=9, bbox_to_anchor=(1, 1.12))
    show(fig, alt=f"Rows of {N} floats on a grid of 16 bytes. Each row splits into a head, vectors of four that start at grid "
                  f"lines, and a tail. {'; '.join(told)}.")


def long_path(new, title: str) -> None:
    """Lanes against steps: where a lane meets a new maximum, and the steps at which the warp takes the long path for it."""
    lanes, steps = new.shape
    warp = new.any(axis=0)
    fig, ax = new_figure(9.2, 4.1)
    for lane, step in np.argwhere(new):
        ax.add_patch(Rectangle((step, lane), 1, 1, facecolor=VERMILLION, edgecolor="white", linewidth=0.5))
    for step in range(steps):
        ax.add_patch(Rectangle((step, lanes + 1.2), 1, 2.6, facecolor=VERMILLION if warp[step] else SKY, edgecolor="white", linewidth=0.8,
                               hatch="" if warp[step] else "///"))
    ax.grid(visible=False)
    ax.set(xlim=(0, steps), ylim=(lanes + 4.2, 0), title=title, xlabel="step: the element that every lane takes at this moment")
    ax.set_yticks([0.5, 8.5, 16.5, 24.5, 31.5, lanes + 2.5], ["lane 0", "8", "16", "24", "31", "the warp"])
    ax.legend(handles=[Patch(facecolor=VERMILLION, label="new maximum: long path"),
                       Patch(facecolor=SKY, hatch="///", edgecolor="white", label="short path")],
              loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=9)
    show(fig, alt=f"{title}. A grid of {lanes} lanes and {steps} steps. {int(new.sum())} of {new.size:,} cells mark a new maximum of "
                  f"a lane, most of them in the first steps. Below, the warp takes the long path in {int(warp.sum())} of {steps} steps.")


# ---------------------------------------------------------------------------------------------------- tables


def _name(step: str) -> str:
    """Short name of a step: "Safe V1" for safe_v1, "a copy" for the copy."""
    return "a copy" if step == "copy" else STEPS[step].title.split(":")[0].replace(" with a branch", ", branch")


def counters(steps, M: int) -> None:
    """What one row costs, step beside step: `steps` maps names to the counters of a launch with M rows."""
    numbers = {
        "load instructions": lambda c: c.loads.instructions, "load requests": lambda c: c.loads.requests,
        "load sectors": lambda c: c.loads.sectors, "barriers": lambda c: c.barriers, "shuffles": lambda c: c.shuffles,
        "bytes of shared memory": lambda c: c.shared_loads.bytes + c.shared_stores.bytes,
        "exponentials": lambda c: c.exps, "divisions": lambda c: c.divisions,
    }
    table(["for one row", *map(_name, steps)],
           [[what, *(f"{number(c) / M:,.0f}" for c in steps.values())] for what, number in numbers.items()])


def _columns(record) -> list[tuple[int, int]]:
    return [tuple(r["shape"]) for r in record.rows if r["name"] == "copy"]


def times(record, before: str, after: str) -> None:
    """Recorded times of two steps in microseconds, how much faster the second is, and the block that each uses."""
    shapes = [s for s in _columns(record) if s[1] <= STEPS[after].max_n]
    us = {name: [record.find(name=name, shape=s)["us"] for s in shapes] for name in (before, after)}
    rows = [[f"{_name(name)}, µs", *(f"{t:,.0f}" for t in us[name])] for name in us]
    rows.append(["**faster by**", *(f"**{a / b:.2f}×**" for a, b in zip(us[before], us[after], strict=True))])
    rows += [[f"{_name(name)}, threads a block", *(f"{STEPS[name].launch(*s).block[0]:,}" for s in shapes)] for name in us]
    table(["columns N", *(f"{s[1]:,}" for s in shapes)], rows)


def limits(ladders, ncu, steps, shapes) -> None:
    """For each element the instructions and what DRAM had to read; and how busy instruction slots and DRAM are."""
    rows = []
    for shape in shapes:
        for name in steps:
            found = [r for r in ncu.rows if r["name"] == name and r["shape"] == list(shape)]
            if found:
                dram, slots = _busy(ladders, found[0])
                instructions = 32 * found[0]["instructions"] / np.prod(shape)
                reads = found[0]["dram_read_bytes"] / 4 / np.prod(shape)
                rows.append([_name(name), f"{shape[1]:,}", f"{instructions:.0f}", f"{reads:.2f}", f"{slots:.0%}", f"{dram:.0%}"])
    table(["step", "N", "instructions an element", "DRAM reads an element", "instruction slots used", "DRAM rate, of a copy's"], rows)


def pairs(record, steps) -> None:
    """How much faster the second step of each pair is, for every N: a list of (before, after)."""
    shapes = _columns(record)
    table(["", *(f"N = {N:,}" for _, N in shapes)],
           [[f"{_name(a)} → {_name(b)}",
             *(f"{record.find(name=a, shape=s)['us'] / record.find(name=b, shape=s)['us']:.2f}×" if s[1] <= STEPS[b].max_n else "–"
               for s in shapes)] for a, b in steps])


def in_flight(ncu, steps, shapes) -> None:
    """MiB of x and y of all rows in flight on 132 SMs of 2048 threads and 32 blocks, beside what DRAM had to read."""
    rows = []
    for M, N in shapes:
        for name in steps:
            threads = STEPS[name].launch(M, N).block[0]
            resident = min(M, 132 * min(32, 2048 // threads))
            dram = ncu.find(name=name, shape=(M, N))["dram_read_bytes"] / 4 / (M * N)
            mib = 2 * 4 * N * resident / 2**20
            rows.append([_name(name), f"{N:,}", f"{threads:,}", f"{resident:,}", f"{mib:.0f} MiB", f"{dram:.2f}"])
    table(["step", "N", "threads a block", "rows in flight", "their x and y", "DRAM reads an element"], rows)


def shares(record, steps, claims) -> None:
    """Share of the copy's bandwidth and speed-up over the first step for every N, beside the claims: name -> (share, speed-up)."""
    shapes = _columns(record)
    there = {(r["name"], tuple(r["shape"])) for r in record.rows}
    first = next(iter(steps))

    def cells(name, form):
        return [form(name, s) if (name, s) in there else "–" for s in shapes]

    rows = [[f"{_name(name)}, % of a copy", *cells(name, lambda n, s: f"{100 * _of_copy(record, n, s):.1f}"), f"{100 * claims[name][0]:g}"]
            for name in steps]
    rows += [[f"{_name(name)}, over V0", *cells(name, lambda n, s: f"{_of_copy(record, n, s) / _of_copy(record, first, s):.1f}×"),
              f"{claims[name][1]:.1f}×"] for name in steps if name != first]
    table(["", *(f"N = {N:,}" for _, N in shapes), "claimed"], rows)


# ----------------------------------------------------------------------------------------- what was measured


def over_columns(record, steps, title: str) -> None:
    """Share of the copy's bandwidth against N for some steps: `steps` maps names in the record to labels."""
    fig, ax = new_figure(8.8, 4.0)
    shapes = _columns(record)
    there = {(r["name"], tuple(r["shape"])) for r in record.rows}
    told = []
    for i, (name, label) in enumerate(steps.items()):
        mine = [s for s in shapes if (name, s) in there]
        shares = [100 * _of_copy(record, name, s) for s in mine]
        ax.plot([s[1] for s in mine], shares, marker=MARKERS[i % len(MARKERS)], color=CYCLE[i % len(CYCLE)], label=label)
        told.append(f"{label} from {shares[0]:.0f} to {shares[-1]:.0f}")
    ax.axhline(100, color=GREY, linestyle="--", linewidth=1.2)
    ax.text(shapes[-1][1], 101, "a copy", ha="right", va="bottom", fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set_xticks([s[1] for s in shapes], [f"{s[1]:,}" for s in shapes])
    ax.set(ylim=(0, 112), xlabel="columns N, with M · N = 2²⁷", ylabel="effective bandwidth, % of a copy",
           title=f"{title} (recorded on one {record.run['device']}, {record.run['date']})")
    ax.legend(fontsize=9, ncols=2, loc="lower right")
    show(fig, alt=f"{title}. Effective bandwidth in percent of a copy over the number of columns, from {shapes[0][1]} to "
                  f"{shapes[-1][1]:,}: {'; '.join(told)} percent.")


def reads(ncu, steps, shapes, title: str) -> None:
    """Reads for each element: asked for by the threads, not answered by L1, read from DRAM; one panel a shape."""
    fig, axes = new_figure(9.8, 3.5, cols=len(shapes), sharey=True)
    looks = (("asked for", GREY, "//"), ("beyond L1", SKY, ""), ("from DRAM", BLUE, ".."))
    told = []
    for ax, (M, N) in zip(axes, shapes, strict=True):
        ax.grid(axis="x", visible=False)
        for i, (name, label) in enumerate(steps.items()):
            found = [r for r in ncu.rows if r["name"] == name and r["shape"] == [M, N]]
            if not found:
                ax.text(i, 0.1, "row too\nlong", ha="center", va="bottom", fontsize=8.5)
                continue
            (r,) = found
            elements = M * N
            values = [8 * r["load_sectors"] / elements, 8 * (r["load_sectors"] - r["l1_hit_sectors"]) / elements,
                      r["dram_read_bytes"] / 4 / elements]
            for j, ((what, color, hatch), value) in enumerate(zip(looks, values, strict=True)):
                ax.bar(i + (j - 1) * 0.27, value, 0.25, color=color, hatch=hatch, edgecolor="white", label=what if i == 0 else None)
            ax.text(i + 0.27, values[2] + 0.05, f"{values[2]:.1f}", ha="center", va="bottom", fontsize=8.5)
            told.append(f"N = {N:,}, {label}: {', '.join(f'{v:.1f}' for v in values)}")
        ax.axhline(1, color=BLACK, linewidth=0.9, linestyle="--")
        ax.set_xticks(range(len(steps)), list(steps.values()), fontsize=9)
        ax.set_title(f"N = {N:,}")
    axes[0].set(ylabel="reads for each element", ylim=(0, 3.5))
    axes[0].legend(fontsize=8.5, loc="upper right", ncols=1)
    fig.suptitle(f"{title} (read with Nsight Compute on one {ncu.run['device']}, {ncu.run['date']})", fontsize=11, x=0.01, ha="left")
    show(fig, alt=f"{title}: bars of reads for each element, asked for, beyond L1 and from DRAM. {'; '.join(told)}.")


def ceilings(ladders, ncu, steps, shapes, title: str) -> None:
    """How near each step comes to the two ceilings: DRAM bytes a second (of the copy's) and instructions a second (of the peak)."""
    fig, ax = new_figure(8.8, 4.6)
    told = []
    for i, (name, label) in enumerate(steps.items()):
        for shape, marker in zip(shapes, MARKERS):
            found = [r for r in ncu.rows if r["name"] == name and r["shape"] == list(shape)]
            if not found:
                continue
            x, y = _busy(ladders, found[0])
            ax.plot(100 * x, 100 * y, marker, color=CYCLE[i % len(CYCLE)], markersize=9, markeredgecolor=BLACK, alpha=0.9)
            told.append(f"{label} at N = {shape[1]:,}: {100 * x:.0f} and {100 * y:.0f}")
    for line in (ax.axvline, ax.axhline):
        line(100, color=BLACK, linewidth=1.5)
    ax.text(99, 3, "memory ceiling", rotation=90, ha="right", va="bottom", fontsize=9)
    ax.text(2, 99, "instruction ceiling", va="top", fontsize=9)
    ax.set(xlim=(0, 112), ylim=(0, 112), xlabel="DRAM bytes a second, % of what a copy reaches",
           ylabel="instructions a second,\n% of 4 a cycle and SM at 1.98 GHz", title=f"{title} (recorded on one {ncu.run['device']})")
    colors = [Line2D([], [], marker="o", linestyle="", color=CYCLE[i % len(CYCLE)], markeredgecolor=BLACK, markersize=8, label=label)
              for i, label in enumerate(steps.values())]
    marks = [Line2D([], [], marker=m, linestyle="", color="white", markeredgecolor=BLACK, markersize=8, label=f"N = {s[1]:,}")
             for m, s in zip(MARKERS, shapes)]
    fig.legend(handles=colors + marks, loc="outside right center", fontsize=9)
    show(fig, alt=f"{title}. Each point: DRAM bytes a second in percent of a copy, then instructions a second in percent of the "
                  f"peak. {'; '.join(told)}.")


def _busy(ladders, row) -> tuple[float, float]:
    """(share of the copy's bytes a second that DRAM moved, share of the instruction slots used) for a row of the ncu record."""
    us = ladders.find(name=row["name"], shape=tuple(row["shape"]))["us"]
    copy = ladders.find(name="copy", shape=tuple(row["shape"]))["tbs"]
    return (row["dram_read_bytes"] + row["dram_write_bytes"]) / us / 1e6 / copy, row["instructions"] / us / 1e3 / ISSUE_GHZ


def claimed(record, steps, claims, shape, title: str, datasheet_tbs: float = 4.8) -> None:
    """Claimed beside measured, for one shape: share of the bandwidth (of the datasheet's, of a copy), and speed-up over the first step.

    `steps` maps names in the record to labels, `claims` names to (share of the bandwidth, speed-up).
    """
    fig, (left, right) = new_figure(9.8, 3.7, cols=2, gridspec_kw={"width_ratios": (3, 2)})
    rows = {name: record.find(name=name, shape=shape) for name in steps}
    first = rows[next(iter(steps))]["us"]
    shares = {"claimed": [100 * claims[n][0] for n in steps],
              f"measured, of {datasheet_tbs:g} TB/s (datasheet)": [100 * r["tbs"] / datasheet_tbs for r in rows.values()],
              "measured, of a copy": [100 * _of_copy(record, n, shape) for n in steps]}
    speedups = {"claimed": [claims[n][1] for n in steps], "measured": [first / r["us"] for r in rows.values()]}
    looks = (("#C9C9C9", "//"), (SKY, ""), (BLUE, ".."))
    for ax, series, form, use in ((left, shares, "{:.0f}", looks), (right, speedups, "{:.1f}", (looks[0], looks[2]))):
        width = 0.86 / len(series)
        top = max(max(v) for v in series.values())
        for i, ((label, values), (color, hatch)) in enumerate(zip(series.items(), use, strict=True)):
            x = np.arange(len(steps)) + (i - (len(series) - 1) / 2) * width
            ax.bar(x, values, width * 0.94, color=color, hatch=hatch, edgecolor="white", label=label)
            for a, value in zip(x, values, strict=True):
                ax.text(a, value + 0.012 * top, form.format(value), ha="center", va="bottom", fontsize=8.5)
        ax.set_xticks(range(len(steps)), list(steps.values()))
        ax.grid(axis="x", visible=False)
        ax.set_ylim(0, 1.32 * top)
        ax.legend(fontsize=9, loc="upper left")
    left.set(ylabel="% of the bandwidth")
    right.set(ylabel=f"times faster than {next(iter(steps.values()))}")
    where = f"{shape[0]:,} × {shape[1]:,} (recorded on one {record.run['device']}, {record.run['date']})"
    fig.suptitle(f"{title}, {where}", fontsize=11, x=0.01, ha="left")
    of, faster = ("; ".join(f"{label}: {', '.join(form.format(v) for v in values)}" for label, values in series.items())
                  for form, series in (("{:.0f}", shares), ("{:.1f}", speedups)))
    show(fig, alt=f"{title}: bars of claimed and measured values for {', '.join(steps.values())}. In percent of the bandwidth, {of}. "
                  f"Speed-up, {faster}.")

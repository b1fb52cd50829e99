"""Plots of notebook 10: who enters the list, how a list moves, traffic of the four variants, temperature, what was measured."""

from __future__ import annotations

import matplotlib
import numpy as np

from helpers.figures.style import BLACK, BLUE, CYCLE, GREEN, GREY, MARKERS, ORANGE, SKY, VERMILLION, YELLOW, new_figure, show, table

LABELS = {  # name in the record -> what the plots call it
    "safe_separate": "safe softmax, then top-k",
    "online_separate": "online softmax, then top-k",
    "safe_fused": "safe, fused",
    "online_fused": "online, fused",
    "softmax_topk": "this course's softmax_topk",
    "softmax;topk": "torch: softmax, then topk",
    "topk;lse": "torch: topk, and logsumexp",
    "quack": "QuACK (normalised over the k only)",
    "read": "only reading the logits",
}


# ------------------------------------------------------------------------------------------------- the list


def entering(row, k: int) -> None:
    """Which logits enter the list of the k best as a row of shape [N] goes by, and the k-th best so far."""
    row, best, entered, bars = np.asarray(row), [], [], []
    for j, x in enumerate(row):
        if len(best) < k or x > best[-1]:
            best = sorted([*best, x], reverse=True)[:k]
            entered.append(j)
        bars.append(best[-1] if len(best) == k else np.nan)
    position = np.arange(1, len(row) + 1)
    fig, ax = new_figure(8.8, 3.7)
    sample = np.unique(np.geomspace(1, len(row), 4000).astype(int)) - 1
    ax.plot(position[sample], row[sample], ".", color=GREY, markersize=2, label="logits (a sample of them)")
    ax.step(position, bars, where="post", color=VERMILLION, label=f"bar: the {k}-th best so far")
    ax.plot(position[entered], row[entered], "o", color=BLUE, markersize=4.5, label="enters the list")
    ax.set_xscale("log")
    ax.set_xticks([10**e for e in range(6) if 10**e <= len(row)], [f"{10**e:,}" for e in range(6) if 10**e <= len(row)])
    ax.set(xlabel="position in the row", ylabel="logit", ylim=(None, 1.45 * row.max()),
           title=f"{len(entered)} of {len(row):,} logits enter the list of the {k} best")
    ax.legend(loc="upper left", ncols=3, fontsize=9)
    last = sum(j >= len(row) // 2 for j in entered)
    show(fig, alt=f"A row of {len(row)} logits on a logarithmic axis. The bar, the {k}-th best so far, climbs like a staircase and "
                  f"soon lies above almost all logits. {len(entered)} logits enter the list, {last} of them in the second half of the row.")


def insertion(entries, newcomer) -> None:
    """One newcomer enters a sorted list that lies in the lanes of a warp: before, one lane up, after."""
    entries = list(entries)
    above = [np.inf, *entries[:-1]]
    after = [max(own, min(up, newcomer)) for own, up in zip(entries, above, strict=True)]
    lanes = len(entries)
    fig, ax = new_figure(8.8, 3.1)
    ax.axis("off")
    ax.set(xlim=(-3.9, lanes - 0.4), ylim=(3.65, -0.7))
    rows = (("own entry", entries), ("entry of the lane before", above),
            (f"min(before, {newcomer:g})", [min(up, newcomer) for up in above]), ("max(own, that)", after))
    for lane in range(lanes):
        ax.text(lane, -0.5, f"lane {lane}", ha="center", va="center", fontsize=9)
    for level, (name, values) in enumerate(rows):
        ax.text(-0.6, level, name, ha="right", va="center", fontsize=10, weight="bold" if level == 3 else "normal")
        for lane, value in enumerate(values):
            new = value == newcomer and level >= 2
            moved = level == 3 and value != entries[lane] and not new
            ax.add_patch(matplotlib.patches.Rectangle((lane - 0.38, level - 0.3), 0.76, 0.6, edgecolor=BLACK,
                                                      facecolor=YELLOW if new else SKY if moved else "white"))
            ax.text(lane, level, "∞" if np.isinf(value) else f"{value:g}", ha="center", va="center", fontsize=10)
    ax.set_title(f"{newcomer:g} enters: what it beats moves one lane on, and {entries[-1]:g} drops out")
    show(fig, alt=f"A sorted list in {lanes} lanes: {', '.join(f'{v:g}' for v in entries)}. The newcomer {newcomer:g} is compared with the "
                  f"entry of the lane before, the smaller of both with the own entry. Result: {', '.join(f'{v:g}' for v in after)}.")


# ------------------------------------------------------------------------------------------------- traffic


def traffic(passes) -> None:
    """Counted reads and writes per logit: `passes` maps a variant to [(kernel, reads, writes), ...]."""
    fig, ax = new_figure(8.8, 0.9 + 0.62 * len(passes))
    told, names = [], list(passes)
    for y, (name, kernels) in enumerate(passes.items()):
        left = 0.0
        for i, (_, reads, writes) in enumerate(kernels):
            for amount, color, hatch in ((reads, BLUE if i == 0 else SKY, ""), (writes, ORANGE, "//")):
                if amount < 0.05:
                    continue
                ax.barh(y, amount, left=left, color=color, hatch=hatch, edgecolor="white", height=0.62)
                for unit in range(int(round(amount))):
                    what = "write" if color == ORANGE else "read"
                    ax.text(left + unit + 0.5, y, what, ha="center", va="center", fontsize=9,
                            color="white" if color == BLUE else BLACK)
                left += amount
        ax.text(left + 0.08, y, f"{left:.2f}", va="center", fontsize=10)
        told.append(f"{LABELS.get(name, name)} {left:.2f}")
    ax.set_yticks(range(len(names)), [LABELS.get(n, n) for n in names])
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="accesses of 4 bytes per logit, counted", xlim=(0, 5.7), ylim=(len(names) - 0.45, -0.55))
    ax.legend(handles=[matplotlib.patches.Patch(facecolor=BLUE, label="read by the first kernel"),
                       matplotlib.patches.Patch(facecolor=SKY, label="read by the second"),
                       matplotlib.patches.Patch(facecolor=ORANGE, hatch="//", edgecolor="white", label="written")],
              loc="lower right", fontsize=9)
    show(fig, alt=f"Bars of the accesses to global memory per logit. {'; '.join(told)}.")


# --------------------------------------------------------------------------------------------- temperature


def temperature(p, columns) -> None:
    """Probabilities of the same few columns at several temperatures: `p` maps T to an array of probabilities."""
    fig, ax = new_figure(8.8, 3.3)
    for (T, values), color, marker in zip(p.items(), CYCLE, MARKERS, strict=False):
        ax.plot(range(len(columns)), values, marker=marker, color=color, label=f"T = {T:g}: these {len(columns)} hold {np.sum(values):.0%}")
    ax.set_xticks(range(len(columns)), [f"{c:,}" for c in columns])
    ax.set_yscale("log")
    ax.set(xlabel="token (column of the row)", ylabel="probability, logarithmic", ylim=(None, 3 * ax.get_ylim()[1]),
           title="The order never changes, the shares do")
    ax.legend(fontsize=9, ncols=len(p), loc="upper right")
    told = "; ".join(f"T = {T:g}: {', '.join(f'{v:.2g}' for v in values)}" for T, values in p.items())
    show(fig, alt=f"Probabilities of the {len(columns)} most probable tokens on a logarithmic axis, at {len(p)} temperatures. {told}. A "
                  "low temperature moves the probability to the first token, a high one spreads it over the whole row.")


# ------------------------------------------------------------------------------------------------ measured


def speedups(record, k: int = 5, base: str = "safe_separate") -> None:
    """The variants of the paper against `base`, over the vocabulary, one panel a batch size."""
    names = ("online_separate", "safe_fused", "online_fused")
    rows = [r for r in record.rows if r.get("part") == "variants" and r["shape"][2] == k and r["us"]]
    batches = sorted({r["shape"][0] for r in rows}, reverse=True)
    fig, axes = new_figure(9.6, 3.9, cols=len(batches), sharey=True, squeeze=False)
    told = []
    for ax, M in zip(axes[0], batches, strict=True):
        us = {(r["name"], r["shape"][1]): r["us"] for r in rows if r["shape"][0] == M}
        vocabularies = sorted({N for _, N in us})
        for name, color, marker in zip(names, CYCLE, MARKERS, strict=False):
            gain = [us[base, N] / us[name, N] for N in vocabularies]
            ax.plot(vocabularies, gain, marker=marker, color=color, label=LABELS[name])
            told.append(f"{LABELS[name]} at batch {M}: {min(gain):.1f} to {max(gain):.1f}")
        ax.axhline(1, color=GREY, linestyle="--", linewidth=1.2)
        ax.set_xscale("log")
        ax.set_xticks([10**3, 10**4, 10**5, 10**6], ["1,000", "10,000", "100,000", "1,000,000"])
        ax.set(xlabel="vocabulary N", title=f"batch {M:,}", ylim=(0, None))
    axes[0, 0].set(ylabel=f"times faster than\n{LABELS[base]}")
    axes[0, 0].legend(fontsize=9, loc="best")
    fig.suptitle(f"k = {k}, recorded on one {record.run['device']}, {record.run['date']}", x=0.01, ha="left", fontsize=11)
    show(fig, alt=f"Speed-up over {LABELS[base]} against the vocabulary, recorded on one {record.run['device']}. {'; '.join(told)}.")


def against_reading(record, shapes, dtype: str = "float32") -> None:
    """Time of this course's kernel and of what a user would pick instead, as a multiple of only reading the logits."""
    names = ("softmax_topk", "quack", "topk;lse", "softmax;topk")
    rows = {(r["name"], tuple(r["shape"])): r for r in record.rows if r.get("part") == "cases" and r["dtype"] == dtype and r["us"]}
    fig, ax = new_figure(9.4, 1.5 + 0.92 * len(shapes))
    told, height = [], 0.2
    looks = dict(zip(names, ((BLUE, ""), (GREEN, ".."), (SKY, "xx"), (ORANGE, "//")), strict=True))
    for y, shape in enumerate(shapes):
        reading = rows["read", shape]["us"]
        for i, name in enumerate(n for n in names if (n, shape) in rows):
            ratio = rows[name, shape]["us"] / reading
            at = y + (i - 1.5) * height
            ax.barh(at, ratio, height * 0.92, color=looks[name][0], hatch=looks[name][1], edgecolor="white",
                    label=LABELS[name] if name not in told else None)
            told.append(name)
            ax.text(ratio * 1.03, at, f"{ratio:.1f} ×  ({rows[name, shape]['us']:,.0f} µs)", va="center", fontsize=8.5)
    ax.axvline(1, color=BLACK, linewidth=1.2)
    ax.set_xscale("log")
    ax.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.minorticks_off()
    ax.set_yticks(range(len(shapes)), [f"{M:,} × {N:,}\nk = {k}" for M, N, k in shapes])
    ax.grid(axis="y", visible=False)
    ax.set(xlim=(0.8, 110), ylim=(len(shapes) - 0.4, -0.6), xlabel="time, as a multiple of only reading the logits once",
           title=f"Recorded on one {record.run['device']}, {record.run['date']}; {dtype} logits")
    handles = {label: h for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    ax.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.42, -0.13), ncols=2, fontsize=9)
    ratios = "; ".join(f"{M} × {N}, k = {k}: " + ", ".join(
        f"{LABELS[n]} {rows[n, (M, N, k)]['us'] / rows['read', (M, N, k)]['us']:.1f}" for n in names if (n, (M, N, k)) in rows)
        for M, N, k in shapes)
    show(fig, alt=f"Horizontal bars on a logarithmic axis, times as multiples of reading the logits once. {ratios}.")


def trials(record, names: dict[str, str], shape=(65_536, 256, 8), dtype: str = "bfloat16") -> None:
    """Time and counters of some variants as a table: `names` maps what the record calls them to what the table does."""
    rows = []
    for name, what in names.items():
        r = record.find(name=name, shape=shape, dtype=dtype)
        counters = [f"{r['instructions_millions']:.2f}", f"{r['issue_active_percent']:.0f} %"] if "registers" in r else ["–", "–"]
        rows.append([what, f"{r['us']:.1f}", *counters])
    title = f"{dtype}, {shape[0]:,} × {shape[1]:,}, k = {shape[2]}"
    table([title, "µs", "instructions, millions", "cycles that issue one"], rows)

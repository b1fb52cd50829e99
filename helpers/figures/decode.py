"""Plots of beyond/split_kv_decode: who works, how a cache is shared out, the model of waves, and what was measured."""

from __future__ import annotations

import matplotlib

from helpers.figures.style import BLACK, BLUE, GREEN, GREY, MARKERS, ORANGE, SKY, VERMILLION, YELLOW, new_figure, show

LABELS = {  # name in the record -> what the plots call it
    "decode": "this course's decode",
    "decode_ragged": "this course's decode, ragged",
    "read": "only reading as many bytes",
    "copy": "a copy that moves as many bytes",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_efficient": "SDPA, memory-efficient",
    "sdpa_math": "SDPA, math",
    "three_calls": "matmul, softmax, matmul",
}
LIGHT = "#E8E8E8"


def busy(launches, multiprocessors: int = 132) -> None:
    """One square a multiprocessor for each (title, blocks) of `launches`: empty, with one block, or with several."""
    fig, axes = new_figure(8.8, 2.9, cols=len(launches))
    told = []
    for ax, (title, blocks) in zip(axes, launches, strict=True):
        has = [blocks // multiprocessors + (n < blocks % multiprocessors) for n in range(multiprocessors)]
        for n, count in enumerate(has):
            color = BLUE if count > 1 else SKY if count else LIGHT
            ax.add_patch(matplotlib.patches.Rectangle((n % 12, n // 12), 0.82, 0.82, facecolor=color))
            if count:
                ax.text(n % 12 + 0.41, n // 12 + 0.45, count, ha="center", va="center", fontsize=7, color="white" if count > 1 else BLACK)
        ax.set(xlim=(-0.2, 12), ylim=(11.2, -0.2), aspect="equal", title=f"{title}\n{blocks:,} blocks")
        ax.axis("off")
        told.append(f"{title}: {blocks} blocks, {sum(map(bool, has))} of {multiprocessors} multiprocessors have work, "
                    f"up to {max(has)} blocks each")
    show(fig, alt=f"Squares, one a multiprocessor, with the number of its blocks. {'; '.join(told)}.")


def shares(chunk: int, splits: int, slots: int, lanes: int) -> None:
    """Three levels of sharing: the cache of a head over blocks, a block's keys over slots, a key over threads."""
    fig, axes = new_figure(9.2, 4.3, rows=3)
    shown = min(splits, 8)
    rows = ((f"the cache of one head: {splits} blocks of {chunk} keys", [f"block {i}" for i in range(shown - 1)] + ["…"], SKY),
            (f"the keys of one block, in turn to {slots} slots", [f"{i % slots}" for i in range(2 * slots)], YELLOW),
            (f"one key (and its value): {lanes} threads, 16 bytes each", [f"{i}" for i in range(lanes)], ORANGE))
    for ax, (title, names, color) in zip(axes, rows, strict=True):
        for i, name in enumerate(names):
            strong = i % (slots if color == YELLOW else len(names)) == 0
            ax.add_patch(matplotlib.patches.Rectangle((i / len(names), 0), 1 / len(names), 1, edgecolor=BLACK,
                                                      facecolor=color if strong else "white"))
            ax.text((i + 0.5) / len(names), 0.5, name, ha="center", va="center", fontsize=8.5)
        ax.set(xlim=(0, 1), ylim=(0, 1), title=title)
        ax.axis("off")
    show(fig, alt=f"Three bars. The cache of one head is cut into {splits} blocks of {chunk} keys. The keys of a block go in turn to "
                  f"{slots} slots, so slot 0 takes keys 0, {slots}, and so on. A key is taken by {lanes} threads with 16 bytes each.")


def splits(record, predicted, chosen: int) -> None:
    """Measured time over the number of splits, beside `predicted` (number of splits -> µs); `chosen` is marked."""
    rows = sorted((r for r in record.rows if r.get("part") == "splits"), key=lambda r: r["splits"])
    us = {r["splits"]: r["us"] for r in rows}
    fig, ax = new_figure(8.8, 3.8)
    ax.plot(us.keys(), [predicted[n] for n in us], "--", color=ORANGE, marker="s", label="predicted")
    ax.plot(us.keys(), us.values(), color=BLUE, marker="o", label="measured")
    ax.axvline(chosen, color=GREY, linestyle=":", linewidth=1.5)
    ax.text(chosen, 0.97, f" the plan takes {chosen}", transform=ax.get_xaxis_transform(), va="top", fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([2**e for e in range(10)], [f"{2**e:,}" for e in range(10)])
    ax.set_yticks([30, 50, 100, 200, 400], ["30", "50", "100", "200", "400"])
    ax.minorticks_off()
    ax.set(xlabel="splits: blocks for each head of the cache", ylabel="µs", title=_title(record, rows[0]))
    ax.legend(fontsize=9)
    told = "; ".join(f"{n}: {us[n]:.1f}, predicted {predicted[n]:.1f}" for n in us)
    show(fig, alt=f"Time in microseconds against the number of splits, both axes logarithmic, recorded on one {record.run['device']}. The "
                  f"curve falls steeply, is flat around {chosen} splits, and rises slowly. {told}.")


def against_others(record, cases) -> None:
    """Bandwidth of K and V for each (B, Hq, Hkv, Sk, D, dtype) of `cases`: decode beside what a user would pick instead."""
    names = ("decode", "sdpa_flash", "sdpa_cudnn", "three_calls", "read")
    looks = dict(zip(names, ((BLUE, ""), (SKY, "xx"), (GREEN, ".."), (ORANGE, "//"), (LIGHT, "")), strict=True))
    copy = record.find(part="copy")["tbs"]
    fig, ax = new_figure(9.4, 1.5 + 0.98 * len(cases))
    told, height = [], 0.17
    for y, case in enumerate(cases):
        words = []
        for i, name in enumerate(names):
            row = find(record, name, case)
            value = row.get("tbs") if row["us"] else None
            at = y + (i - 2) * height
            if value:
                ax.barh(at, value, height * 0.9, color=looks[name][0], hatch=looks[name][1], edgecolor="white", label=LABELS[name])
            ax.text((value or 0) + 0.04, at, f"{value:.2f}" if value else "does not run", va="center", fontsize=8)
            words.append(f"{LABELS[name]} {value:.2f}" if value else f"{LABELS[name]} does not run")
        told.append(f"{in_words(case, ' ')}: {', '.join(words)}")
    ax.axvline(copy, color=BLACK, linewidth=1.2)
    ax.text(copy, -0.75, f"large copy {copy:.2f}", ha="center", fontsize=9)
    ax.set_yticks(range(len(cases)), [in_words(case) for case in cases], fontsize=9)
    ax.grid(axis="y", visible=False)
    ax.set(xlim=(0, 4.9), ylim=(len(cases) - 0.4, -0.65), xlabel="TB/s of K and V")
    handles = {label: h for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    ax.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.42, -0.09), ncols=3, fontsize=9)
    fig.suptitle(f"Recorded on one {record.run['device']}, {record.run['date']}", x=0.01, ha="left", fontsize=11)
    show(fig, alt=f"Bars of the bandwidth of K and V in TB/s; a large copy reaches {copy:.2f}. {'; '.join(told)}.")


def lengths(record) -> None:
    """Bandwidth of K and V over the length of the cache."""
    rows = [r for r in record.rows if r.get("part") == "lengths"]
    copy = record.find(part="copy")["tbs"]
    fig, ax = new_figure(8.8, 3.8)
    told = []
    for name, color, marker in zip(("read", "decode", "sdpa_flash"), (GREY, BLUE, VERMILLION), MARKERS, strict=False):
        points = sorted((r["shape"][3], r["tbs"]) for r in rows if r["name"] == name)
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, label=LABELS[name])
        told.append(f"{LABELS[name]} from {points[0][1]:.2f} to {points[-1][1]:.2f}")
    ax.axhline(copy, color=BLACK, linewidth=1.2, linestyle="--")
    ax.text(points[0][0], copy, " large copy", va="bottom", fontsize=9)
    ax.set_xscale("log", base=2)
    keys = [n for n, _ in points]
    ax.set_xticks(keys, [f"{n:,}" if n < 1024 else f"{n // 1024}K" for n in keys])
    ax.minorticks_off()
    ax.set(xlabel="keys in the cache", ylabel="TB/s of K and V", ylim=(0, None), title=_title(record, rows[0], keys=False))
    ax.legend(fontsize=9)
    show(fig, alt=f"Bandwidth against the length of the cache, {keys[0]} to {keys[-1]:,} keys, recorded on one {record.run['device']}; "
                  f"a large copy reaches {copy:.2f} TB/s. {'; '.join(told)} TB/s.")


def find(record, name: str, case) -> dict:
    """The row of `name` for a case (B, Hq, Hkv, Sk, D, dtype)."""
    B, Hq, Hkv, Sk, D, dtype = case
    return record.find(part="cases", name=name, shape=(B, Hq, 1, Sk, D, False), dtype=dtype, kv_heads=Hkv)


def in_words(case, between: str = "\n") -> str:
    B, Hq, Hkv, Sk, D, dtype = case
    heads = f"{Hkv} heads" if Hq == Hkv else f"{Hq} heads on {Hkv}"
    return f"B = {B}, {heads},{between}{Sk // 1024}K keys, D = {D}, {dtype}"


def _title(record, row, keys: bool = True) -> str:
    B, Hq, _, Sk, D, _ = row["shape"]
    return (f"{B * Hq} heads, {f'{Sk:,} keys, ' if keys else ''}D = {D}, {row['dtype']}; recorded on one {record.run['device']}, "
            f"{record.run['date']}")

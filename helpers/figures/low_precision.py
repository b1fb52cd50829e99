"""Plots of notebook 09: sums that stop, errors against the row length, vanishing factors, the cost of folding, time in 16 bits."""

from __future__ import annotations

import numpy as np

from helpers.figures.style import BLACK, BLUE, CYCLE, GREEN, GREY, MARKERS, VERMILLION, new_figure, show

UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}
"""Unit roundoff: the largest relative error of rounding a number once."""
_LOOKS = {"fp16": (BLUE, "o"), "bf16": (VERMILLION, "s"), "fp32": (GREEN, "^")}


def partial_sums(panels) -> None:
    """The sum of the first k terms against k; `panels` maps a title to {format: partial sums of shape [N], "exact": float64}."""
    fig, axes = new_figure(9.6, 3.7, cols=len(panels), squeeze=False)
    told = []
    for ax, (title, sums) in zip(axes[0], panels.items(), strict=True):
        exact = np.asarray(sums["exact"], dtype=np.float64)
        k = np.arange(1, len(exact) + 1)
        ax.plot(k, exact, "--", color=BLACK, linewidth=1.3, label="exact")
        for name, (color, marker) in _LOOKS.items():
            values = np.asarray(sums[name], dtype=np.float64)
            ax.plot(k, values, color=color, marker=marker, markevery=(0.1, 0.2), label=name)
            told.append(f"{title}: {name} ends at {values[-1]:,.0f} of {exact[-1]:,.0f}")
            if values[-1] < 0.95 * exact[-1]:
                ax.annotate(f"{name}: {values[-1]:,.0f}", (k[-1], values[-1]), (0, 5), textcoords="offset points", ha="right", fontsize=9)
        ax.set(xlabel="terms added k", ylabel="partial sum", title=title, xlim=(0, len(k)), ylim=(0, 1.08 * exact[-1]))
    axes[0, 0].legend(loc="upper left", fontsize=9)
    show(fig, alt="Partial sums against the number of terms, added one after the other. The exact sums and fp32 lie on one another; "
                  f"the 16-bit sums leave them and become horizontal. {'; '.join(told)}.")


def error_against_length(sizes, errors) -> None:
    """Relative error of the normalizer against N; `errors` maps (format, "chain" or "tree") to one median per size."""
    fig, ax = new_figure(8.6, 4.4)
    told = []
    for (name, order), values in errors.items():
        color, marker = _LOOKS[name]
        chain = order == "chain"
        ax.plot(sizes, values, marker=marker, color=color, linestyle="-" if chain else ":", markerfacecolor=color if chain else "white",
                label=f"{name}, " + ("one after the other" if chain else "pair by pair"))
        told.append(f"{name} {order}: {values[0]:.0e} to {values[-1]:.0e}")
    for name in ("fp16", "bf16"):
        ax.axhline(UNIT[name], color=GREY, linewidth=1, linestyle="--", zorder=0)
        ax.text(sizes[-1], (1.1 if name == "bf16" else 0.9) * UNIT[name], f"one rounding of a {name} result", fontsize=8.5, color="#555555",
                va="bottom" if name == "bf16" else "top", ha="right")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.set(xlabel="row length N", ylabel="relative error of d (median)", ylim=(8e-9, 2),
           title="The order of a sum decides what 16 bits can hold")
    ax.legend(fontsize=9, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.17))
    show(fig, alt="Relative error of the normalizer against the row length, both axes logarithmic. One after the other, the 16-bit "
                  "errors grow with N up to a half and more, and fp32 stays below one rounding of a 16-bit result; pair by pair all "
                  f"three stay near one rounding of their own format. {'; '.join(told)}.")


def factors(gaps, factors) -> None:
    """The correction factor exp(-gap), rounded to each format, against the gap; `factors` maps a format to an array like `gaps`."""
    fig, ax = new_figure(8.6, 3.5)
    told = []
    for (name, values), width in zip(factors.items(), (5, 3, 1.5), strict=True):
        color, _ = _LOOKS[name]
        values = np.asarray(values, dtype=np.float64)
        alive = values > 0
        end = gaps[alive][-1]
        ax.plot(gaps[alive], values[alive], color=color, linewidth=width, label=name)
        ax.plot(end, values[alive][-1], "v", color=color, markersize=9, markeredgecolor=BLACK)
        ax.annotate(f"{name}: 0 from {end:.1f} on", (end, values[alive][-1]), (8, 2), textcoords="offset points", fontsize=9)
        told.append(f"{name} is 0 beyond {end:.1f}")
    ax.set_yscale("log")
    ax.set(xlabel="how much the maximum rises, $m_{new} - m_{old}$", ylabel="$e^{m_{old} - m_{new}}$", xlim=(0, 128), ylim=(1e-48, 50),
           title="Where the correction factor ends")
    show(fig, alt="The correction factor against the rise of the maximum, on a logarithmic axis: one falling line that ends earlier or "
                  f"later. {'; '.join(told)}.")


def folding(distances, panels) -> None:
    """Largest error in ulp against m - x; `panels` maps a title to {form of the exponent: errors like `distances`}."""
    fig, axes = new_figure(9.8, 3.6, cols=len(panels), sharey=True, squeeze=False)
    looks = ((GREEN, "o", "-"), (BLUE, "^", "--"), (VERMILLION, "s", ":"))
    told = []
    for ax, (title, forms) in zip(axes[0], panels.items(), strict=True):
        for (name, errors), (color, marker, line) in zip(forms.items(), looks, strict=True):
            ax.plot(distances, errors, color=color, marker=marker, linestyle=line, label=name)
            told.append(f"{title}, {name}: {errors[0]:.2g} to {errors[-1]:.2g}")
        ax.set_yscale("log")
        ax.set(xlabel="distance below the maximum, $m - x$", title=title)
    axes[0, 0].set(ylabel="largest error [ulp]", ylim=(0.2, 300))
    fig.legend(*axes[0, 0].get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncols=3)
    show(fig, alt="Largest error in ulp against the distance of an element below the maximum, on a logarithmic axis, for three forms of "
                  f"the exponent. {'; '.join(told)}.")


def half_the_time(record, names, dtype: str = "bfloat16") -> None:
    """Time in fp32 over time in `dtype` for 2^27 elements against N; `names` maps names in the record of topic softmax to labels.

    A peer that was not measured in that run is left out.
    """
    fig, ax = new_figure(8.6, 3.9)
    told = []
    found = {label: speedups(record, name, dtype) for name, label in names.items()}
    for i, (label, ratios) in enumerate((label, ratios) for label, ratios in found.items() if ratios):
        ax.plot(list(ratios), list(ratios.values()), marker=MARKERS[i], color=CYCLE[i], label=label)
        told.append(f"{label}: {min(ratios.values()):.2f} to {max(ratios.values()):.2f}")
    ax.axhline(2, color=BLACK, linestyle="--", linewidth=1.2)
    ax.axhline(1, color=GREY, linestyle=":", linewidth=1.2)
    ax.set_xscale("log", base=2)
    ticks = [r["shape"][1] for r in record.rows if r["name"] == "copy" and r["dtype"] == dtype and r["shape"][1].bit_count() == 1]
    ax.set_xticks(sorted(set(ticks)), [f"{n:,}" for n in sorted(set(ticks))], rotation=35)
    ax.set(xlabel="columns N ($2^{27}$ elements)", ylabel="time in fp32 / time in bf16",
           title=f"Does half the bytes take half the time? (recorded on one {record.run['device']}, {record.run['date']})")
    ax.set_ylim(0, 2.4)
    ax.legend(fontsize=9, ncols=3, loc="lower left")
    show(fig, alt="Time in fp32 divided by time in bf16 against the row length. A dashed line at 2 says: half the time for half the bytes; "
                  f"a dotted line at 1: the same time. {'; '.join(told)}.")


def speedups(record, name: str, dtype: str = "bfloat16") -> dict[int, float]:
    """{N: time in fp32 / time in `dtype`} of one name in the record of topic softmax, for powers of two at aligned rows."""
    wide, narrow = (_times(record, name, kind) for kind in ("float32", dtype))
    return {N: wide[N] / narrow[N] for N in sorted(narrow) if N in wide}


def furthest_from_a_copy(record, names: int = 3) -> None:
    """Print the lengths at which the course's softmax of 16-bit rows is furthest below a copy of the same rows, and how far."""
    for dtype, label in (("float16", "fp16"), ("bfloat16", "bf16")):
        copy, ours = (_times(record, name, dtype) for name in ("copy", "fast"))
        shares = {N: copy[N] / ours[N] for N in ours}
        worst = sorted(shares, key=shares.get)[:names]
        print(f"{label}, furthest from a copy: " + ", ".join(f"{shares[N]:.2f} of its speed at N = {N:,}" for N in worst))


def _times(record, name: str, dtype: str) -> dict[int, float]:
    """{N: microseconds} of one name in the record of topic softmax, for powers of two at aligned rows."""
    return {r["shape"][1]: r["us"] for r in record.rows if r["name"] == name and r["dtype"] == dtype and r.get("offset", 0) == 0
            and r["shape"][1].bit_count() == 1}

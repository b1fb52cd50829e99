"""Exercises of beyond/hopper_attention: the clock budget of a tile, the state without a maximum, work for blocks that stay."""

from __future__ import annotations

import math

import numpy as np

from helpers.exercises import Wrong, call, exercise

INF = math.inf

# ----------------------------------------------------------------------------------------------- hopper-budget


def _budget(D, flop):
    tensor, powers = 4 * 64 * D / flop, 64 / 16
    return tensor, powers, tensor / (tensor + powers), tensor / max(tensor, powers)


def _wrong_budget(products=2, per_key=1, powers=lambda D: 64 / 16, apart=lambda t, p: t / (t + p), together=lambda t, p: t / max(t, p)):
    def budget(D, flop):
        t, p = products * 2 * 64 * D / flop * per_key, powers(D) * per_key
        return t, p, apart(t, p), together(t, p)
    return budget


@exercise(
    "hopper-budget", "The budget of another tile",
    hints=(
        "A key costs 64 queries two products of length D: Q K and P V. A multiply-add is two operations.",
        "Each of the 64 scores of a key costs one power of 2, whatever D is. The unit makes 16 a clock.",
        "Apart: the tensor cores work for tensor clocks out of tensor + powers. Together: out of max(tensor, powers).",
    ),
    solution=_budget,
    wrong={
        "one product": (_wrong_budget(products=1), "two products"),
        "a power for each number of D": (_wrong_budget(powers=lambda D: 64 * D / 16), "depend on D"),
        "one query": (lambda D, f: (_budget(D, f)[0] / 64, 1 / 16, *_budget(D, f)[2:]), "64 queries"),
        "a tile": (_wrong_budget(per_key=128), "one key"),
        "always full": (_wrong_budget(together=lambda t, p: 1.0), "takes longer"),
        "the other unit": (_wrong_budget(apart=lambda t, p: p / (t + p)), "of the tensor cores"),
        "the longer part": (_wrong_budget(apart=lambda t, p: max(t, p) / (t + p)), "of the tensor cores"),
        "clocks": (_wrong_budget(apart=lambda t, p: t + p, together=max), "shares"),
    },
)
def _judge_budget(answer):
    for D, flop in ((128, 4096), (96, 4096), (64, 4096), (128, 8192), (64, 8192), (256, 4096)):
        value = call(answer, D, flop)
        try:
            tensor, powers, apart, together = (float(v) for v in value)
        except (TypeError, ValueError):
            raise Wrong("return four numbers: tensor, powers, apart, together") from None
        want, where = _budget(D, flop), f"D = {D}, {flop:,} operations a clock"
        near = [math.isclose(a, b, rel_tol=1e-9) for a, b in zip((tensor, powers, apart, together), want, strict=True)]
        if all(near):
            continue
        if math.isclose(tensor, want[0] / 64) or math.isclose(powers, want[1] / 64):
            raise Wrong(f"{where}: a warpgroup has 64 queries, not one")
        if tensor > 16 * want[0] and math.isclose(tensor / want[0], powers / want[1]):
            raise Wrong(f"{where}: give the clocks of one key, not of a tile")
        if math.isclose(tensor, want[0] / 2):
            raise Wrong(f"{where}: tensor is half of it: there are two products, and a multiply-add is two operations")
        if not near[0]:
            raise Wrong(f"{where}: tensor is not {tensor:g}; 64 queries, one key, D columns, two products")
        if not near[1]:
            raise Wrong(f"{where}: powers is not {powers:g}; does the number of powers of 2 depend on D?")
        if apart > 1 or together > 1:
            raise Wrong(f"{where}: apart and together are shares of the tensor cores' peak, not clocks")
        if not near[2]:
            raise Wrong(f"{where}: apart is not {apart:g}; it is the share of the tensor cores: their busy clocks over all clocks")
        raise Wrong(f"{where}: together is not {together:g}; what if the powers of 2 are what takes longer?")


# ----------------------------------------------------------------------------------------------- hopper-origin

SLACK = 4


def _take(m, d, o, x, V):
    top = x.max()
    if top == -np.inf:
        return m, d, o
    if top >= m:
        new = top + SLACK
        shrink = np.exp2(m - new)
        m, d, o = new, d * shrink, o * shrink
    p = np.exp2(x - m)
    return m, d + p.sum(), o + p @ V


def _wrong_take(passed=lambda top, m: top >= m, scale_d=True, scale_o=True, power=np.exp2, turned=False, guard=True):
    def take(m, d, o, x, V):
        top = x.max()
        if passed(top, m) and (top > -np.inf or not guard):
            new = top + SLACK
            shrink = 0.0 if m == -np.inf else power(new - m if turned else m - new)
            m, d, o = new, d * (shrink if scale_d else 1), o * (shrink if scale_o else 1)
        if m == -np.inf and guard:
            return m, d, o
        p = power(x - m)
        return m, d + p.sum(), o + p @ V
    return take


def _take_maximum(m, d, o, x, V):
    new = max(m, x.max())
    if new == -np.inf:
        return m, d, o
    shrink = np.exp2(m - new)
    p = np.exp2(x - new)
    return new, d * shrink + p.sum(), o * shrink + p @ V


@exercise(
    "hopper-origin", "The state without a maximum",
    hints=(
        "If all of x lie below m, nothing happens to m: p = np.exp2(x - m), and d and o take it up as they are.",
        "Otherwise, and if no key has been seen, m becomes x.max() + 4. What was counted from the old m must shrink: d and o times "
        "np.exp2(old - new). From m = -inf that factor is 0.",
        "If x holds nothing but -inf, return the state as it is: for a row that has seen no key, -inf - -inf would be NaN.",
    ),
    solution=_take,
    wrong={
        "the maximum": (_take_maximum, "not at the largest"),
        "a new origin each time": (_wrong_take(passed=lambda top, m: True), "m is kept"),
        "passed only if above": (_wrong_take(passed=lambda top, m: top > m), "is not negative"),
        "d not rescaled": (_wrong_take(scale_d=False), "d still counts"),
        "o not rescaled": (_wrong_take(scale_o=False), "o still counts"),
        "the other way round": (_wrong_take(turned=True), "other way round"),
        "powers of e": (_wrong_take(power=np.exp), "powers of 2"),
        "no guard": (_wrong_take(guard=False), "no key"),
    },
)
def _judge_origin(answer):
    rng = np.random.default_rng(7)
    V = [rng.standard_normal((3, 2)) for _ in range(7)]
    rise = [[1.0, -2.0, 0.5], [4.0, 3.0, -9.0], [5.0, 0.0, -1.0], [4.5, -3.0, 8.9], [20.0, 1.0, 19.0], [2.0, 3.0, -INF]]
    cases = {"first tile": rise[:1], "a tile below m": rise[:2], "a score equal to m": rise[:3], "tiles that rise": rise,
             "tiles of -inf first": [[-INF] * 3, [-INF, -5.0, -7.0], [-INF] * 3], "no key at all": [[-INF] * 3] * 2}
    for name, tiles in cases.items():
        state = (-INF, 0.0, np.zeros(2))
        for x, v in zip(tiles, V, strict=False):
            x = np.array(x)
            with np.errstate(all="ignore"):
                value, want = call(answer, state[0], state[1], state[2].copy(), x.copy(), v.copy()), _take(*state, x, v)
            _compare_states(f"{name}, x = {[float(n) for n in x]}, m = {state[0]:g}", value, want, state, x)
            state = want


def _compare_states(where, value, want, before, x):
    try:
        m, d, o = value
        m, d, o = float(m), float(d), np.asarray(o, float)
        if o.shape != want[2].shape:
            raise ValueError
    except (TypeError, ValueError):
        raise Wrong("return the new m, d and o") from None
    if math.isnan(m) or math.isnan(d) or np.isnan(o).any():
        raise Wrong(f"{where}: NaN: the row has seen no key, and -inf - -inf has no value")
    kept = want[0] == before[0]
    if m != want[0]:
        if kept:
            raise Wrong(f"{where}: m became {m:g}; but every score lies below m, so m is kept")
        if x.max() == before[0]:
            raise Wrong(f"{where}: m is still {m:g}; but x - m is not negative for one of the scores: its sign bit is 0")
        if m == x.max():
            raise Wrong(f"{where}: m is put {SLACK} powers of 2 above the largest score, not at the largest")
        raise Wrong(f"{where}: m = {m:g}, not {want[0]:g}")
    if math.isclose(d, want[1], rel_tol=1e-12) and np.allclose(o, want[2], rtol=1e-12, atol=0):
        return
    p = np.exp2(x - m) if m > -INF else np.zeros(len(x))
    if math.isclose(d, before[1] + p.sum()) and not kept:
        raise Wrong(f"{where}: d still counts from the old m; it shrinks as m rises")
    if math.isclose(d, want[1], rel_tol=1e-12) and not kept:
        raise Wrong(f"{where}: o still counts from the old m; it shrinks as d does")
    if before[1] > 0 and not kept and d > before[1]:
        raise Wrong(f"{where}: d grew by a factor where it should shrink; is the exponent of that factor the other way round?")
    raise Wrong(f"{where}: d = {d:g}, not {want[1]:g}; x and m count powers of 2, not of e")


# --------------------------------------------------------------------------------------------- hopper-schedule


def _dealt(order, weights, blocks):
    lists, load = [[] for _ in range(blocks)], np.zeros(blocks)
    for item in order:
        lists[load.argmin()].append(item)
        load[load.argmin()] += weights[item]
    return lists


def _longest_first(weights, blocks):
    lists, load = [[] for _ in range(blocks)], np.zeros(blocks)
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        b = load.argmin()
        lists[b].append(item)
        load[b] += weights[item]
    return lists


def _in_turn(weights, blocks):
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    return [order[b::blocks] for b in range(blocks)]


@exercise(
    "hopper-schedule", "Longest first",
    hints=(
        "Sort the items: sorted(range(len(weights)), key=lambda i: -weights[i]) keeps the order of items of equal weight.",
        "Keep for each block the sum of the weights that it has. The next item goes to the block with the smallest sum.",
        "If the sums are an array, sums.argmin() is that block, and of several the first.",
    ),
    solution=_longest_first,
    wrong={
        "as they come": (lambda w, b: _dealt(range(len(w)), w, b), "heaviest"),
        "shortest first": (lambda w, b: _dealt(sorted(range(len(w)), key=lambda i: w[i]), w, b), "lightest"),
        "in turn": (_in_turn, "least to do"),
        "weights": (lambda w, b: [[w[i] for i in items] for items in _longest_first(w, b)], "numbers of items"),
        "one lost": (lambda w, b: [items[:-1] if n == 0 else items for n, items in enumerate(_longest_first(w, b))], "not once"),
        "blocks that have nothing": (lambda w, b: [items for items in _longest_first(w, b) if items], "a list for each"),
        "equal ones backwards": (lambda w, b: _dealt(sorted(reversed(range(len(w))), key=lambda i: -w[i]), w, b), "equal weight"),
    },
)
def _judge_schedule(answer):
    rng = np.random.default_rng(3)
    cases = [([9, 3, 2, 5], 2), ([2, 7, 4, 5, 4, 2], 2), ([5, 4, 3, 3, 3], 2), ([3, 3, 3, 1, 2], 3), ([4, 1], 3)]
    cases += [([int(w) for w in rng.integers(1, 30, n)], blocks) for n, blocks in ((20, 4), (40, 7))]
    for weights, blocks in cases:
        value, want = call(answer, list(weights), blocks), _longest_first(weights, blocks)
        where = f"weights {weights}, {blocks} blocks"
        try:
            lists = [[int(i) for i in items] for items in value]
        except (TypeError, ValueError):
            raise Wrong("return a list for each block, with the numbers of its items") from None
        if lists == want:
            continue
        if len(lists) != blocks:
            raise Wrong(f"{where}: return a list for each of the {blocks} blocks, an empty one too")
        said = sorted(i for items in lists for i in items)
        if said != list(range(len(weights))):
            if lists == [[weights[i] for i in items] for items in want]:
                raise Wrong(f"{where}: return the numbers of items, 0 to {len(weights) - 1}, not their weights")
            raise Wrong(f"{where}: an item is there not once: {said}")
        begins = [weights[items[0]] for items in lists if items]
        if max(begins) < max(weights):
            raise Wrong(f"{where}: no block begins with the heaviest item; did the lightest come first?")
        if any(weights[a] < weights[b] for items in lists for a, b in zip(items, items[1:], strict=False)):
            raise Wrong(f"{where}: a block does an item before one of the heaviest that are left")
        if [[weights[i] for i in items] for items in lists] == [[weights[i] for i in items] for items in want]:
            raise Wrong(f"{where}: of items of equal weight the one with the lower number comes first")
        raise Wrong(f"{where}: {lists}; each item goes to the block that has least to do")

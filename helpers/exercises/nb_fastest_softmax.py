"""Exercises of beyond/fastest_softmax: bytes in flight, the order of work, which limit a measurement shows."""

from __future__ import annotations

import heapq

import numpy as np

from helpers.exercises import Wrong, call, exercise

# ------------------------------------------------------------------------------------------------- fast-flight


def _flight(threads, registers, pieces):
    each = -(-registers // 8) * 8
    blocks = min(65_536 // (threads * each), 2048 // threads, 32)
    return blocks * threads * pieces * 16


def _other(threads, registers, pieces, by=8, most=2048, blocks=32, whole=True, size=16):
    each = -(-registers // by) * by
    room = 65_536 // (threads * each) if whole else 65_536 / (threads * each)
    return min(room, most // threads, blocks) * threads * pieces * size


@exercise(
    "fast-flight", "Bytes in flight",
    hints=(
        "Round the registers of a thread up to a multiple of 8: -(-registers // 8) * 8.",
        "Three things limit the blocks: 65,536 // (threads * registers), 2,048 // threads, and 32. The smallest counts.",
        "Each thread of each of these blocks has `pieces` loads of 16 bytes under way.",
    ),
    solution=_flight,
    wrong={
        "registers not rounded": (lambda t, r, p: _other(t, r, p, by=1), "by eights"),
        "part of a block": (lambda t, r, p: _other(t, r, p, whole=False), "part of a block"),
        "one block": (lambda t, r, p: t * p * 16, "only one block"),
        "no room for threads": (lambda t, r, p: _other(t, r, p, most=1 << 20), "2,048 threads"),
        "no end of blocks": (lambda t, r, p: _other(t, r, p, blocks=1 << 20), "32 blocks"),
        "always full": (lambda t, r, p: 2048 * p * 16, "registers"),
        "pieces, not bytes": (lambda t, r, p: _other(t, r, p, size=1), "16 bytes"),
        "kilobytes": (lambda t, r, p: _flight(t, r, p) / 1024, "not kilobytes"),
    },
)
def _judge_flight(answer):
    cases = (256, 54, 4), (256, 33, 4), (1024, 32, 1), (512, 40, 2), (192, 72, 12), (1024, 61, 8), (128, 16, 2), (32, 24, 1), (128, 182, 16)
    for case in cases:
        value = call(answer, *case)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise Wrong(f"return a number of bytes, not {value!r}")
        if value == _flight(*case):
            continue
        threads, registers, pieces = case
        told = {
            2048 * pieces * 16: f"2,048 threads do not fit if each has {registers} registers",
            _other(*case, by=1): f"{registers} registers are dealt out by eights: {-(-registers // 8) * 8} of them are taken",
            _other(*case, whole=False): "a part of a block does not run: the number of blocks is a whole number",
            _other(*case, most=1 << 20): f"an SM has room for 2,048 threads, that is {2048 // threads} blocks of {threads}",
            _other(*case, blocks=1 << 20): "an SM has room for 32 blocks, however small they are",
            threads * pieces * 16: "that is only one block; how many does the SM hold?",
            _flight(*case) / 16: "each piece is 16 bytes",
            _flight(*case) / 1024: "return bytes, not kilobytes",
        }
        where = f"{threads} threads with {registers} registers and {pieces} pieces"
        raise Wrong(f"{where}: {told.get(value, f'{value:,} is not it; how many blocks does an SM hold?')}")


# --------------------------------------------------------------------------------------------------- fast-deal


def _deal(M, us):
    n = len(us)
    before = max(len(range(i, M, n)) * us[i] for i in range(n))
    free = [(0.0, i) for i in range(n)]  # when each SM is free
    for _ in range(M):
        at, i = heapq.heappop(free)
        heapq.heappush(free, (at + us[i], i))
    return before, max(free)[0]


def _each(M, us):
    return [len(range(i, M, len(us))) * u for i, u in enumerate(us)]


def _at_best(M, us):
    return M / sum(1 / u for u in us)


def _wrong_deal(before=lambda M, us: _deal(M, us)[0], later=lambda M, us: _deal(M, us)[1]):
    return lambda M, us: (before(M, us), later(M, us))


@exercise(
    "fast-deal", "Deal out the rows",
    hints=(
        "Dealt out before: SM i gets the rows i, i + n, i + 2n, ...: len(range(i, M, n)) of them. The last SM to end decides.",
        "As they come: keep a list of the times at which each SM is free, all 0 at first.",
        "The next row goes to the SM with the smallest of these times; add that SM's us to it. After M rows the largest of them counts.",
    ),
    solution=_deal,
    wrong={
        "mean of the SMs": (_wrong_deal(before=lambda M, us: M / len(us) * sum(us) / len(us)), "the slowest"),
        "rows not whole": (_wrong_deal(before=lambda M, us: M / len(us) * max(us)), "whole rows"),
        "one row more for all": (_wrong_deal(before=lambda M, us: -(-M // len(us)) * max(us)), "not every SM"),
        "the first to end": (_wrong_deal(before=lambda M, us: min(_each(M, us))), "the last row"),
        "shares by speed": (_wrong_deal(later=_at_best), "a row is not divided"),
        "the same as before": (_wrong_deal(later=lambda M, us: _deal(M, us)[0]), "same time for both"),
        "swapped": (lambda M, us: _deal(M, us)[::-1], "swapped"),
    },
)
def _judge_deal(answer):
    rng = np.random.default_rng(5)
    cases = [(7, [1.0, 2.0]), (2, [0.25, 0.5]), (10, [4.0, 1.0, 1.0]), (4, [3.0, 1.0, 1.0, 1.0, 1.0, 9.0]), (12, [2.0, 2.0, 2.0]),
             (9, [1.0, 1.0, 1.0, 50.0])]
    cases += [(int(M), [float(u) for u in rng.integers(5, 12, 13)]) for M in rng.integers(20, 200, 3)]
    for M, us in cases:
        value = call(answer, M, list(us))
        try:
            before, later = (float(v) for v in value)
        except (TypeError, ValueError):
            raise Wrong("return two times: dealt out before, and as they come") from None
        want = _deal(M, us)
        right = [bool(np.isclose(got, w, rtol=1e-9)) for got, w in zip((before, later), want, strict=True)]
        if all(right):
            continue
        where = f"{M} rows, us = {[f'{u:g}' for u in us]}".replace("'", "")
        n = len(us)
        if np.isclose(before, want[1]) and np.isclose(later, want[0]):
            raise Wrong(f"{where}: the two times are swapped")
        if not right[0]:
            told = {
                M / n * sum(us) / n: "the mean says nothing about the slowest SM, for which all wait",
                M / n * max(us): "an SM works on whole rows: rows 0, n, 2n, ... are counted one by one",
                -(-M // n) * max(us): "not every SM gets a row in the last round; is it the slowest that does?",
                min(_each(M, us)): "that is the first SM to end; the last row is done when the last one ends",
            }
            raise Wrong(f"{where}: dealt out before: {_near(told, before, f'not {before:g}')}")
        told = {_at_best(M, us): "that would be so if a row could be shared; but a row is not divided between SMs",
                want[0]: "that is the same time for both; an SM that is free takes the next row, so fast SMs get more rows"}
        raise Wrong(f"{where}: as they come: {_near(told, later, f'not {later:g}')}")


def _near(told: dict[float, str], value: float, otherwise: str) -> str:
    return next((text for known, text in told.items() if np.isclose(known, value, rtol=1e-9)), otherwise)


# -------------------------------------------------------------------------------------------------- fast-limit

_LIMITS = ("exchange", "bytes in flight", "prefetch too far", "host", "memory")
_ANSWER = ("bytes in flight", "prefetch too far", "host", "exchange", "memory")
_TOLD = {
    ("A", "exchange"): "A: 1024 threads or 256, the cluster has 8 blocks and a byte barrier both times; what do registers and pieces say?",
    ("A", "memory"): "A: half of a copy is far from what memory allows",
    ("B", "exchange"): "B: in place or not, the blocks exchange the same states; what does y's own place take away?",
    ("B", "bytes in flight"): "B: the same registers, threads and pieces are in flight in place; what else has less room out of place?",
    ("B", "memory"): "B: in place the same number of bytes is read and written, and it is faster",
    ("C", "memory"): "C: 32 KB take a small part of a microsecond",
    ("C", "exchange"): "C: in a graph the same kernel runs, with the same exchange",
    ("C", "bytes in flight"): "C: in a graph the same kernel runs, with the same bytes in flight",
    ("D", "bytes in flight"): "D: 96 KB in flight were enough for others (see E); what grows with 16 blocks instead of 4?",
    ("D", "memory"): "D: 0.83 of a copy is not what memory allows",
    ("E", "bytes in flight"): "E: half as much again in flight changes nothing",
    ("E", "exchange"): "E: it is as fast as a copy: what could be gained?",
}


@exercise(
    "fast-limit", "Which limit is it?",
    hints=(
        "Ask what the second measurement changes, and what it leaves as it is. The limit is in what changes.",
        "If nothing changes, and it is as fast as a copy, there is nothing to gain: memory.",
        "A changes pieces and threads, B how much passes through L2, C who starts the kernel, D how many blocks have to meet.",
    ),
    solution=_ANSWER,
    wrong={
        "A by the exchange": (("exchange", *_ANSWER[1:]), "byte barrier both times"),
        "B by bytes in flight": ((_ANSWER[0], "bytes in flight", *_ANSWER[2:]), "has less room"),
        "C by memory": ((*_ANSWER[:2], "memory", *_ANSWER[3:]), "a small part of a microsecond"),
        "D by bytes in flight": ((*_ANSWER[:3], "bytes in flight", "memory"), "16 blocks instead of 4"),
        "E by bytes in flight": ((*_ANSWER[:4], "bytes in flight"), "changes nothing"),
        "another word": (("registers", *_ANSWER[1:]), "one of"),
        "too few": (_ANSWER[:4], "five"),
    },
)
def _judge_limit(answer):
    if not isinstance(answer, (tuple, list)) or len(answer) != 5:
        raise Wrong("give five words, for A, B, C, D and E")
    for letter, value, want in zip("ABCDE", answer, _ANSWER, strict=True):
        if value not in _LIMITS:
            raise Wrong(f"{letter}: {value!r} is not one of {', '.join(_LIMITS)}")
        if value != want:
            raise Wrong(_TOLD.get((letter, value), f"{letter}: not {value}; what does the second measurement change?"))

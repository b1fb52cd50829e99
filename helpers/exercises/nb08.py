"""Exercises of notebook 08: where a row can wait, bytes in flight, the size of a cluster, several rows a warp."""

from __future__ import annotations

import math

import numpy as np

from helpers import cpu_device, reference
from helpers.exercises import Wrong, call, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

SHARED = 232_448  # bytes of shared memory that a block may have


def _whole(value, case: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise Wrong(f"{case}: return a whole number, not {value!r}")
    return int(value)


# -------------------------------------------------------------------------------------------------- 08-place

_PLACES = ("warp", "block", "shared", "cluster", "split")


def _place(N, itemsize):
    if N * itemsize <= 32 * 2 * 16:
        return "warp"
    if N <= 1024 * 48:
        return "block"
    if N * itemsize <= 232_448 - 256:
        return "shared"
    if N * itemsize <= 16 * (232_448 - 4096):
        return "cluster"
    return "split"


def _other(N, itemsize, warp=1024, block=1024 * 48, shared=SHARED - 256, cluster=16 * (SHARED - 4096)):
    """`_place` with other limits: a warp's and shared memory in bytes, a block's in elements."""
    fits = {"warp": N * itemsize <= warp, "block": N <= block, "shared": N * itemsize <= shared, "cluster": N * itemsize <= cluster}
    return next((place for place, enough in fits.items() if enough), "split")


_MISTAKES = {  # the same with a limit that somebody may take for right, and what to say about it
    "no dtype": (lambda N, size: _other(N, 4), "an element of fp16 or bf16 has 2 bytes; 4 bytes an element is fp32 only"),
    "no dtype in a warp": (lambda N, size: _other(N, size, warp=256 * size), "a piece of 16 bytes holds 4 elements of fp32, or 8 of fp16"),
    "small in registers": (lambda N, size: _other(N, size, block=1024 * 48 * 4 // size),
                           "a register holds one element of any type, as a float, so 48 registers hold 48 of them"),
    "one thread's registers": (lambda N, size: _other(N, size, block=48), "48 registers are one thread's; a block has 1024 threads"),
    "no states in a block": (lambda N, size: _other(N, size, shared=SHARED), "those are all 232,448 bytes; the states take 256 of them"),
    "no states in a cluster": (lambda N, size: _other(N, size, cluster=16 * SHARED), "in each of 16 blocks the states take 4,096 bytes"),
    "thousands": (lambda N, size: _other(N, size, shared=227_000 - 256), "1 KB of shared memory is 1,024 bytes: 227 KB are 232,448"),
    "eight blocks": (lambda N, size: _other(N, size, cluster=8 * (SHARED - 4096)), "a cluster has up to 16 blocks"),
}


@exercise(
    "08-place", "Where can a row wait?",
    hints=(
        "For each place ask: what does one element take there, and how much is there? Registers count elements, the others bytes.",
        "A warp: N * itemsize up to 32 * 2 * 16. The registers of a block: N up to 1024 * 48, whatever the type.",
        "Shared memory: N * itemsize up to 232_448 - 256; a cluster 16 * (232_448 - 4096). Return the first place in which the row fits.",
    ),
    solution=_place,
    wrong={
        **_MISTAKES,
        "never too long": (lambda N, size: "cluster" if _place(N, size) == "split" else _place(N, size), "even 16 blocks"),
        "below the limit": (lambda N, size: _place(N + 1, size), "just fits"),
        "the largest": (lambda N, size: "split", "the first"),
        "a number": (lambda N, size: _PLACES.index(_place(N, size)), "one of the words"),
    },
)
def _judge_place(answer):
    cases = [(N, 4) for N in (1, 256, 257, 49_152, 49_153, 56_900, 58_048, 58_049, 100_000, 456_704, 456_705, 913_408, 913_409, 5_000_000)]
    cases += [(N, 2) for N in (256, 512, 513, 49_152, 49_153, 100_000, 116_096, 116_097, 1_826_816, 1_826_817)]
    cases += [(N, 1) for N in (1024, 1025, 49_153, 232_192, 232_193, 3_653_632, 3_653_633)]
    got = {}
    for case in cases:
        got[case] = call(answer, *case)
        if got[case] not in _PLACES:
            raise Wrong(f"N = {case[0]:,}: return one of the words {', '.join(_PLACES)}, not {got[case]!r}")
    wrong = [case for case in cases if got[case] != _place(*case)]
    if not wrong:
        return
    N, size = wrong[0]
    said = f"N = {N:,}, {size} bytes each: {_place(N, size)!r}, not {got[wrong[0]]!r}"
    for mistake, words in _MISTAKES.values():
        if all(got[case] == mistake(*case) for case in cases):
            raise Wrong(f"{said}; {words}")
    if all(got[case] == _place(case[0] + 1, case[1]) for case in cases):
        raise Wrong(f"{said}; a row that fills a place completely just fits")
    if all(value != "split" for value in got.values()):
        raise Wrong("N = 5,000,000, 4 bytes each: even 16 blocks of a cluster have too little shared memory; what is left?")
    raise Wrong(f"{said}; go through the places in the order of the table and take the first that is large enough")


# ------------------------------------------------------------------------------------------------- 08-flight


def _threads(tbs, us, sms, bytes_each):
    needed = tbs * 10**6 * us / sms
    return 32 * math.ceil(needed / (32 * bytes_each))


@exercise(
    "08-flight", "Enough threads to keep memory busy",
    hints=(
        "Bytes in flight = bytes a second x seconds. 1 TB/s is 10**12 bytes in a second, so 10**6 bytes in a microsecond.",
        "That is for the whole GPU. Divide by the number of SMs, and then by what a warp asks for: 32 * bytes_each.",
        "needed = tbs * 10**6 * us / sms; the answer is 32 * math.ceil(needed / (32 * bytes_each)).",
    ),
    solution=_threads,
    wrong={
        "the whole GPU": (lambda tbs, us, sms, each: _threads(tbs, us, 1, each), "one SM"),
        "rounded down": (lambda tbs, us, sms, each: 32 * int(tbs * 1e6 * us / sms // (32 * each)), "too few"),
        "no warps": (lambda tbs, us, sms, each: int(-(-(tbs * 1e6 * us / sms) // each)), "whole warps"),
        "warps": (lambda tbs, us, sms, each: _threads(tbs, us, sms, each) // 32, "number of warps"),
        "bytes": (lambda tbs, us, sms, each: 32 * int(-(-(tbs * 1e6 * us / sms) // 32)), "bytes_each"),
        "seconds": (lambda tbs, us, sms, each: _threads(tbs, us * 1e6, sms, each), "microsecond"),
        "rate only": (lambda tbs, us, sms, each: _threads(tbs, 1, sms, each), "longer"),
    },
)
def _judge_flight(answer):
    cases = (2.0, 1.0, 132, 16), (2.0, 0.5, 132, 16), (4.1, 0.75, 132, 4), (2.0, 1.0, 132, 64), (0.9, 0.6, 40, 8), (1.2, 0.4, 100, 32)
    for tbs, us, sms, each in cases:
        case = f"{tbs:g} TB/s, {us:g} us, {sms} SMs, {each} bytes a thread"
        got, want = _whole(call(answer, tbs, us, sms, each), case), _threads(tbs, us, sms, each)
        if got == want:
            continue
        needed = tbs * 1e6 * us / sms
        if got == _threads(tbs, us, 1, each):
            raise Wrong(f"{case}: {got:,} threads are for the whole GPU; asked is one SM")
        if got == 32 * -(-needed // 32):
            raise Wrong(f"{case}: {got:,} is the number of bytes; each thread has bytes_each of them under way")
        if got == want // 32:
            raise Wrong(f"{case}: {got:,} is the number of warps; asked are threads")
        if got % 32 == 0 and got == want - 32:
            raise Wrong(f"{case}: {got:,} threads have {got * each:,} bytes under way, too few for {needed:,.0f}")
        if got == int(-(-needed // each)):
            raise Wrong(f"{case}: {got:,} threads are enough, but threads come in whole warps of 32")
        if got > 10_000 * want:
            raise Wrong(f"{case}: not {got:,}; `us` counts microseconds, and 1 TB/s is 1,000,000 bytes in a microsecond")
        if got == _threads(tbs, 1, sms, each):
            raise Wrong(f"{case}: not {got:,}; the longer an answer takes, the more must be under way, and the shorter, the less")
        raise Wrong(f"{case}: {needed:,.0f} bytes must be under way on an SM, which {want:,} threads have; you return {got:,}")


# ------------------------------------------------------------------------------------------------ 08-cluster


def _cluster(M, N, sms):
    def fits(size):
        return 16 * -(-N // (4 * size)) + 8 * 32 * size <= 227 * 1024

    size = next((s for s in (1, 2, 4, 8, 16) if fits(s)), None)
    while size and size < 16 and M * size < sms / 2:
        size *= 2
    return size


def _fits(N, size):
    """Does a row of N floats fit into the shared memory of `size` blocks of 1024 threads, with `size` * 32 states in each?"""
    return 16 * -(-N // (4 * size)) + 8 * 32 * size <= SHARED


def _first(M, N, sms, *, sizes=(1, 2, 4, 8, 16), room=_fits, enough=lambda blocks, sms: blocks >= sms / 2):
    """The first size with room whose blocks are enough, the last one in any case: `_cluster`, with parts to be replaced."""
    found = [s for s in sizes if room(N, s)]
    return next((s for s in found if enough(M * s, sms)), found[-1] if found else None)


@exercise(
    "08-cluster", "How many blocks share a row?",
    hints=(
        "First the room: the smallest of 1, 2, 4, 8, 16 for which a block's part of the row and the states of the whole cluster fit.",
        "A row has -(-N // 4) pieces of 16 bytes; the largest part has -(-pieces // size) of them. The states take 8 * 32 * size bytes.",
        "Then double the size while M * size is below sms / 2 and size is below 16. If not even 16 had room: None.",
    ),
    solution=_cluster,
    wrong={
        "only room": (lambda M, N, sms: _first(M, N, sms, enough=lambda blocks, sms: True), "SMs have a block"),
        "only SMs": (lambda M, N, sms: _first(M, N, sms, room=lambda N, size: True), "bytes are too many"),
        "always 16": (lambda M, N, sms: 16 if _fits(N, 16) else None, "smallest"),
        "never None": (lambda M, N, sms: _cluster(M, N, sms) or 16, "None"),
        "no states": (lambda M, N, sms: _first(M, N, sms, room=lambda N, size: 16 * -(-N // (4 * size)) <= SHARED), "states"),
        "any number": (lambda M, N, sms: _first(M, N, sms, sizes=range(1, 17)), "power of two"),
        "as many as it takes": (lambda M, N, sms: _first(M, N, sms, sizes=(1, 2, 4, 8, 16, 32, 64, 128)), "at most 16"),
        "more than half": (lambda M, N, sms: _first(M, N, sms, enough=lambda blocks, sms: blocks > sms / 2), "exactly half"),
    },
)
def _judge_cluster(answer):
    cases = [(1000, 4096, 132), (1000, 65_536, 132), (1000, 262_144, 132), (4, 32_768, 132), (1000, 58_048, 132), (1000, 58_049, 132),
             (1000, 115_968, 132), (1000, 460_000, 132), (1000, 913_408, 132), (1000, 913_409, 132), (33, 32_768, 132), (32, 32_768, 132),
             (8, 32_768, 128), (9, 262_144, 132), (1, 4096, 132), (3, 2_000_000, 132), (20, 4096, 132), (70, 4096, 132)]
    for M, N, sms in cases:
        case = f"M = {M:,}, N = {N:,}, {sms} SMs"
        got, want = call(answer, M, N, sms), _cluster(M, N, sms)
        if got is None and want is None:
            continue
        if want is None:
            raise Wrong(f"{case}: no cluster has room for this row; return None")
        got = _whole(got, case)
        if got == want:
            continue
        if got not in (1, 2, 4, 8, 16):
            if got > 16:
                raise Wrong(f"{case}: {got} blocks? A cluster has at most 16")
            raise Wrong(f"{case}: {got} blocks? The size is a power of two up to 16")
        if not _fits(N, got):
            part = 16 * -(-N // (4 * got))
            if part <= SHARED:
                raise Wrong(f"{case}: with {got} a block keeps {part:,} bytes of the row; of {SHARED:,} not enough is left for the states")
            raise Wrong(f"{case}: with {got} a block would keep {part:,} bytes; these bytes are too many for {SHARED:,}")
        if got > want:
            if M * got == sms or 2 * M * want == sms:
                raise Wrong(f"{case}: {want} blocks a row give exactly half of the SMs a block, and that is enough; not {got}")
            raise Wrong(f"{case}: {got} would do, and so would {want}; return the smallest")
        raise Wrong(f"{case}: with {got} only {M * got} of {sms} SMs have a block; a larger cluster is allowed")


# --------------------------------------------------------------------------------------------------- 08-rows

_ROWS = load("solutions/08_rows.cu")
_N = "    const int n = row < M ? N : 0;\n"
_LOAD = "v[i] = lane + LANES * i < n ? x[lane + LANES * i] : NEG_INF;"
_MAX = "    for (int bit = LANES / 2; bit > 0; bit /= 2) m = fmaxf(m, partner(m, bit));\n"
_SUM = "    for (int bit = LANES / 2; bit > 0; bit /= 2) d += partner(d, bit);\n"
_EXP = "d += expf(v[i] - m);"
_STORE = "if (lane + LANES * i < n) y["


def _explain_rows(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind == "collective":
        return f"the shuffle{where} is not executed by all 32 lanes that its mask names: lanes without a row must join it too"
    if error.kind == "out_of_bounds":
        verb = "read" if error.array == "x" else "written"
        what = f"{error.array}[{error.index}] is {verb}{where}, behind the end"
        return f"{what}: a warp may have fewer than 4 rows, and a row fewer than 64 elements"
    if error.kind in ("race", "block_race"):
        return f"two threads write y[{error.index}]{where}: each element of y belongs to one lane of one row"
    if error.kind == "unwritten":
        return f"y[{error.index}] is never written: the grid has a block for 8 rows, so a warp has to serve 4"
    return None


@exercise(
    "08-rows", "Four rows a warp",
    hints=(
        "Replace 32 by LANES where it counts lanes of a row: the lane, the row's number, the distance between a lane's elements.",
        "Lanes that differ in the bits 4, 2, 1 are the eight of one row. So an exchange with bit = LANES / 2 and below stays in the row.",
        "A row with number >= M has no elements: const int n = row < M ? N : 0, and every guard asks for n. "
        'show_diff("exercises/08_rows.cu", "solutions/08_rows.cu") shows a solution.',
    ),
    solution="solutions/08_rows.cu",
    untouched="e9bb741c",
    wrong={
        "rows that are not there": (changed(_ROWS, (_N, "    const int n = N;\n")), "behind the end"),
        "over the whole warp": (_ROWS.replace("bit = LANES / 2", "bit = 16"), "four rows together"),
        "sum over the whole warp": (changed(_ROWS, (_SUM, _SUM.replace("LANES / 2", "16"))), "neighbours' rows"),
        "two exchanges": (changed(_ROWS, (_SUM, _SUM.replace("LANES / 2", "LANES / 4"))), "four of the eight"),
        "each lane's sum": (changed(_ROWS, (_SUM, "")), "sum of one lane"),
        "each lane's maximum": (changed(_ROWS, (_MAX, "")), "own maximum"),
        "empty places are 0": (changed(_ROWS, (_LOAD, _LOAD.replace("NEG_INF", "0"))), "empty places"),
        "no guard at the store": (changed(_ROWS, (_STORE, "if (row < M) y[")), "two threads write"),
        "a row twice": (changed(_ROWS, ("threadIdx.x / LANES;", "threadIdx.x / LANES / 2;")), "one lane of one row"),
        "no maximum": (changed(_ROWS, (_EXP, "d += expf(v[i]);"), ("] = expf(v[i] - m)", "] = expf(v[i])")), "subtract"),
        "read again": (changed(_ROWS, ("] = expf(v[i]", "] = expf(((volatile const float*)x)[lane + LANES * i]")), "2 times"),
        "exchanges twice": (changed(_ROWS, (_MAX, _MAX + _MAX)), "6 are enough"),
    },
)
def _judge_rows(answer):
    kernel = build(answer, "softmax_rows")
    rng = np.random.default_rng(8)
    masked = rng.standard_normal((6, 20), dtype=np.float32)
    masked[0, ::2] = masked[1, 7:] = masked[2, :19] = masked[4] = -np.inf
    spoiled = rng.standard_normal((5, 40), dtype=np.float32)
    spoiled[1, 0] = spoiled[3, 39] = np.nan
    inputs = {
        "random rows": [rng.standard_normal((M, N), dtype=np.float32) for M, N in ((8, 64), (16, 57), (24, 8), (8, 5))],
        "a last warp with fewer rows": [rng.standard_normal((M, N), dtype=np.float32) for M, N in ((1, 64), (13, 33), (7, 1), (21, 61))],
        "rows far apart": [(rng.standard_normal((9, 30)) + 300 * (np.arange(9) % 3 - 1)[:, None]).astype(np.float32)],
        "rows below -1000": [(rng.standard_normal((8, 50)) - 1000).astype(np.float32)],
        "falling and rising rows": [np.stack([-np.arange(64), 12 * np.arange(64)]).astype(np.float32)],
        "masked elements": [masked], "rows with a NaN": [spoiled],
    }
    for name, arrays in inputs.items():
        for X in arrays:
            M, N = X.shape
            case = f"{name}, M = {M}, N = {N}"
            x, y = cpu_device.asarray(X), cpu_device.empty((M, N), np.float32)
            grid = -(-M // 8)
            c = run(kernel, case, (grid,), (64,), (x, y, np.int32(M), np.int32(N)), (y,), _explain_rows, seed=1)
            _compare_rows(case, X, y.get())
            if c.shared_stores.instructions:
                raise Wrong(f"{case}: right, but through shared memory; the lanes of a row can exchange registers by shuffles")
            if c.loads.bytes > 4 * M * N:
                raise Wrong(f"{case}: right, but x is read {c.loads.bytes / (4 * M * N):.3g} times")
            if c.shuffles > 6 * 2 * grid:
                raise Wrong(f"{case}: right, with {c.shuffles / (2 * grid):.3g} shuffles a warp; 6 are enough, three for m and three for d")


def _compare_rows(case, X, got):
    want = reference.softmax(X)
    right = np.isnan(got) & np.isnan(want) | (abs(got - want) <= 1e-6 + 1e-5 * want)
    if right.all():
        return
    r, j = (int(i) for i in np.argwhere(~right)[0])
    x, N = X.astype(np.float64), X.shape[1]
    said = f"row {r}, column {j} should be {want[r, j]:.4f} and is {got[r, j]:.4f}"
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=1, keepdims=True))
        four = range(r // 4 * 4, min(len(x), r // 4 * 4 + 4))
        lanes = [e[r, i::8].sum() for i in range(8)]
        together = np.exp(x[list(four)] - x[list(four)].max())
        told = {
            "m and d are those of four rows together: an exchange must stay among the eight lanes of a row":
                together[r % 4, j] / together.sum(),
            "d counts the neighbours' rows too: an exchange must stay among the eight lanes of a row": e[r, j] / e[list(four)].sum(),
            "d is the sum of one lane; add those of the eight": e[r, j] / lanes[j % 8],
            "d is the sum of four of the eight lanes": e[r, j] / (sum(lanes[:4]) if j % 8 < 4 else sum(lanes[4:])),
            "the empty places count as elements that are 0": np.exp(x[r, j] - max(0, x[r].max())) / (
                np.exp(x[r] - max(0, x[r].max())).sum() + (64 - N) * np.exp(-max(0, x[r].max()))),
        }
        own = [x[r, i::8].max(initial=-np.inf) for i in range(8)]
        mixed = sum(np.exp(x[r, i::8] - own[i]).sum() for i in range(8) if np.isfinite(own[i]))
        told["each lane subtracts its own maximum; the row has one"] = np.exp(x[r, j] - own[j % 8]) / mixed
    for text, value in told.items():
        if np.isfinite(value) and abs(got[r, j] - value) <= 1e-6 + 1e-4 * abs(value):
            raise Wrong(f"{case}: {said}; {text}")
    if np.isnan(got[r, j]) and abs(x[r]).max() > 80:
        raise Wrong(f"{case}: {said}; subtract the row's maximum before the exponential")
    raise Wrong(f"{case}: {said}")

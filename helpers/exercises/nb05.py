"""Exercises of notebook 05: a launch, counters by hand, and two kernels that are judged on the CPU device."""

from __future__ import annotations

import numpy as np

from helpers import cpu_device
from helpers.exercises import Wrong, call, exercise, kernels
from helpers.exercises.kernels import build, changed, run, said_by
from helpers.snippets import load

# ------------------------------------------------------------------------------------------------- 05-launch

SMS = 132  # of an H200
SIZES = (1, 31, 32, 33, 100, 256, 257, 1000, 4096, 20_000, 33_792, 100_000)
_V0 = load("safe/v0_thread_per_row.cu")


def _small_blocks(M):
    return (-(-M // 32),), (32,)


def _shrinking_blocks(M):
    threads = 256
    while threads > 32 and -(-M // threads) < 132:
        threads //= 2
    return (-(-M // threads),), (threads,)


@exercise(
    "05-launch", "A launch that covers every row and every SM",
    hints=(
        "Every row needs a thread: the number of blocks is M / threads, rounded up. (M + threads - 1) // threads does that.",
        "An SM has work only if it gets a block. So few rows need small blocks; but the lanes of a warp exist even if nobody "
        "uses them, so a block should be a multiple of 32 threads.",
        "Blocks of 32 threads always fit both conditions. Return (((M + 31) // 32,), (32,)), or start at 256 and halve "
        "while there are fewer blocks than SMs.",
    ),
    solution=_small_blocks,
    wrong={
        "rounded down": (lambda M: ((M // 32,), (32,)), "no block at all"),
        "rounded down, at least one": (lambda M: ((max(1, M // 32),), (32,)), "round up"),
        "one too many": (lambda M: ((M // 32 + 1,), (32,)), "nothing to do"),
        "always 256": (lambda M: ((-(-M // 256),), (256,)), "132 SMs"),
        "one thread a block": (lambda M: ((M,), (1,)), "31 of them idle"),
        "blocks of 100": (lambda M: ((-(-M // 100),), (100,)), "multiple of 32"),
        "one huge block": (lambda M: ((1,), (max(32, -(-M // 32) * 32),)), "1024"),
        "a block a row": (lambda M: ((M,), (32,)), "nothing to do"),
        "bare integers": (lambda M: (-(-M // 32), 32), "tuple"),
        "grid and block swapped": (lambda M: ((32,), (-(-M // 32),)), "swapped"),
        "only the grid": (lambda M: (-(-M // 32),), "two values"),
    },
)
def _judge_launch(answer):
    kernel = cpu_device.RawKernel(_V0, "softmax_safe_v0")
    for M in SIZES:
        value = call(answer, M)
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise Wrong("return two values: grid, block")
        grid, block = value
        for name, part in (("grid", grid), ("block", block)):
            if not isinstance(part, (tuple, list)) or len(part) != 1:
                raise Wrong(f"{name} is {part!r}; give a tuple of one number, such as (64,)")
            if part[0] is ...:
                raise Wrong(f"{name} still holds ...")
            if isinstance(part[0], bool) or not isinstance(part[0], (int, np.integer)):
                raise Wrong(f"{name} is {part!r}; the number must be an integer: // divides integers, / does not")
        blocks, threads = int(grid[0]), int(block[0])
        if blocks < 1:
            raise Wrong(f"M = {M}: that is no block at all; the last, partly filled block counts too")
        if threads > 1024:
            raise Wrong(f"M = {M}: a block of {threads:,} threads; it has at most 1024")
        if blocks in (32, 64, 128, 256) and threads % 32 and threads == -(-M // blocks):
            raise Wrong(f"M = {M}: {blocks} blocks of {threads} threads: grid and block look swapped")
        if threads == 1:
            raise Wrong("a block of 1 thread is a warp of 32 lanes with 31 of them idle")
        if threads < 32 or threads % 32:
            raise Wrong(f"M = {M}: {threads} threads are not a multiple of 32, so the last warp of every block has idle lanes")
        _cover(kernel, M, blocks, threads)
        if (blocks - 1) * threads >= M:
            raise Wrong(f"M = {M}: {blocks} blocks of {threads} threads; the last block has nothing to do")
    for M in SIZES:
        blocks, busy = answer(M)[0][0], min(SMS, -(-M // 32))
        if blocks < busy:
            raise Wrong(f"M = {M:,}: {blocks} blocks for {SMS} SMs, so {SMS - blocks} of them have no work; "
                        f"smaller blocks would keep {busy} busy")


def _cover(kernel, M: int, blocks: int, threads: int) -> None:
    x = cpu_device.asarray(np.zeros((M, 1), np.float32))
    y = cpu_device.empty((M, 1), np.float32)
    try:
        with cpu_device.settings(checked=True, outputs=(y,)):
            kernel((blocks,), (threads,), (x, y, np.int32(M), np.int32(1)))
    except cpu_device.KernelError as error:
        if error.kind == "unwritten":
            raise Wrong(f"M = {M}: {blocks} blocks of {threads} threads leave row {error.index} without a thread; "
                        "round up, not down") from None
        raise Wrong(f"M = {M}: {str(error).splitlines()[0]}") from None
    except cpu_device.CUDADriverError as error:
        raise Wrong(f"M = {M}: {error}") from None


# ------------------------------------------------------------------------------------------------ 05-predict

_PREDICT = (98_304, 3072, 98_304, 12_288, 1024)


@exercise(
    "05-predict", "Counters by hand",
    hints=(
        "Start with one pass of one warp. How many requests is it, and how many sectors does each of them touch?",
        "V0: 64 rows are 2 warps, and each makes 512 requests in each of 3 passes. All 32 lanes of a request read "
        "different rows. V1: the number of loads is the same, so the number of requests is; a request reads 128 bytes in a row.",
        "a = 3 * 64 * 512, b = a / 32, c = 32 * b, d = 4 * b, e = 64 * 512 / 32.",
    ),
    solution=_PREDICT,
    wrong={
        "one pass": ((32_768, 1024, 32_768, 4096, 1024), "3 passes"),
        "the write counted": ((131_072, 3072, 98_304, 12_288, 1024), "loads only"),
        "bytes": ((393_216, 3072, 98_304, 12_288, 1024), "bytes"),
        "requests by thread": ((98_304, 98_304, 98_304, 12_288, 1024), "one for a warp"),
        "V0 coalesced": ((98_304, 3072, 12_288, 12_288, 1024), "different rows"),
        "one sector a request": ((98_304, 3072, 98_304, 3072, 1024), "128 bytes"),
        "V1 like V0": ((98_304, 3072, 98_304, 98_304, 1024), "neighbouring elements"),
        "three writes": ((98_304, 3072, 98_304, 12_288, 3072), "written once"),
        "stores by thread": ((98_304, 3072, 98_304, 12_288, 32_768), "e: that counts threads"),
        "warps of a block": ((98_304, 12_288, 98_304, 12_288, 1024), "2 warps"),
    },
)
def _judge_predict(answer):
    try:
        values = [float(v) for v in answer]
    except (TypeError, ValueError):
        raise Wrong("give five numbers: a, b, c, d, e") from None
    if len(values) != 5:
        raise Wrong(f"give five numbers; you gave {len(values)}")
    told = (
        {32_768: "a: that is one pass over 64 x 512 elements; V0 makes 3 passes",
         131_072: "a: that includes the write; asked are loads only",
         393_216: "a: that is the number of bytes; one load instruction of a thread fetches 4 of them"},
        {98_304: "b: a request is one for a warp, not for a thread",
         12_288: "b: 64 rows make 2 warps; the other 6 warps of the block have no row and load nothing"},
        {12_288: "c: 4 sectors a request would need neighbouring addresses; in V0 the 32 lanes read different rows",
         3072: "c: 32 addresses that lie 2 KB apart cannot share a sector"},
        {3072: "d: 32 lanes read 32 x 4 = 128 bytes; a sector has 32 of them",
         98_304: "d: in V1 the lanes read neighbouring elements, and 8 of those share a sector"},
        {3072: "e: three passes read, but y is written once",
         32_768: "e: that counts threads; a request is one for a warp"},
    )
    for name, value, want, known in zip("abcde", values, _PREDICT, told, strict=True):
        if value != want:
            raise Wrong(known.get(value, f"{name}: not {value:,.0f}; count one pass of one warp first, then multiply"))


# --------------------------------------------------------------------------------------------------- 05-race

_RACE_FREE = load("solutions/05_race.cu")
_REUSE = "    __syncthreads();                                // all have read"
_LEVEL = "        __syncthreads();                            // outside"
_TREE = "        if (t < half) partial[t] = nan_max(partial[t], partial[t + half]);\n" + _LEVEL
_TREE_IN_IF = ("        if (t < half) {\n            partial[t] = nan_max(partial[t], partial[t + half]);\n"
               "            __syncthreads();\n        }\n//")
_FIRST, _SECOND = (f"    partial[t] = {name};\n    __syncthreads();\n" for name in ("high", "low"))


def _explain_race(error) -> str:
    said = said_by(error)
    if error.kind == "race":
        read, write = (error.other_line, error.line) if " writes " in said else (error.line, error.other_line)
        if read == write:
            return (f"a race in line {read}: a thread reads partial[{error.index}] before another has finished the level "
                    "of the tree that writes it")
        if read < write:
            return (f"a race between lines {read} and {write}: a fast thread stores its new value in partial[{error.index}] "
                    "while a slow one has yet to read the old value")
        return (f"a race between lines {write} and {read}: partial[{error.index}] is read before the thread that writes it "
                "has passed a barrier")
    if error.kind == "barrier":
        return (f"the barrier in line {error.line} is not reached by all threads of the block; it belongs outside of every if, "
                "and no thread may return before it")
    if error.kind == "uninitialized":
        return f"partial[{error.index}] is read in line {error.line} before its thread has stored anything there"
    if error.kind == "unwritten":
        return f"y[{error.index}] is never written"
    return said


@exercise(
    "05-race", "Put the missing barriers in",
    hints=(
        "A barrier must stand between a store to partial and every load of it by another thread, and also between a load and "
        "the next store. check names the lines of one race at a time.",
        "The first tree is right. Compare the second one with it, level by level.",
        "The other one: partial[0] is the maximum that every thread must read before anyone stores the next value. "
        'show_diff("exercises/05_race.cu", "solutions/05_race.cu") shows a solution.',
    ),
    solution="solutions/05_race.cu",
    untouched="651a321d",
    wrong={
        "only the reuse repaired": (changed(_RACE_FREE, (_LEVEL, "//")), "level of the tree"),
        "barrier inside the if": (changed(_RACE_FREE, (_TREE, _TREE_IN_IF)), "outside of every if"),
        "a barrier for some": (changed(_RACE_FREE, (_REUSE, "if (t < threads / 2) __syncthreads();  //")), "not reached by all"),
        "a barrier of the warp": (changed(_RACE_FREE, (_REUSE, "__syncwarp();  //")), "fast thread"),
        "the first barrier removed": (changed(_RACE_FREE, (_FIRST, "    partial[t] = high;\n\n")), "is read before the thread"),
        "early return": (changed(_RACE_FREE, ("    float low", "    if (t >= N) return;\n    float low")), "no thread may return"),
        "last level dropped": (changed(_RACE_FREE, (_SECOND + "    for (int half = threads / 2; half > 0;",
                                                     _SECOND + "    for (int half = threads / 2; half > 1;")), "whole tree"),
        "sign": (changed(_RACE_FREE, ("high + partial[0]", "high - partial[0]")), "minus the largest"),
        "one row only": (changed(_RACE_FREE, ("if (t == 0) y", "if (t == 0 && blockIdx.x == 0) y")), "never written"),
        "low from 0": (changed(_RACE_FREE, ("float low = NEG_INF", "float low = 0")), "maximum of nothing"),
        "NaN dropped": (changed(_RACE_FREE, ("low = nan_max(low", "low = fmaxf(low"), ("high = nan_max(high", "high = fmaxf(high")),
                        "holds a NaN"),
        "does not compile": (changed(_RACE_FREE, (_REUSE, "__syncthreads()  //")), "does not compile"),
    },
)
def _judge_race(answer):
    kernel = build(answer, "row_range")
    for M, N, threads in ((2, 300, 128), (3, 1, 32), (2, 40, 64), (1, 1000, 1024), (4, 77, 256)):
        X = np.random.default_rng([5, M, N]).standard_normal((M, N), dtype=np.float32)
        X += np.resize([-9, 9], (M, 1)).astype(np.float32)  # rows below 0 and rows above
        if N == 77:
            X[np.arange(M), [0, 31, 50, 76]] = np.nan
        want = X.max(axis=1) - X.min(axis=1)
        for seed in (0, 1, 2):
            x, y = cpu_device.asarray(X), cpu_device.empty(M, np.float32)
            case = f"M = {M}, N = {N}, {threads} threads"
            run(kernel, case, (M,), (threads,), (x, y, np.int32(M), np.int32(N)), (y,), _explain_race, seed)
            got = y.get()
            if np.array_equal(got, want, equal_nan=True):
                continue
            if np.allclose(got, X.max(axis=1) + X.min(axis=1)):
                raise Wrong(f"{case}: you return max + min; partial[0] holds minus the smallest element, "
                            "that is minus the largest of -x turned round: leave the last line as it was")
            row = int(np.flatnonzero((got != want) & ~(np.isnan(got) & np.isnan(want)))[0])
            if np.isnan(want[row]):
                raise Wrong(f"{case}: row {row} holds a NaN, so its range is NaN; fmaxf drops it, nan_max does not")
            low = np.minimum(X[row].min(), 0) if X[row].min() > 0 else X[row].min()
            if got[row] == max(X[row].max(), 0) - low:
                raise Wrong(f"{case}: no race, but the range of row {row} reaches to 0, and no element of it is 0: with what does the "
                            "maximum of nothing start?")
            raise Wrong(f"{case}: no race, but the range of row {row} is {want[row]:.4f} and you return {got[row]:.4f}; "
                        "the loop over levels must run through the whole tree")


# ----------------------------------------------------------------------------------------------- 05-coalesce

COPY_SHARE = 0.5  # of a copy's speed, that 05-coalesce must reach on a GPU
_COALESCED = load("solutions/05_coalesce.cu")
_LOOP = "    for (int i = id; i < n; i += threads) y[i] = 2 * x[i];"
_ROUNDS = "    for (int k = 0; k * threads < n; ++k) y[id + k * threads] = 2 * x[id + k * threads];"
_READS_ALL = """    for (int i = 0; i < n; ++i) {
        const float value = x[i];
        if (i % threads == id || value > 1e30f) y[i] = 2 * value;
    }"""


def _explain_coalesce(error) -> str:
    if error.kind == "out_of_bounds":
        return f"{error.array}[{error.index}] is touched, behind the end: the last turn of some threads has no element left"
    if error.kind == "unwritten":
        return f"y[{error.index}] is never written: a thread may have to take more than one element"
    if error.kind in ("block_race", "race"):
        who = "two blocks" if error.kind == "block_race" else "two threads of a block"
        return f"{who} write the same element, y[{error.index}]: a step must pass over the threads of the whole grid"
    return said_by(error)


@exercise(
    "05-coalesce", "Coalesce a loop",
    hints=(
        "Look at one moment: all threads of a warp are in their first turn. Which elements should they touch so that the "
        "32 addresses lie side by side?",
        "Thread id begins at element id. Who takes element `threads`, the first one that is left over?",
        "Step through the array by the number of threads of the whole grid: i = id, id + threads, ... while i < n. "
        'show_diff("exercises/05_coalesce.cu", "solutions/05_coalesce.cu") shows a solution.',
    ),
    solution="solutions/05_coalesce.cu",
    untouched="3ce7ad72",
    wrong={
        "one element a thread": (changed(_COALESCED, (_LOOP, "    if (id < n) y[id] = 2 * x[id];")), "more than one element"),
        "no guard": (changed(_COALESCED, (_LOOP, _ROUNDS)), "behind the end"),
        "tail dropped": (changed(_COALESCED, ("i < n;", "i + threads <= n;")), "never written"),
        "step of a warp": (changed(_COALESCED, ("i += threads", "i += 32")), "two threads of a block"),
        "step of a block": (changed(_COALESCED, ("i += threads", "i += blockDim.x")), "whole grid"),
        "every block takes all": (changed(_COALESCED, ("int i = id; i < n; i += threads", "int i = threadIdx.x; i < n; i += blockDim.x")),
                                   "two blocks"),
        "blocks interleaved": (changed(_COALESCED, ("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x * gridDim.x + blockIdx.x")),
                               "neighbouring blocks"),
        "backwards": (changed(_COALESCED, ("y[i] = 2", "y[n - 1 - i] = 2")), "order"),
        "every thread reads all": (changed(_COALESCED, (_LOOP, _READS_ALL)), "each element once"),
        "does not compile": (changed(_COALESCED, ("i += threads", "i += thread")), "does not compile"),
    },
)
def _judge_coalesce(answer):
    kernel = build(answer, "double_all")
    for n, blocks, threads in ((4096, 2, 64), (4096, 1, 32), (5, 2, 64), (1003, 3, 96), (700, 4, 128)):
        X = np.random.default_rng([6, n]).standard_normal(n, dtype=np.float32)
        x, y = cpu_device.asarray(X), cpu_device.empty(n, np.float32)
        case = f"n = {n}, {blocks} blocks of {threads}"
        c = run(kernel, case, (blocks,), (threads,), (x, y, np.int32(n)), (y,), _explain_coalesce)
        if not np.array_equal(y.get(), 2 * X):
            raise Wrong(f"{case}: y is not 2 * x; elements are wrong or in another order")
        if c.loads.bytes > 4 * n or c.stores.bytes > 4 * n:
            raise Wrong(f"{case}: {c.loads.bytes / 4:,.0f} loads and {c.stores.bytes / 4:,.0f} stores for {n:,} elements; "
                        "read and write each element once")
        least = -(-n // 8)
        for name, t in (("load", c.loads), ("store", c.stores)):
            if t.sectors > 1.25 * least + 2:
                why = "; neighbouring threads must not sit in neighbouring blocks" if t.sectors < 6 * least and blocks > 1 else ""
                raise Wrong(f"{case}: {t.sectors / t.requests:.1f} sectors a {name} request; {n:,} floats fill {least:,} sectors and "
                            f"you touch {t.sectors:,}{why}")
    if kernels.on_gpu:
        n = 1 << 27
        share = kernels.share_of_a_copy(answer, "double_all", (1056,), (256,), lambda x, y: (x, y, np.int32(n)), n)
        if share < COPY_SHARE:
            raise Wrong(f"right, but only {share:.0%} as fast as a copy of {n:,} floats; {COPY_SHARE:.0%} is asked")

"""Exercises of notebook 06: counters by hand, the head and tail of a float4 kernel, a tree turned into shuffles, bank conflicts."""

from __future__ import annotations

import numpy as np

from helpers import cpu_device, reference
from helpers.exercises import Wrong, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

# ------------------------------------------------------------------------------------------------ 06-predict

_PREDICT = (136, 16, 640, 1536, 384, 6144, 256)


@exercise(
    "06-predict", "Counters by hand",
    hints=(
        "Take one row first: 128 threads are 4 warps, and a thread has 16 elements. Then multiply by 8.",
        "V1: a tree over 128 threads has 7 levels, and each level ends in a barrier. There is one before the first level, there are "
        "two trees, and one barrier between them. V2: a warp reduces twice for each of the two results, in 5 exchanges.",
        "a = 8 * (2 * (1 + 7) + 1), b = 8 * 2, c = 8 * 4 * 20, d = 3 * 8 * 2048 / 32, e = d / 4, f = 3 * 8 * 2048 / 8, g = e * 2 / 3.",
    ),
    solution=_PREDICT,
    wrong={
        "one tree": ((64, 16, 640, 1536, 384, 6144, 256), "two trees"),
        "reuse forgotten": ((128, 16, 640, 1536, 384, 6144, 256), "between the two trees"),
        "tree of 256": ((152, 16, 640, 1536, 384, 6144, 256), "7 levels"),
        "one barrier": ((136, 8, 640, 1536, 384, 6144, 256), "two results"),
        "no barrier": ((136, 0, 640, 1536, 384, 6144, 256), "warps still have to meet"),
        "shuffles by thread": ((136, 16, 20_480, 1536, 384, 6144, 256), "one for a warp"),
        "first stage only": ((136, 16, 320, 1536, 384, 6144, 256), "second stage"),
        "sectors shrink": ((136, 16, 640, 1536, 384, 1536, 256), "bytes stay"),
        "vectors ignored": ((136, 16, 640, 1536, 1536, 6144, 1024), "four floats"),
        "V4 reads three times": ((136, 16, 640, 1536, 384, 6144, 384), "2 passes"),
        "stores counted": ((136, 16, 640, 2048, 384, 6144, 256), "loads only"),
    },
)
def _judge_predict(answer):
    try:
        values = [float(v) for v in answer]
    except (TypeError, ValueError):
        raise Wrong("give seven numbers: a, b, c, d, e, f, g") from None
    if len(values) != 7:
        raise Wrong(f"give seven numbers; you gave {len(values)}")
    told = (
        {64: "a: that is one tree; V1 has two trees, for the maximum and for the sum",
         128: "a: one barrier a row is missing: it stands between the two trees, before partial is overwritten",
         152: "a: 128 threads make a tree of 7 levels, not 8",
         17: "a: that is one row; there are 8"},
        {8: "b: there are two results, maximum and sum, and one barrier for each",
         0: "b: inside a warp no barrier is needed, but the warps still have to meet in shared memory",
         2: "b: that is one row; there are 8"},
        {20_480: "c: a shuffle counts as one for a warp, like a request",
         320: "c: count the second stage too: every warp reduces the values of all warps for itself",
         80: "c: that is one row; there are 8"},
        {2048: "d: that includes the stores; asked are loads only",
         512: "d: that is one pass; V2 makes 3"},
        {1536: "e: one load of a lane now moves four floats"},
        {1536: "f: the bytes stay, and a sector still holds 8 floats: sectors do not shrink with the instructions"},
        {384: "g: V4 makes 2 passes, not 3", 1024: "g: V4 loads four floats at a time, as V3 does"},
    )
    for name, value, want, known in zip("abcdefg", values, _PREDICT, told, strict=True):
        if value != want:
            raise Wrong(known.get(value, f"{name}: not {value:,.0f}; count one row first, then multiply by 8"))


# --------------------------------------------------------------------------------------------------- 06-tail

_TAIL = load("solutions/06_tail.cu")
_HEAD = "head = min(N, (int)(-(size_t)x % 16 / 4))"
_HEAD_LOOP = "    for (int j = t; j < head; j += threads) y[j] = x[j] * f;\n"
_TAIL_LOOP = "    for (int j = tail + t; j < N; j += threads) y[j] = x[j] * f;\n"


def _explain_tail(N):
    def explain(error):
        at = f"row {error.index // N}, column {error.index % N}" if error.index is not None else ""
        if error.kind == "misaligned":
            return (f"the kernel accesses 16 bytes of {error.array} at {at}, and that address is not a multiple of 16: "
                    "the vectors must start later in such a row")
        if error.kind == "out_of_bounds":
            return f"{error.array}[{error.index}] is touched, outside of the array: a loop runs past the end of a row"
        if error.kind == "block_race":
            return f"{at} of y is written by the block of that row and by another: a loop runs past the end of its row"
        if error.kind == "race":
            return f"two threads write {at} of y: head, vectors and tail overlap"
        return None
    return explain


@exercise(
    "06-tail", "Repair the head and the tail",
    hints=(
        "Start with one row that begins at a multiple of 16: which floats are left when N is not a multiple of 4? Give them a loop "
        "of their own.",
        "Row r begins at float r * N, so most rows do not begin at a multiple of 16. How many floats lie between the address x and "
        "the next multiple? (size_t)x is the address as a number; -(size_t)x % 16 is the distance in bytes.",
        "head = min(N, (int)(-(size_t)x % 16 / 4)); the vectors start at x + head, and there are (N - head) / 4 of them; the tail "
        'is the rest. show_diff("exercises/06_tail.cu", "solutions/06_tail.cu") shows a solution.',
    ),
    solution="solutions/06_tail.cu",
    untouched="d11954f6",
    wrong={
        "no head": (changed(_TAIL, (_HEAD, "head = 0")), "not a multiple of 16"),
        "head by N": (changed(_TAIL, (_HEAD, "head = min(N, N % 4)")), "N = 67: the kernel accesses"),
        "head in bytes": (changed(_TAIL, (_HEAD, "head = min(N, (int)(-(size_t)x % 16))")), "column 4,"),
        "head too long": (changed(_TAIL, (_HEAD, "head = (int)(-(size_t)x % 16 / 4)")), "past the end"),
        "head not written": (changed(_TAIL, (_HEAD_LOOP, "")), "row 0, column 0 of y is never"),
        "tail by N": (changed(_TAIL, ("tail = head + 4 * vectors", "tail = N - N % 4")), "never written"),
        "one vector more": (changed(_TAIL, ("vectors = (N - head) / 4", "vectors = (N - head + 3) / 4")), "run"),
        "float by float": (changed(_TAIL, (_HEAD, "head = N")), "you made 4"),
        "unaligned rows float by float": (changed(_TAIL, (_HEAD, "head = (size_t)x % 16 ? N : 0")), "you made"),
        "factor of the thread": (changed(_TAIL, ("factor[blockIdx.x]", "factor[threadIdx.x % M]")), "its own factor"),
        "does not compile": (changed(_TAIL, (_HEAD, "head = -x % 16 / 4")), "does not compile"),
    },
)
def _judge_tail(answer):
    kernel = build(answer, "scale_rows")
    for M, N, start, threads in ((2, 64, 0, 32), (1, 67, 0, 32), (2, 64, 3, 32), (3, 65, 0, 32), (4, 66, 2, 64), (4, 1001, 1, 64),
                                 (2, 9, 1, 32), (3, 1, 1, 32), (5, 2, 3, 32), (4, 3, 0, 96), (2, 700, 2, 1024)):
        rng = np.random.default_rng([6, M, N])
        X, F = rng.standard_normal((M, N), dtype=np.float32), rng.standard_normal(M).astype(np.float32)
        x = cpu_device.asarray(np.concatenate([np.zeros(start, np.float32), X.ravel()]))[start:]
        y = cpu_device.asarray(np.full(start + M * N, np.nan, np.float32))[start:]
        case = f"M = {M}, N = {N}, x {4 * start} bytes behind a multiple of 16" if start else f"M = {M}, N = {N}"
        c = run(kernel, case, (M,), (threads,), (x, cpu_device.asarray(F), y, np.int32(M), np.int32(N)), (), _explain_tail(N))
        got, want = y.get().reshape(M, N), X * F[:, None]
        if np.isnan(got).any():
            r, j = np.argwhere(np.isnan(got))[0]
            raise Wrong(f"{case}: row {r}, column {j} of y is never written: which floats do not belong to a vector of four?")
        if not np.array_equal(got, want):
            r, j = np.argwhere(got != want)[0]
            raise Wrong(f"{case}: row {r}, column {j} is not x times the row's factor; each row has its own factor")
        heads = [min(N, -(start + r * N) % 4) for r in range(M)]
        least = sum(-(-((N - h) // 4) // 32) + (h > 0) + ((N - h) % 4 > 0) for h in heads)
        for name, t in (("load", c.of("x")[0]), ("store", c.of("y")[1])):
            if t.requests > least:
                raise Wrong(f"{case}: right, but {name}s of 16 bytes need {least} requests and you made {t.requests}: only head and tail, "
                            "3 floats at most, go float by float")


# ------------------------------------------------------------------------------------------------ 06-shuffle

_SHUFFLE = load("solutions/06_shuffle.cu")
_STAGE = "    for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);\n"
_STORE = "    if (t % 32 == 0) partial[t / 32] = sum;\n"
_MEET = _STORE + "    __syncthreads();\n"
_READ = "    sum = t % 32 < threads / 32 ? partial[t % 32] : 0;\n"
_BY_WARP_0 = _MEET + ("    if (t < 32) {\n        sum = t < threads / 32 ? partial[t] : 0;\n        for (int bit = 16; bit > 0; bit /= 2) "
                      "sum += __shfl_xor_sync(0xffffffff, sum, bit);\n        if (t == 0) partial[0] = sum;\n    }\n"
                      "    __syncthreads();\n    sum = partial[0];\n")


def _explain_shuffle(warps):
    def explain(error):
        where = f" in line {error.line}" if error.line else ""
        if error.kind == "race":
            lines = sorted({error.line, error.other_line} - {None})
            where = f"line{'s' * (len(lines) > 1)} {' and '.join(map(str, lines))}"
            return (f"a race on partial[{error.index}] in {where}: between storing and reading all threads must meet "
                    "at a barrier, and one lane of a warp stores")
        if error.kind == "uninitialized" and error.index < warps:
            return (f"partial[{error.index}] is read{where} before its warp has stored anything there: all threads must meet at a "
                    "barrier first")
        if error.kind == "uninitialized":
            return (f"partial[{error.index}] is read{where}, but no warp stores anything there: the block has {warps} warps, fewer "
                    "than lanes")
        if error.kind == "barrier":
            return f"the barrier{where} is not reached by all threads of the block"
        if error.kind == "collective":
            return f"the shuffle{where} is not executed by all 32 lanes that its mask names"
        return None
    return explain


@exercise(
    "06-shuffle", "From a tree to shuffles",
    hints=(
        "First stage, inside a warp: in 5 exchanges (lanes 16, 8, 4, 2, 1 apart) every lane adds what its partner holds. "
        "__shfl_xor_sync(0xffffffff, sum, bit) fetches it.",
        "Second stage: one lane of each warp stores the warp's sum, then the one barrier. Now every warp for itself reads the "
        "sums of all warps, one a lane, and adds them in the same 5 exchanges.",
        "A block of 96 threads has 3 warps: lanes 3 to 31 must take 0 in the second stage, not what lies in partial. "
        'show_diff("exercises/06_shuffle.cu", "solutions/06_shuffle.cu") shows a solution.',
    ),
    solution="solutions/06_shuffle.cu",
    untouched="df455b97",
    wrong={
        "inside the warp only": (changed(_SHUFFLE, (_MEET, ""), (_READ + _STAGE, "")), "other warps"),
        "no barrier": (changed(_SHUFFLE, (_MEET, _STORE)), "all threads must meet"),
        "idle lanes read": (changed(_SHUFFLE, (_READ, "    sum = partial[t % 32];\n")), "fewer than lanes"),
        "down instead of xor": (_SHUFFLE.replace("__shfl_xor_sync", "__shfl_down_sync"), "only lane 0 of"),
        "four exchanges": (changed(_SHUFFLE, (_READ + _STAGE, _READ + _STAGE.replace("16", "8"))), "lanes 0 to 15 of"),
        "tree of warps": (changed(_SHUFFLE, (_READ + _STAGE, _READ + _STAGE.replace("bit = 16", "bit = threads / 64"))), "lanes 0 to 3 of"),
        "barrier inside the if": (changed(_SHUFFLE, (_MEET, "    if (t % 32 == 0) {\n        partial[t / 32] = sum;\n"
                                                            "        __syncthreads();\n    }\n")), "all threads must meet"),
        "early return": (changed(_SHUFFLE, ("    float sum = 0;", "    if (t >= N) return;\n    float sum = 0;")), "all 32 lanes"),
        "warp 0 for all": (changed(_SHUFFLE, (_MEET + _READ + _STAGE, _BY_WARP_0)), "2 barriers"),
        "every lane stores": (changed(_SHUFFLE, (_STORE, "    partial[t / 32] = sum;\n")), "one lane of a warp stores"),
        "no square root": (changed(_SHUFFLE, ("1 / sqrtf(sum)", "1 / sum")), "length"),
    },
)
def _judge_shuffle(answer):
    kernel = build(answer, "unit_rows")
    for M, N, threads in ((2, 300, 128), (3, 1, 32), (2, 40, 64), (1, 1000, 1024), (2, 77, 96), (1, 5, 256), (2, 500, 96)):
        X = np.random.default_rng([7, M, N]).standard_normal((M, N), dtype=np.float32)
        want = X / np.sqrt((X.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        case, warps = f"M = {M}, N = {N}, {threads} threads", threads // 32
        for seed in (1, 0):
            x, y = cpu_device.asarray(X), cpu_device.empty((M, N), np.float32)
            c = run(kernel, case, (M,), (threads,), (x, y, np.int32(M), np.int32(N)), (y,), _explain_shuffle(warps), seed)
            got = y.get()
            if not reference.agrees(got, want):
                raise Wrong(f"{case}: {_wrong_norm(X, got, want, threads)}")
        if c.barriers > M:
            raise Wrong(f"{case}: right, with {c.barriers // M} barriers a row; one is enough if every warp ends the reduction for itself")
        if c.shared_stores.bytes > 4 * warps * M or c.shared_loads.requests > warps * M:
            raise Wrong(f"{case}: right, but shared memory is used {c.shared_stores.instructions // M} times for a store and in "
                        f"{c.shared_loads.requests // M} load requests a row; {warps} of each are enough, one a warp")
        if c.loads.bytes > 8 * M * N:
            raise Wrong(f"{case}: right, but x is read {c.loads.bytes / (4 * M * N):.1f} times; twice is enough")


def _wrong_norm(X, got, want, threads):
    """What is wrong with the norm that each thread used, in a sentence."""
    M, N = X.shape
    thread = np.arange(N) % threads
    right = np.isclose(got, want, rtol=1e-5, atol=1e-6)
    own = np.stack([np.where(thread // 32 == w, X, 0) for w in range(threads // 32)])
    norms = np.sqrt((own.astype(np.float64) ** 2).sum(axis=2))[thread // 32, :].T
    if threads > 32 and np.allclose(got, X / norms, rtol=1e-4):
        return "every warp uses the sum of its own elements; the sums of the other warps are missing"
    lanes = [lane for lane in range(min(32, N)) if right[:, thread % 32 == lane].all()]
    if lanes:
        which = f"lanes 0 to {lanes[-1]} of each warp have" if len(lanes) > 1 else f"lane {lanes[0]} of each warp has"
        return f"only {which} the whole sum, and every lane needs it"
    return "the rows do not have length 1; is every element's square added once, by every thread?"


# -------------------------------------------------------------------------------------------------- 06-banks

_BANKS = load("solutions/06_banks.cu")
_STORE_TILE = "            if (lane < columns) tile[r][lane] = x[(long long)r * N + start + lane];"
_WALK = "            if (lane < rows) sum += tile[lane][c];"
_SYNC = "        __syncwarp();\n"
_TILE = "    __shared__ float tile[32][33];\n"


def _explain_banks(error):
    where = f" in line {error.line}" if error.line else ""
    if error.kind == "race":
        lines = " and ".join(map(str, sorted({error.line, error.other_line} - {None})))
        return (f"a race on tile between the lines {lines}: all lanes must have stored before one reads another's column, and all "
                "must have read before the next tile is stored")
    if error.kind == "out_of_bounds":
        return (f"{error.array}[{error.index}]{where} lies outside: the last block has fewer than 32 rows, the last tile fewer than "
                "32 columns")
    if error.kind == "uninitialized":
        return f"tile is read{where} where nothing was stored: the walk and the store must agree on the place of an element"
    if error.kind == "unwritten":
        return f"y[{error.index}] is never written"
    return None


@exercise(
    "06-banks", "Remove the bank conflicts",
    hints=(
        "There are 32 banks; the float at index k of shared memory lies in bank k % 32. In which banks are tile[0][c], tile[1][c], … "
        "that the 32 lanes read at once?",
        "Rows 32 floats apart begin in the same bank. How far apart must they be, so that 32 rows begin in 32 different banks?",
        "33 floats: element c of row r lies at 33 * r + c, in bank (r + c) % 32. Declare the tile so; the extra column stays empty. "
        'show_diff("exercises/06_banks.cu", "solutions/06_banks.cu") shows a solution.',
    ),
    solution="solutions/06_banks.cu",
    untouched="f5bfc0f6",
    wrong={
        "two floats more": (changed(_BANKS, ("[33]", "[34]")), "still share a bank"),
        "turned round": (changed(_BANKS, ("[33]", "[32]"), ("tile[r][lane]", "tile[lane][r]"), ("tile[lane][c]", "tile[c][lane]")),
                         "moved to the stores"),
        "without the tile": (changed(_BANKS, (_WALK, "            if (lane < rows) sum += x[(long long)lane * N + start + c];"),
                                     (_STORE_TILE, "            if (lane < columns) tile[r][lane] = 0;")), "coalesced"),
        "a tile of 64": (changed(_BANKS, ("[33]", "[65]")), "floats of shared memory"),
        "no barrier before the walk": (changed(_BANKS, (_SYNC + "        for", "        for")), "a race on tile"),
        "no barrier after the walk": (changed(_BANKS, (_SYNC + "    }", "    }")), "a race on tile"),
        "every column stored": (changed(_BANKS, ("if (lane < columns) tile", "tile")), "fewer than 32 columns"),
        "last columns dropped": (changed(_BANKS, ("start < N;", "start + 32 <= N;")), "last columns"),
        "stored in one order, read in another": (changed(_BANKS, ("[33]", "[32]"), ("tile[r][lane]", "tile[r][(r ^ lane) % 32]"),
                                                         ("tile[lane][c]", "tile[lane][(lane + c) % 32]")), "sum of row"),
        "sum from 1": (changed(_BANKS, ("sum = 0", "sum = 1")), "off by 1"),
        "does not compile": (changed(_BANKS, (_TILE, "    __shared__ float tile[32][33]\n")), "does not compile"),
    },
)
def _judge_banks(answer):
    kernel = build(answer, "row_sums")
    for M, N in ((32, 64), (64, 32), (32, 40), (5, 100), (70, 33), (33, 1), (1, 31)):
        X = np.random.default_rng([8, M, N]).integers(-99, 99, (M, N)).astype(np.float32)  # sums are exact
        case = f"M = {M}, N = {N}"
        for seed in (0, 1):
            x, y = cpu_device.asarray(X), cpu_device.empty(M, np.float32)
            c = run(kernel, case, (-(-M // 32),), (32,), (x, y, np.int32(M), np.int32(N)), (y,), _explain_banks, seed)
            _compare_sums(case, X, y.get())
        blocks = -(-M // 32)
        if c.loads.sectors > -(-M * N // 8) + 2 * M or c.loads.bytes > 4 * M * N:
            raise Wrong(f"{case}: right, but x is no longer read coalesced and once: {c.loads.sectors:,} sectors for {M * N:,} floats; "
                        "keep the tile")
        for what, totals, other in (("loads", c.shared_loads, c.shared_stores), ("stores", c.shared_stores, c.shared_loads)):
            if totals.extra_wavefronts:
                moved = " The conflicts have moved to the stores." if what == "stores" and not other.extra_wavefronts else ""
                raise Wrong(f"{case}: right, but {totals.requests} shared {what} take {totals.extra_wavefronts} extra turns: lanes still "
                            f"share a bank.{moved}")
        if (size := kernel.shared_size_bytes) > 32 * 33 * 4:
            raise Wrong(f"{case}: right, but with {size // 4:,} floats of shared memory; {32 * 33:,} are enough")
        if c.shared_stores.instructions > M * N or c.barriers > 2 * blocks * -(-N // 32):
            raise Wrong(f"{case}: right, but with more stores or barriers than the exercise has")


def _compare_sums(case, X, got):
    want = X.sum(axis=1)
    if np.array_equal(got, want):
        return
    row = int(np.flatnonzero(got != want)[0]) if not np.isnan(got).any() else int(np.flatnonzero(np.isnan(got))[0])
    whole = X.shape[1] // 32 * 32
    if np.array_equal(got, X[:, :whole].sum(axis=1)):
        raise Wrong(f"{case}: the last columns, which do not fill a tile, are missing")
    raise Wrong(f"{case}: the sum of row {row} is {want[row]:g} and you return {got[row]:g}, off by {got[row] - want[row]:g}")

"""Exercises of notebook 13: counting by hand, and three kernels: repair, two queries a thread, the causal mask."""

from __future__ import annotations

import numpy as np

from helpers import cpu_device, reference
from helpers.exercises import Wrong, exercise
from helpers.exercises.kernels import build, changed, run
from helpers.snippets import load

# --------------------------------------------------------------------------------------------------- 13-plan

_PLAN = (8, 190, 2, 24, 2138)


@exercise(
    "13-plan", "Plan a launch by hand",
    hints=(
        "Queries: ceil(1000 / 128) blocks. Each of them walks over all keys. Keys: ceil(3010 / 32) tiles.",
        "A block meets two barriers in every tile. What the last tile or block is short of follows from the two ceilings.",
        "Query i sees the keys up to i + Sk - Sq. The first block ends with query 127, which therefore sees "
        "127 + 2010 + 1 keys.",
    ),
    solution=_PLAN,
    wrong={
        "once per query": ((1000, 190, 2, 24, 2138), "once for a block"),
        "floor of the blocks": ((7, 190, 2, 24, 2138), "7 blocks hold 896"),
        "once": ((1, 190, 2, 24, 2138), "own copy"),
        "one barrier a tile": ((8, 95, 2, 24, 2138), "two"),
        "floor of the tiles": ((8, 188, 2, 24, 2138), "last tile counts"),
        "all blocks": ((8, 1520, 2, 24, 2138), "of one block"),
        "a full last tile": ((8, 190, 32, 24, 2138), "94 full tiles"),
        "keys missing": ((8, 190, 30, 24, 2138), "missing"),
        "queries left": ((8, 190, 2, 104, 2138), "without a query"),
        "top-left mask": ((8, 190, 2, 24, 128), "bottom right"),
        "one too few": ((8, 190, 2, 24, 2137), "key 0"),
        "the first query": ((8, 190, 2, 24, 2011), "last query of the block"),
        "the mask forgotten": ((8, 190, 2, 24, 3010), "hides"),
    },
)
def _judge_plan(answer):
    try:
        values = [float(v) for v in answer]
    except (TypeError, ValueError):
        raise Wrong("give five numbers: reads, barriers, last_tile, idle, causal_keys") from None
    if len(values) != 5:
        raise Wrong(f"give five numbers; you gave {len(values)}")
    told = (
        {1000: "reads: a query does not fetch K by itself; a tile is fetched once for a block of 128 queries",
         7: "reads: 7 blocks hold 896 queries; the other 104 need a block too",
         1: "reads: blocks do not share: each block fetches its own copy of every tile"},
        {95: "barriers: there are two in every turn of the tile loop",
         188: "barriers: 94 tiles hold 3008 keys; the last tile counts too",
         1520: "barriers: that is the sum over all blocks; asked is what the threads of one block meet"},
        {32: "last_tile: 94 full tiles hold 3008 of the 3010 keys",
         30: "last_tile: that is how many keys are missing in it; asked is how many it holds"},
        {104: "idle: the last block has 104 queries; asked is how many of its 128 threads are without a query"},
        {128: "causal_keys: the mask is aligned at the bottom right; Sk - Sq = 2010 more keys are visible",
         2137: "causal_keys: query 127 sees the keys 0 to 2137; do not forget key 0",
         2011: "causal_keys: that is what query 0 sees; the last query of the block sees the most",
         3010: "causal_keys: the first block lies far from the end; the mask hides keys from all of its queries"},
    )
    names = ("reads", "barriers", "last_tile", "idle", "causal_keys")
    for value, want, known, name in zip(values, _PLAN, told, names, strict=True):
        if value != want:
            raise Wrong(known.get(value, f"{name}: not {value:g}; write down what the first and the last block do"))


# ----------------------------------------------------------------------------------------- kernels, in general


def _launch(answer, entry: str, threads: int, queries: int, q, k, v, seed: int = 0):
    """Run the learner's kernel on the CPU device: (o, counters).  What it diagnoses becomes the hint."""
    arrays = [cpu_device.asarray(np.asarray(a, np.float32)) for a in (q, k, v)]
    o = cpu_device.empty(q.shape, np.float32)
    args = (*arrays, o, np.int32(len(q)), np.int32(len(k)), np.float32(q.shape[1] ** -0.5))
    blocks = -(-len(q) // queries)
    counters = run(build(answer, entry), f"Sq = {len(q)}, Sk = {len(k)}", (blocks,), (threads,), args, (o,), _diagnosis, seed)
    return o.get(), counters


def _same_in_another_order(answer, entry: str, queries: int, q, k, v, first) -> None:
    if len(q) * len(k) <= 2048 and not np.array_equal(first, _launch(answer, entry, 64, queries, q, k, v, seed=5)[0], equal_nan=True):
        raise Wrong(f"Sq = {len(q)}, Sk = {len(k)}: the result depends on the order in which warps run")


def _diagnosis(error) -> str:
    first = str(error).splitlines()[0].split(": ", 1)[-1]
    where = f" (line {error.line})" if error.line else ""
    if error.kind == "race" and " reads " in first:
        return f"a race on {error.array}: a thread reads it before the thread that loads it has passed a barrier"
    if error.kind == "race":
        return f"a race on {error.array}: a thread loads the next tile while others still read this one"
    if error.kind == "barrier":
        return ("a barrier that not all threads reach: some have returned or left the loop early, and with them went their part of every "
                "tile; all must take the same number of turns")
    if error.kind == "out_of_bounds" and error.array in ("k", "v"):
        return f"{error.array} is read behind its end{where}: the last tile holds fewer keys than KEYS"
    if error.kind == "out_of_bounds" and error.array in ("q", "o"):
        return f"{error.array} is touched behind its end{where}: the last block has threads without a query"
    if error.kind == "uninitialized":
        return f"{error.array} is read{where} where nobody has loaded it"
    if error.kind == "unwritten":
        query = error.index // 32 if error.index is not None else 0
        return f"the kernel leaves outputs unwritten, the first of them for query {query}"
    return first


def _agrees(got, q, k, v, atol: float = 2e-5, causal: bool = False) -> bool:
    expected, _ = reference.attention(q, k, v, causal=causal)
    return reference.agrees(got, expected, atol=atol, rtol=np.inf)


def _qkv(Sq: int, Sk: int, seed: int = 13):
    rng = np.random.default_rng([seed, Sq, Sk])
    return [rng.standard_normal((n, 32)).astype(np.float32) for n in (Sq, Sk, Sk)]


def _moved(Sq: int, Sk: int, levels):
    """Inputs whose query i has scores near levels[i]."""
    q, k, v = _qkv(Sq, Sk)
    q[:, 0], k[:, 0] = np.asarray(levels, np.float32), np.float32(32**0.5)
    return q, k, v


def _judge_values(launched) -> None:
    """Values and NaN, for a kernel that `launched(q, k, v)` launches; sizes so chosen that each mistake has its own hint."""
    for Sq, Sk in ((64, 16), (64, 48), (128, 32), (100, 32), (64, 5), (64, 40), (65, 17), (1, 1), (3, 100), (200, 5)):
        q, k, v = _qkv(Sq, Sk)
        got = launched(q, k, v)
        if _agrees(got, q, k, v):
            continue
        where, full = f"Sq = {Sq}, Sk = {Sk}: ", Sk - Sk % 16
        if full < Sk and (not full and np.isnan(got).all() or full and _agrees(got, q, k[:full], v[:full])):
            raise Wrong(f"{where}the result leaves out the last {Sk % 16} keys, which do not fill a tile")
        if Sq > 64 and _agrees(got[:64], q[:64], k, v):
            raise Wrong(f"{where}the first 64 queries are right, later ones are not")
        if Sk > 16 and _agrees(got, q, k[-(Sk % 16 or 16):], v[-(Sk % 16 or 16):]):
            raise Wrong(f"{where}only the last tile counts; the state must go on from tile to tile")
        raise Wrong(f"{where}the values differ from the float64 result")
    for name, levels in (("near -300", np.full(70, -300)), ("near 300", np.full(70, 300)),
                         ("near 300 for some queries and near -300 for others", np.where(np.arange(150) // 7 % 2, 300, -300))):
        q, k, v = _moved(len(levels), 40, levels)
        if not _agrees(launched(q, k, v), q, k, v, atol=2e-3):
            why = "; with which m does a query start that has seen no key?" if levels.max() < 0 else "; m must be this query's own maximum"
            raise Wrong(f"scores {name}: the result is wrong{why}")
    q, k, v = _qkv(70, 40)
    for at in (0, 39):
        spoiled = k.copy()
        spoiled[at, 3] = np.nan
        if not np.isnan(launched(q, spoiled, v)).all():
            raise Wrong(f"key {at} holds a NaN and every query sees it, but some outputs hide it")


# ------------------------------------------------------------------------------------------------- 13-repair

_REPAIRED = load("solutions/13_repair.cu")
_LOADED = "        __syncthreads();\n\n"
_QUERY, _LEAVE = "    float Q[D], O[D], m", "    if (i >= Sq) return;\n"


@exercise(
    "13-repair", "Repair a tiled kernel",
    hints=(
        "check names one mistake at a time, with the sizes that show it. Repair that one, save the file, run check again.",
        "Two concern threads that work for others: a thread without a query still has to load its part of the tile, and a "
        "fast thread must not load the next tile while a slow one reads this one.",
        "Two concern values: how many keys the last tile holds, and which m stands for no keys at all. "
        'show_diff("exercises/13_repair.cu", "solutions/13_repair.cu") shows a solution.',
    ),
    solution="solutions/13_repair.cu",
    untouched="18e999d5",
    wrong={
        "no barrier after loading": (changed(_REPAIRED, (_LOADED, "\n")), "has passed a barrier"),
        "early return": (changed(_REPAIRED, (_QUERY, _LEAVE + _QUERY)), "not all threads reach"),
        "tail read": (changed(_REPAIRED, ("min(KEYS, Sk - start)", "KEYS")), "fewer keys than KEYS"),
        "tail dropped": (changed(_REPAIRED, ("start < Sk;", "start + KEYS <= Sk;")), "do not fill a tile"),
        "tail not loaded": (changed(_REPAIRED, ("j < count;", "j < KEYS;")), "nobody has loaded"),
        "no guard at the end": (changed(_REPAIRED, (_LEAVE, "")), "o is touched behind its end"),
        "no guard at the start": (changed(_REPAIRED, ("i < Sq ? q[i * D + c] : 0", "q[i * D + c]")), "q is touched"),
        "m starts at 0": (changed(_REPAIRED, ("m = NEG_INF, d", "m = 0, d")), "near -300"),
        "O not rescaled": (changed(_REPAIRED, ("O[c] * factor", "O[c]")), "differ"),
        "a NaN lost": (changed(_REPAIRED, ("nan_max(m, s)", "fmaxf(m, s)"), ("p = expf(s - m_new)", "p = s == s ? expf(s - m_new) : 0")),
                       "hide it"),
        "half written": (changed(_REPAIRED, ("c < D; ++c) o[i", "c < D / 2; ++c) o[i")), "unwritten"),
        "does not compile": (changed(_REPAIRED, ("m = NEG_INF, d", "m = -INF, d")), "does not compile"),
    },
)
def _judge_repair(answer):
    def launched(q, k, v):
        first, _ = _launch(answer, "attention_repair", 64, 64, q, k, v)
        _same_in_another_order(answer, "attention_repair", 64, q, k, v, first)
        return first

    _judge_values(launched)


# -------------------------------------------------------------------------------------------- 13-two-queries

_TWO = load("solutions/13_two_queries.cu")
_TWICE = changed(  # both queries, one walk over the keys for each
    _REPAIRED, ("attention_repair", "attention_two_queries"), ("n += QUERIES", "n += 64"),
    ("i = blockIdx.x * QUERIES + t;\n", "first = blockIdx.x * 128 + t;\n    for (int i = first; i < first + 128; i += 64) {\n"),
    (_LEAVE, "    if (i < Sq)\n"), ("O[c] / d;\n", "O[c] / d;\n    }\n"))
_KEY = ("const float key = K[j][c];      // fetched once, used twice\n", "dot[r] += Q[r][c] * key;")


@exercise(
    "13-two", "Two queries a thread",
    hints=(
        "Everything that belongs to one query becomes an array of two: Q[2][D], O[2][D], m[2], d[2]. The tile and its two "
        "barriers stay as they are.",
        "In the loop over keys: take const float key = K[j][c] into a register and add Q[r][c] * key to dot[r] for r = 0 "
        "and 1. The same for V. S needs room for both queries.",
        "Each of the two queries needs its own guard query < Sq, at the start and at the end. "
        'show_diff("exercises/13_two_queries.cu", "solutions/13_two_queries.cu") shows a solution.',
    ),
    solution="solutions/13_two_queries.cu",
    untouched="c9935a06",
    wrong={
        "one after the other": (_TWICE, "twice as much"),
        "fetched for each query": (changed(_TWO, (_KEY[0], "\n"), (_KEY[1], "dot[r] += Q[r][c] * ((volatile float*)K[j])[c];")),
                                   "more than one number"),
        "the first query twice": (changed(_TWO, ("dot[r] += Q[r][c]", "dot[r] += Q[0][c]")), "later ones are not"),
        "one maximum for both": (changed(_TWO, ("nan_max(m_new[r], S[r][j][t])", "nan_max(m_new[r], S[0][j][t])")),
                                 "for others"),
        "no guard": (changed(_TWO, ("query < Sq ? q[query * D + c] : 0", "i < Sq ? q[query * D + c] : 0")), "q is touched"),
        "early return": (changed(_TWO, ("    float Q[2][D]", "    if (i >= Sq) return;\n    float Q[2][D]")), "not all threads reach"),
        "no second barrier": (changed(_TWO, ("        __syncthreads();\n    }", "    }")), "loads the next tile"),
        "tail dropped": (changed(_TWO, ("start < Sk;", "start + KEYS <= Sk;")), "do not fill a tile"),
    },
)
def _judge_two(answer):
    def launched(q, k, v):
        got, counters = _launch(answer, "attention_two_queries", 64, 128, q, k, v)
        _same_in_another_order(answer, "attention_two_queries", 128, q, k, v, got)
        fetched.append(counters.shared_loads.bytes / (4 * counters.threads * len(k) * 64))
        loaded.append(counters.loads.bytes / (4 * (-(-len(q) // 128) * len(k) * 64 + q.size)))
        return got

    fetched, loaded = [], []
    _judge_values(launched)
    if max(loaded) > 1.5:
        raise Wrong("the result is right, but every tile is loaded twice: that fetches twice as much from memory; "
                    "walk over the keys once, with both queries")
    if max(fetched) > 1.25:
        raise Wrong(f"the result is right, but a thread fetches {max(fetched):.2g} numbers from shared memory where one would do: "
                    "that is more than one number a key and column")


# ------------------------------------------------------------------------------------------------ 13-causal

_CAUSAL = load("solutions/13_causal.cu")
_SEEN, _KEYS_OF_BLOCK = "i + Sk - Sq + 1; ", "min((int)(blockIdx.x + 1) * QUERIES, Sq) + Sk - Sq; "


@exercise(
    "13-causal", "Mask the diagonal",
    hints=(
        "Query i sees the keys 0 to i + Sk - Sq. That is one number a thread: how many keys it sees. It may be negative.",
        "The loop over tiles is the block's, because of its barriers: all threads must take the same number of turns. The last query of "
        "the block that exists sees the most.",
        "A thread leaves out the keys of a tile that its query does not see; a query that saw none has d == 0 in the end. "
        'show_diff("exercises/13_causal.cu", "solutions/13_causal.cu") shows a solution.',
    ),
    solution="solutions/13_causal.cu",
    untouched="15e1436d",
    wrong={
        "one key too many": (changed(_CAUSAL, (_SEEN, "i + Sk - Sq + 2; ")), "the next key"),
        "one key too few": (changed(_CAUSAL, (_SEEN, "i + Sk - Sq; ")), "its own key"),
        "top-left": (changed(_CAUSAL, (_SEEN, "i + 1; "), (_KEYS_OF_BLOCK, "min(min((int)(blockIdx.x + 1) * QUERIES, Sq), Sk); ")),
                     "top left"),
        "every tile": (changed(_CAUSAL, (_KEYS_OF_BLOCK, "Sk; ")), "no query of the block sees"),
        "as far as the own query": (changed(_CAUSAL, ("start < keys;", "start < seen;")), "same number of turns"),
        "as far as the first query": (changed(_CAUSAL, (_KEYS_OF_BLOCK, "blockIdx.x * QUERIES + 1 + Sk - Sq; ")), "last query"),
        "past the last query": (changed(_CAUSAL, (_KEYS_OF_BLOCK, "(blockIdx.x + 1) * QUERIES + Sk - Sq; ")), "fewer keys"),
        "tiles instead of keys": (changed(_CAUSAL, (" && start + j < seen", "")), "diagonal"),
        "0 / 0": (changed(_CAUSAL, ("d == 0 ? 0 : O[c] / d", "O[c] / d")), "sees no key"),
        "score 0 for hidden keys": (changed(_CAUSAL, (" && start + j < seen", ""), ("s *= scale;", "s *= start + j < seen ? scale : 0;")),
                                    "still a weight"),
        "no second barrier": (changed(_CAUSAL, ("        __syncthreads();\n    }", "    }")), "loads the next tile"),
    },
)
def _judge_causal(answer):
    for Sq, Sk in ((100, 100), (64, 64), (40, 40), (70, 110), (64, 20), (100, 30), (1, 33), (7, 1), (65, 66)):
        q, k, v = _qkv(Sq, Sk)
        got, counters = _launch(answer, "attention_causal", 64, 64, q, k, v)
        _same_in_another_order(answer, "attention_causal", 64, q, k, v, got)
        where = f"Sq = {Sq}, Sk = {Sk}: "
        if not _agrees(got, q, k, v, causal=True):
            _explain_causal(where, got, q, k, v)
        lasts = [min(first + 64, Sq) for first in range(0, Sq, 64)]
        needed = sum(min(Sk, max(0, last + Sk - Sq)) for last in lasts) * 32 * 4
        loaded = sum(counters.of(name)[0].bytes for name in "kv") if counters.loads.bytes > q.nbytes else 0
        if loaded > 2 * needed:
            raise Wrong(f"{where}right, but {loaded // 256:,} keys are loaded and {needed // 128:,} are enough: the last tiles hold keys "
                        "that no query of the block sees")
    q, k, v = _qkv(70, 90)
    k[85] = np.nan  # the keys behind the diagonal must not matter, and those before it must
    got, _ = _launch(answer, "attention_causal", 64, 64, q, k, v)
    if np.isnan(got[:65]).any():
        raise Wrong("key 85 holds a NaN, and queries that do not see it became NaN: leave a hidden key out, do not multiply it by 0")
    if not np.isnan(got[65:]).all():
        raise Wrong("key 85 holds a NaN, and a query that sees it hides that")
    for level in (-300, 300):
        q, k, v = _moved(90, 90, np.full(90, level))
        if not _agrees(_launch(answer, "attention_causal", 64, 64, q, k, v)[0], q, k, v, atol=2e-3, causal=True):
            raise Wrong(f"scores near {level}: the result is wrong; with which m does a query start that has seen no key?")


def _explain_causal(where, got, q, k, v):
    Sq, Sk = len(q), len(k)
    scores = (q.astype(np.float64) @ k.T) * q.shape[1] ** -0.5
    i, j = np.arange(Sq)[:, None], np.arange(Sk)
    empty = (i[:, 0] + Sk - Sq) < 0
    if np.isnan(got[empty]).any() or (got[empty] != 0).any():
        if _agrees(got[~empty], q[~empty], k, v, causal=True):
            raise Wrong(f"{where}query {int(np.flatnonzero(empty)[0])} sees no key, and its o must be 0")
    of_block = j < np.minimum((i // 64 + 1) * 64, Sq) + Sk - Sq
    told = (("no key is hidden", np.full((Sq, Sk), True), scores),
            ("a query also sees the next key, i + Sk - Sq + 1", of_block & (j <= i + Sk - Sq + 1), scores),
            ("a query does not see its own key, i + Sk - Sq", j < i + Sk - Sq, scores),
            ("the mask is aligned at the top left; here it is at the bottom right", j <= i, scores),
            ("all queries of a block see the same keys; the diagonal crosses a tile, and there each query has its own end",
             of_block, scores),
            ("a hidden key got the score 0, which is still a weight: leave it out", of_block, np.where(j <= i + Sk - Sq, scores, 0)))
    for text, seen, values in told:
        s = np.where(seen, values, -np.inf)
        top = s.max(axis=1, keepdims=True)
        p = np.exp(s - np.where(top == -np.inf, 0, top))
        d = p.sum(axis=1, keepdims=True)
        other = (p @ v) / np.where(d == 0, 1, d)
        right = reference.attention(q, k, v, causal=True)[0]
        if np.allclose(got[~empty], other[~empty], atol=2e-5) and not np.allclose(other[~empty], right[~empty], atol=1e-4):
            raise Wrong(where + text)
    first = got[0] if not empty[0] else None
    if first is not None and _agrees(got[:1], q[:1], k[:1 + max(0, Sk - Sq)], v[:1 + max(0, Sk - Sq)]) and Sq > 1:
        raise Wrong(f"{where}query 0 is right, later ones are not: does the block walk as far as its last query sees, and does every query "
                    "stop at the diagonal?")
    raise Wrong(f"{where}the values differ from the float64 result")

"""Notebook 08's helpers: the record is read right, the map shows the table, and figures draw what was measured."""

import itertools

import numpy as np
import pytest

from helpers import fast
from helpers.exercises import nb08
from helpers.figures import choosing, style
from helpers.measure import Record

ELEMENTS = 2**27
LENGTHS, ODD = (128, 4096, 65536, 262144), (4097, 50257)


def row(name, N, dtype, tbs, **more):
    return {"name": name, "shape": [ELEMENTS // N, N], "dtype": dtype, "tbs": tbs, "us": 1 / tbs, "offset": 0, **more}


@pytest.fixture
def made_up():
    """A record with numbers that tell which row they come from; QuACK is the best peer but at N = 4096, and Triton is missing."""
    rows = []
    for dtype, N in itertools.product(choosing.DTYPES, LENGTHS + ODD):
        size = 1 if dtype == "float32" else 0.5
        rows += [row(name, N, dtype, tbs * size, kernel="warp" if N == 128 else "block")
                 for name, tbs in (("copy", 4.2), ("fast", 4.0), ("fast_log", 3.9), ("fast_in_place", 4.1))]
        rows += [row(name, N, dtype, tbs * size) for name, tbs in (("torch", 2.0), ("quack", 1.0 if N == 4096 else 3.0))]
    rows += [row("fast", 4096, dtype, 3.0, offset=1, kernel="block") for dtype in choosing.DTYPES]
    rows += [{"name": f"{name}_{how}", "shape": [M, N], "dtype": dtype, "us": us * (N / 4096),
              "us_p90": us * (N / 4096) * (3 if (M, dtype, how) == (32, "float32", "graph") else 1)}
             for name, us in (("fast", 2.0), ("torch", 4.0), ("quack", 3.0)) for how in ("graph", "plain") for M in (1, 32)
             for N in (4096, 32768) for dtype in choosing.DTYPES]
    return Record({"device": "H200", "date": "today"}, rows, "made up")


def collected(monkeypatch, module):
    """(alt texts of the figures, texts of the tables) that `module` will show."""
    alts, tables = [], []
    monkeypatch.setattr(module, "show", lambda fig, alt: (fig.canvas.draw(), alts.append(alt)))
    monkeypatch.setattr(style, "display", lambda text: tables.append(text.data))
    return alts, tables


@pytest.fixture
def shown(monkeypatch):
    return collected(monkeypatch, choosing)


def test_a_speed_is_that_of_one_row(made_up):
    assert choosing.speed(made_up, "fast", 4096) == 4.0 and choosing.speed(made_up, "fast", 4096, offset=1) == 3.0
    assert choosing.speed(made_up, "fast", 4096, "bfloat16") == 2.0
    assert choosing.speed(made_up, "triton", 4096) is None and choosing.speed(made_up, "fast", 4095) is None
    made_up.rows.append(row("fast", 4096, "float32", 1.0))
    with pytest.raises(ValueError, match="2 rows"):
        choosing.speed(made_up, "fast", 4096)


def test_lengths_and_the_best_peer(made_up):
    assert choosing.lengths(made_up) == sorted(LENGTHS) and choosing.odd_lengths(made_up) == sorted(ODD)
    assert choosing.best_peer(made_up, 128) == ("quack", 3.0) and choosing.best_peer(made_up, 4096) == ("torch", 2.0)


def test_times_of_few_rows(made_up):
    assert choosing.time(made_up, "fast", "graph", 32, 32768) == 16.0
    assert choosing.time(made_up, "fast", "graph", 33, 32768) is None


@pytest.mark.parametrize("dtype", choosing.DTYPES)
@pytest.mark.parametrize("clusters", [16, 8, 1])
def test_the_map_is_the_table(dtype, clusters):
    """Every point lies in one rectangle, and that has the kernel which the dispatcher takes."""
    found = choosing.regions(dtype, clusters, 32, 2**21, 2**17)
    rng = np.random.default_rng(8)
    limits = [n + d for w in fast.WAYS[dtype] for n in (w.max_n,) for d in (0, 1) if 32 <= n + d < 2**21]
    for N in [32, *limits, *np.exp2(rng.uniform(5, 21, 60)).astype(int)]:
        for M in [1, 2**17 - 1, *(w.min_rows for w in fast.WAYS[dtype] if w.min_rows), *np.exp2(rng.uniform(0, 17, 10)).astype(int)]:
            inside = [w for n0, n1, m0, m1, w in found if n0 <= N < n1 and m0 <= M < m1]
            want = fast.way(int(M), int(N), dtype, clusters)
            assert len(inside) == 1 and (inside[0].kernel, inside[0].cluster) == (want.kernel, want.cluster), (M, N)


def test_tables_show_ratios(made_up, shown):
    _, tables = shown
    choosing.shares(made_up)
    choosing.compare(made_up, "torch", "fast", ("torch", "ours"), up_to=128)
    choosing.odd(made_up)
    choosing.forms(made_up)
    choosing.slowest_against(made_up)
    choosing.ways()
    shares, compare, odd, forms, slowest, ways = tables
    assert "| fp32, of the best peer | 1.33 | 2.00 | 1.33 | 1.33 |" in shares and "| which is | quack | torch | quack | quack |" in shares
    assert "| **faster by** | **2.00×** |" in compare and "4,096" not in compare
    assert odd.count("| 1.00 | 1.00 | 0.75 |") == 1 and "4,096, one off" in odd
    assert "| 0.97 (N = 128) to 0.97 |" in forms and "| 1.02 (N = 128) to 1.02 |" in forms
    assert "| in a CUDA graph, fp32 | 0.67 (N = 4,096) | 0.67* (N = 4,096) |" in slowest and slowest.count("*") == 1
    assert ways.count("\n") == len(fast.WAYS["float32"]) + 1


def test_the_best_trial_of_each_place_counts(shown):
    def trial(kernel, cluster, N, tbs, part="2"):
        return {"part": part, "name": kernel, "kernel": kernel, "cluster": cluster, "shape": [8, N], "dtype": "float32", "tbs": tbs}

    rows = [trial("cluster", 8, 64, 3.0), trial("cluster", 8, 64, 3.5), trial("cluster", 16, 64, 3.2), trial("shared", 8, 128, 2.0),
            trial("shared", 8, 64, 9.0, part="3"), trial("packed", 8, 64, 9.0)]
    rows += [{"part": "2", "name": "copy", "shape": [8, N], "dtype": "float32", "tbs": 4.0} for N in (64, 128)]
    choosing.tried(Record({}, rows, "made up"), "2", lengths=(64, 128), dtypes=("float32",))
    assert shown[1][0].splitlines()[2:] == ["| 8 blocks, in registers | **3.50** | – |", "| 16 blocks, in registers | 3.20 | – |",
                                            "| 8 blocks, in shared memory | – | **2.00** |", "| a copy | 4.00 | 4.00 |"]


def test_where_a_peer_is_faster_is_said(made_up, capsys):
    choosing.behind(made_up)
    assert capsys.readouterr().out == "nowhere slower than 0.99 of the best peer\n"
    next(r for r in made_up.rows if r["name"] == "quack" and r["shape"][1] == 65536 and r["dtype"] == "float16")["tbs"] = 2.5
    choosing.behind(made_up)
    assert capsys.readouterr().out == "fp16, N =  65,536: 0.800 of the speed of QuACK\n"


def test_counters_are_for_a_row_and_an_element(shown):
    class Totals:
        bytes, requests, instructions = 4 * 8 * 100, 16, 0

    class Counters:
        loads = stores = shared_loads = shared_stores = Totals
        shuffles, barriers, exps = 80, 8, 1600

    choosing.counters({"one": Counters}, M=8, N=100)
    (table,) = shown[1]
    for line in ("reads an element | 1 |", "load requests of a warp, a row | 2 |", "shuffles of a warp, a row | 10 |",
                 "exponentials an element | 2 |"):
        assert line in table


def test_figures_draw_what_is_there(made_up, shown):
    alts, _ = shown
    choosing.places()
    choosing.lanes(32, {"a warp a row": 32, "8 lanes a row": 8})
    choosing.phases()
    choosing.busy(4, 32768, {"block": fast.Way(32768, "block", vectors=8), "cluster": fast.Way(32768, "cluster", cluster=8)})
    choosing.decision("bfloat16")
    choosing.taken(made_up)
    choosing.peers(made_up)
    choosing.few_rows(made_up)
    places, lanes, _, busy, decision, taken, peers, few = alts
    assert "58,112 elements" in places and "8 of 32 lanes" in lanes and "4 rows, 32 of 32 lanes" in lanes
    assert "block 4; cluster 32." in busy
    assert "split" in decision and "without clusters" in decision
    assert "softmax(x), which takes … from 4.00 at 128 to 4.00 at 262,144; warp is taken at N = 128; block is" in taken
    assert "QuACK from 3.00 at 128" in peers and "bf16" in peers and "Triton" not in peers
    assert "graph, M = 32, torch.softmax: 4.0, 32.0" in few


def test_exercises_use_the_limits_of_the_kernels():
    assert nb08.SHARED == fast.MAX_SHARED == 227 * 1024
    for N, size in ((57_344, 1), (200_000, 4), (458_752, 8)):                          # what the launcher would ask for fits as well
        p = fast.plan(fast.Way(N, "shared", threads=1024, cluster=size), 1000, N, "float32", True)
        assert p.shared_mem + 8 * 32 * size <= fast.MAX_SHARED and nb08._cluster(1000, N, 132) == size


@pytest.fixture
def with_families(made_up):
    """`made_up`, and kernels alone: a block twice as slow as the warp at 128, level with it at 4,096, without room at 65,536."""
    speeds = {"warp": {128: 4.0, 4096: 3.98}, "block": {128: 2.0, 4096: 4.0}, "cluster": {4096: 3.0, 65536: 4.0, 262144: 3.9}}
    for dtype, (name, of) in itertools.product(choosing.DTYPES, speeds.items()):
        made_up.rows.extend(row(f"family_{name}", N, dtype, tbs, kernel=name, cluster=1) for N, tbs in of.items())
    for r in made_up.rows:
        if r["name"] == "fast" and r["shape"][1] >= 65536:
            r["kernel"] = "cluster"
    made_up.rows.extend({"name": f"family_{name}_graph", "shape": [4, N], "dtype": "float32", "us": us, "cluster": 8}
                        for name, N, us in (("block", 4096, 3.0), ("cluster", 4096, 2.0), ("cluster", 65536, 4.0)))
    return made_up


def test_each_kernel_alone(with_families, shown):
    alts, tables = shown
    choosing.alone(with_families)
    choosing.winners(with_families)
    choosing.borders(with_families)
    choosing.alone_few(with_families)
    winners, borders, few = tables
    assert "fp32, block: 2.00 at 128, 4.00 at 4,096" in alts[0] and "cluster gets rows of at most 524,288" in alts[0]
    assert "| warp | • **4.00** | **3.98** | – | – |" in winners and "| block | 2.00 | • **4.00** | – | – |" in winners
    assert "| fp32: warp to block | 128 | 4.00, 2.00 | 4,096 | 3.98, 4.00 | 1.01× |" in borders
    assert "| fp32: block to cluster | 4,096 | 4.00, 3.00 | 65,536 | –, 4.00 | no room before |" in borders
    assert "| **block / cluster** | **1.5×** | – |" in few and "| `cluster` (blocks a row) | 2.00 (8) | 4.00 (8) |" in few


def test_calls_are_counted_where_the_host_is_slower(made_up):
    assert choosing.calls(made_up) == []                                  # in the made-up record graphs are as slow as plain calls
    for r in made_up.rows:
        if r["name"].endswith("_graph"):
            r["us"] /= 2
    assert choosing.calls(made_up)[0] == ["fp32", "4", "9.0", "18.0", "0.50 to 0.50"]

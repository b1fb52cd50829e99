"""Several ranks give what one device gives, for any split; and a group that fails ends whole, with one error, leaving no process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import many_gpus, record, reference, topk
from helpers.device import on_gpu
from helpers.many_gpus import lesson
from helpers.many_gpus.group import Group, RankFailed

NAN, INF = np.nan, np.inf
GROUPS = [("gloo", 1), ("gloo", 2), ("gloo", 4)]
if on_gpu and torch.cuda.device_count() >= 2:
    GROUPS += [("nccl", 1), ("nccl", 2)]


@pytest.fixture(scope="module", params=GROUPS, ids=[f"{backend}-{size}" for backend, size in GROUPS])
def group(request):
    backend, size = request.param
    with Group(size, backend) as group:
        yield group


def splits(n: int, size: int) -> list[list[int]]:
    """Even, uneven, and with empty parts: cuts[r] to cuts[r + 1] for rank r."""
    even = [r * n // size for r in range(size)] + [n]
    return [even, [0, *sorted({1 + 3 * r for r in range(size - 1)}), n], [0] * size + [n], [0] + [n] * size][:1 if size == 1 else 4]


def logits(dtype: str) -> np.ndarray:
    """[9, 50]: ordinary rows, and every kind of row that the contract names."""
    x = np.random.default_rng(5).standard_normal((9, 50)).astype(np.float32) * 3
    x[1] = -INF
    x[2, 3] = NAN
    x[3, 44] = INF
    x[4, :45] = -INF
    x[5] *= 1000
    x[6, 10:30] = x[6].max() + 1  # ties across ranks
    x[7, 1:] = -INF
    x[8, [2, 47]] = NAN
    return torch.from_numpy(x).to(getattr(torch, dtype)).float().numpy()


def dtypes(group) -> tuple[str, ...]:
    return ("float32", "bfloat16") if group.backend == "nccl" else ("float32",)


def close(got, expected, dtype: str) -> bool:
    """Within the contract: fp32 tolerances, or one rounding to bf16."""
    return reference.agrees(got, expected) if dtype == "float32" else reference.agrees(got, expected, atol=2**-8, rtol=2**-7.99)


# ------------------------------------------------------------------------------------------------ columns over ranks


@pytest.mark.parametrize("merge", many_gpus.MERGES)
def test_softmax(group, merge):
    for dtype in dtypes(group):
        x = logits(dtype)
        for cuts in splits(50, group.size):
            y = np.concatenate([r[0] for r in group.run(lesson.softmax, x, cuts, merge, dtype)], axis=1)
            assert close(y, reference.softmax(x), dtype), cuts


def test_softmax_without_rows(group):
    x = np.empty((0, 8), np.float32)
    for merge in many_gpus.MERGES:
        parts = group.run(lesson.softmax, x, splits(8, group.size)[0], merge)
        assert sum(r[0].shape[1] for r in parts) == 8 and all(r[0].shape[0] == 0 for r in parts)


def test_cross_entropy_and_its_gradient(group):
    targets = np.array([3, 4, 5, 6, 49, -100, 60, 0, 2])  # -100 is ignored, 60 is out of range
    for dtype in dtypes(group):
        x = logits(dtype)
        loss, dx = single_device_cross_entropy(x, targets)
        for cuts in splits(50, group.size):
            ranks = group.run(lesson.cross_entropy, x, targets, cuts, dtype)
            assert all(reference.agrees(r[0], loss, atol=1e-5) for r in ranks), cuts
            assert close(np.concatenate([r[1] for r in ranks], axis=1), dx, dtype), cuts


def single_device_cross_entropy(x, targets):
    """(loss, gradient) in float64, as notebook 11 has them."""
    p = reference.softmax(x)
    valid = (targets >= 0) & (targets < x.shape[1])
    m = x.max(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        loss = (m - x[np.arange(len(x)), np.where(valid, targets, 0)]) + reference.lse(x) - np.where(m == -INF, 0, m)
    loss = np.where(targets == -100, 0, np.where(valid & ~np.isnan(p[:, 0]), loss, NAN))
    p[np.flatnonzero(valid), targets[valid]] -= 1
    p[~valid] = NAN
    p[(targets == -100) | (x == -INF).all(axis=1)] = 0
    return loss, p


@pytest.mark.parametrize("k", [1, 6, 50])
def test_topk(group, k):
    for dtype in dtypes(group):
        x = logits(dtype)
        p, columns, _ = topk.oracle(x, k)
        for cuts in splits(50, group.size):
            for r in group.run(lesson.softmax_topk, x, k, cuts, dtype):
                assert np.array_equal(r[1], columns), cuts
                assert close(r[0], p, dtype), cuts


def test_topk_refuses_more_columns_than_there_are():
    with pytest.raises(ValueError, match="k = 51 is outside 1 to 50"):
        many_gpus.softmax_topk(None, torch.zeros(2, 50), 51, 0, 50)


# ------------------------------------------------------------------------------------------------- tokens over ranks


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("S", [61, 3])  # 3 tokens: ranks, and stretches of the zig-zag, without any
def test_attention(group, S, causal):
    for dtype in dtypes(group):
        D = 16 if dtype == "float32" else 64
        rng = np.random.default_rng(S)
        q, k, v = (torch.from_numpy(rng.standard_normal((1, 2, S, D)).astype(np.float32)).to(getattr(torch, dtype)).float().numpy()
                   for _ in range(3))
        expected = reference.attention(q, k, v, causal)
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        for zigzag in (False, True):
            for overlap in (True, False):
                o, lse = np.full(q.shape, NAN), np.full(q.shape[:3], NAN)
                for o_part, lse_part, places, *_ in group.run(lesson.ring, q, k, v, causal, zigzag, overlap, dtype):
                    o[:, :, places], lse[:, :, places] = o_part, lse_part
                assert_attention((o, lse), expected, tolerance)
        for o, lse, *_ in group.run(lesson.gathered, q, k, v, causal, dtype):
            assert_attention((o, lse), expected, tolerance)


def assert_attention(got, expected, tolerance):
    assert all(reference.agrees(g, e, atol=tolerance, rtol=INF) for g, e in zip(got, expected, strict=True))


def test_attention_keeps_nan_and_masked_keys_apart(group):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 24, 16)).astype(np.float32) for _ in range(3))
    q[0, 0, 5] = NAN  # one query is NaN, and no other
    for zigzag in (False, True):
        for o, lse, places, *_ in group.run(lesson.ring, q, k, v, True, zigzag):
            assert np.array_equal(np.isnan(lse[0, 0]), places == 5)
            assert np.array_equal(np.isnan(o[0, 0]).all(axis=1), places == 5)


def test_every_token_and_every_visible_pair_is_met_once():
    for S, size, zigzag in ((61, 4, True), (61, 4, False), (64, 3, True), (3, 4, True), (2, 1, True)):
        stretches = [many_gpus.tokens(S, size, rank, zigzag) for rank in range(size)]
        places = [np.concatenate([np.arange(S)[t] for t in mine]) for mine in stretches]
        lengths = [[t.stop - t.start for t in mine] for mine in stretches]
        assert sorted(np.concatenate(places)) == list(range(S))
        seen = np.zeros((S, S), int)
        for rank in range(size):
            seen[np.ix_(places[rank], places[rank])] += places[rank][:, None] >= places[rank]
            for source in set(range(size)) - {rank}:
                part = many_gpus.visible_part(rank, source, lengths[rank], lengths[source])
                if part:
                    seen[np.ix_(places[rank][part[0]], places[source][part[1]])] += 1
        assert np.array_equal(seen, reference.visible(S, S))


def test_zigzag_gives_every_rank_the_same_work():
    S, size = 64, 4
    for zigzag, work in ((False, [136, 392, 648, 904]), (True, [520] * 4)):
        stretches = [many_gpus.tokens(S, size, rank, zigzag) for rank in range(size)]
        assert [sum(int(reference.visible(S, S)[t].sum()) for t in mine) for mine in stretches] == work


# ------------------------------------------------------------------------------------------------- bytes on the wire


def test_bytes_are_those_that_the_system_counts(group):
    size, numbers = group.size, 3 << 16
    if size == 1 or group.backend == "nccl":
        pytest.skip("nothing passes through the system's network")
    for way, factor in (("all_reduce", 2 * (size - 1) / size), ("all_gather", size - 1), ("pass_on", 1)):
        counted, seen = group.run(lesson.traffic, way, numbers)[0]
        assert counted == size * factor * 4 * numbers
        assert seen is None or seen > 0.99 * counted  # other programs use the interface too: there may be more


def test_bytes_of_each_merge(group):
    """What the notebook's formulas say, for M rows: two numbers a row, reduced or gathered."""
    M, R = 12, group.size
    x, cuts = np.zeros((M, 50), np.float32), splits(50, R)[0]
    reduced, gathered = (group.run(lesson.softmax, x, cuts, merge)[0][1:] for merge in ("all_reduce", "all_gather"))
    assert reduced == (2 * (2 * (R - 1) * 4 * M // R), 2) and gathered == ((R - 1) * 8 * M, 1)


# ---------------------------------------------------------------------------------------------------- under torchrun


TORCHRUN = """
from pathlib import Path
import torch
import torch.distributed as dist
from helpers import many_gpus
from helpers.many_gpus.group import Comm
dist.init_process_group("gloo")
comm = Comm(torch.device("cpu"))
x = torch.arange(12.0).reshape(2, 6) * 7
part = many_gpus.shard(6, comm.size, comm.rank)
assert torch.allclose(many_gpus.softmax(comm, x[:, part]), torch.softmax(x, 1)[:, part], atol=1e-6)
Path(__file__).with_name(f"right-on-{comm.rank}").touch()
dist.destroy_process_group()
"""


def test_the_same_functions_run_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "SOFTMAX_DEVICE": "cpu"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr[-2000:]
    assert {path.name for path in tmp_path.glob("right-on-*")} == {"right-on-0", "right-on-1"}


# ---------------------------------------------------------------------------------------------------- when ranks fail


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not open(f"/proc/{pid}/stat").read().split(")")[1].startswith(" Z") if os.path.isdir("/proc") else True


def wait_until_gone(pids, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.parametrize("backend", dict(GROUPS))
@pytest.mark.parametrize("function, words", [
    (lesson.fail, ["rank 1 of 2 raised ValueError: this shard is damaged", "lesson.py", "in fail"]),
    (lesson.die, ["rank 1 of 2 died (signal 9)"]),
    (lesson.hang, ["time-out: hang took more than 1 s", "0 of 2 ranks were done", "rank 1 is at", "time.sleep"]),
], ids=["raises", "dies", "hangs"])
def test_a_bad_rank_ends_the_group(function, words, backend):
    with Group(2, backend) as group:
        pids = group.pids
        start = time.monotonic()
        with pytest.raises(RankFailed) as error:
            group.run(function, 1, timeout=1)
        assert time.monotonic() - start < 4
        assert all(word in str(error.value) for word in words), str(error.value)
        assert error.value.rank == (None if function is lesson.hang else 1)
        assert wait_until_gone(pids)
        with pytest.raises(RuntimeError, match="this group has ended"):
            group.run(lesson.hello)


def children(pids: list[int]) -> list[int]:
    """Processes that those of `pids` started, such as the workers of the CPU device; none where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found += [int(folder.name)] * (parent in pids)
    return found


def test_a_rank_killed_from_outside_is_named():
    q = np.ones((1, 1, 4, 16), np.float32)
    with Group(2) as group:
        group.run(lesson.ring, q, q, q)  # kernels run, in processes of the CPU device
        pids = group.pids + children(group.pids)
        assert len(pids) > 2 or not Path("/proc").is_dir()
        os.kill(group.pids[0], signal.SIGKILL)
        with pytest.raises(RankFailed, match=r"rank 0 of 2 died \(signal 9\)"):
            group.run(lesson.hello, timeout=20)
    assert wait_until_gone(pids)


PARENT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with it ignored
from helpers.many_gpus import lesson
from helpers.many_gpus.group import Group
group = Group(2)
print(*group.pids, flush=True)
group.run(lesson.hang, 1)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_process_is_left_behind_when_the_notebook_ends(how):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root) as parent:
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 2 and all(map(alive, pids))
        time.sleep(0.3)
        parent.send_signal(how)
        parent.wait(10)
        assert ("KeyboardInterrupt" in parent.stderr.read()) == (how == signal.SIGINT)
    assert wait_until_gone(pids)


def test_a_group_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="at least 1 rank"):
        Group(0)
    with pytest.raises(ValueError, match="needs a GPU for each"):
        Group(64, "nccl")


def test_functions_that_ranks_cannot_import_are_refused(group):
    with pytest.raises(TypeError, match="put .*lambda.* into a module"):
        group.run(lambda comm: 0)
    ranks = group.run(lesson.hello)  # and the group lives on
    assert [r[0] for r in ranks] == list(range(group.size)) and [r[1] for r in ranks] == group.pids
    assert {r[2] for r in ranks} == {sum(range(group.size))}


# ---------------------------------------------------------------------------------------------------------- the record


def test_the_record_holds_what_the_notebook_says_of_it():
    runs = record("many_gpus")
    every, causal = (1, 16, 65_536, 65_536, 128, False), (1, 16, 65_536, 65_536, 128, True)

    def us(name, shape, gpus):
        return runs.find(name=name, shape=shape, gpus=gpus, dtype="bfloat16")["us"]

    assert us("attention", every, 1) >= 1.8 * us("ring", every, 2)
    assert us("ring_zigzag", causal, 2) < us("ring", causal, 2) and us("attention", causal, 1) >= 1.75 * us("ring_zigzag", causal, 2)
    for shape in (every, causal):
        assert runs.find(name="ring", shape=shape)["sent_bytes"] == 4 * 16 * 32_768 * 128
        assert runs.find(name="gathered", shape=shape)["sent_bytes"] == 16 * 65_536 * (2 * 128 + 4)

"""Decoding against float64: every head dimension and dtype, ragged caches, grouped heads, bad numbers, traffic, races, refused input."""

import numpy as np
import pytest
import torch

from helpers import cpu_device, reference
from helpers.decode import MAX_GROUP, decode, launch, plan, results
from helpers.device import cp, on_gpu
from helpers.ladder import numpy_type
from helpers.snippets import load

NAN, INF = np.nan, np.inf
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LENGTHS = (1, 2, 5, 31, 64, 113, 203, 239, 799, 1023, 1024)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def random_qkv(B, Hq, Hkv, Sk, D, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, B, Hq, Hkv, Sk, D])
    return [rng.standard_normal(shape).astype(numpy_type(dtype)) for shape in ((B, Hq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, D))]


def oracle(q, k, v, lengths=None, scale=None):
    """(o, lse) in float64, sequence by sequence."""
    (B, Hq, D), (_, Hkv, Sk, _) = q.shape, k.shape
    o, lse = np.empty(q.shape), np.empty((B, Hq))
    for b in range(B):
        n = Sk if lengths is None else max(0, min(Sk, lengths[b]))
        grouped = q[b].reshape(Hkv, Hq // Hkv, D)
        o_b, lse_b = reference.attention(grouped, k[b, :, :n], v[b, :, :n], scale=scale)
        o[b], lse[b] = o_b.reshape(Hq, D), lse_b.reshape(Hq)
    return o, lse


def unfused(q, k, v, dtype):
    """Scores, softmax and weighted sum by torch, every intermediate in `dtype`."""
    q, k, v = (torch.tensor(a.astype(np.float32)).to(DTYPES[dtype]) for a in (q, k, v))
    k, v = (a.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for a in (k, v))
    return (torch.softmax(q[:, :, None] @ k.mT * q.shape[-1]**-0.5, -1) @ v)[:, :, 0].double().numpy()


def run(q, k, v, lengths=None, scale=None, splits=None):
    """decode() into memory that holds NaN before, as float64."""
    q, k, v = (cp.asarray(a) for a in (q, k, v))
    lengths = None if lengths is None else cp.asarray(np.asarray(lengths, np.int32))
    o, lse = results(q)
    o.fill(NAN)
    lse.fill(NAN)
    launch(q, k, v, o, lse, lengths, scale, splits)()
    return cp.asnumpy(o).astype(np.float64), cp.asnumpy(lse).astype(np.float64)


def assert_right(q, k, v, lengths=None, scale=None, splits=None, dtype="float32"):
    o, lse = run(q, k, v, lengths, scale, splits)
    expected, expected_lse = oracle(q, k, v, lengths, scale)
    atol, rtol = {"float32": (2e-6, 1e-4), "float16": (1e-4, 1e-3), "bfloat16": (1e-3, 8e-3)}[dtype]
    assert np.array_equal(np.isnan(o), np.isnan(expected)) and not np.any(np.abs(o - expected) > atol + rtol * np.abs(expected))
    assert reference.agrees(lse, expected_lse, atol=1e-5, rtol=INF)


# ---------------------------------------------------------------------------------------------- right values


@every_dtype
@pytest.mark.parametrize("D, group", [*((D, 1) for D in range(16, 129, 16)), (64, 2), (128, 2), (80, 3)])
def test_every_head_dimension(dtype, D, group):
    """Error at most twice that of the unfused computation in the same precision, for every kernel."""
    for Sk in LENGTHS:
        q, k, v = random_qkv(1, group, 1, Sk, D, dtype)
        o, lse = run(q, k, v)
        expected, expected_lse = oracle(q, k, v)
        allowed = 2 * np.abs(unfused(q, k, v, dtype) - expected).max()
        assert not np.abs(o - expected).max() > allowed + 1e-7, (Sk, np.abs(o - expected).max(), allowed)
        assert reference.agrees(lse, expected_lse, atol=5e-6, rtol=INF), Sk


@pytest.mark.parametrize("B, Hq, Hkv", [(1, 1, 1), (3, 4, 4), (2, 6, 3), (2, 6, 2), (1, 8, 2), (2, 5, 1), (1, 7, 1), (1, 8, 1), (2, 24, 2),
                                        (1, 16, 1), (1, 11, 1)])
def test_grouped_query_heads(B, Hq, Hkv):
    for dtype in DTYPES:
        for splits in (1, 3, None):
            assert_right(*random_qkv(B, Hq, Hkv, 150, 64, dtype), splits=splits, dtype=dtype)


def test_groups_without_tensor_cores():
    for group in (2, 4, 8):
        q, k, v = random_qkv(1, group, 1, 150, 64, "bfloat16")
        o, lse = results(cp.asarray(q))
        ready = launch(*(cp.asarray(a) for a in (q, k, v)), o, lse, splits=3, matrices=False)
        ready()
        expected, expected_lse = oracle(q, k, v)
        assert not np.abs(cp.asnumpy(o).astype(np.float64) - expected).max() > 2 * np.abs(unfused(q, k, v, "bfloat16") - expected).max()
        assert reference.agrees(cp.asnumpy(lse), expected_lse, atol=1e-5, rtol=INF)


def test_every_length_and_number_of_splits():
    for Sk in [*range(1, 35), 63, 64, 65, 100, 257]:
        for splits in (1, 2, 3, 7, None):
            assert_right(*random_qkv(1, 1, 1, Sk, 32), splits=splits)


@pytest.mark.parametrize("splits", [1, 2, 5, 16, None])
def test_every_key_counts_once(splits):
    """With q = 0 all weights are equal, so O is the mean of V: exactly, for small whole numbers and 512 keys."""
    q, k, v = random_qkv(1, 4, 2, 512, 64)
    q[...], v[...] = 0, np.round(4 * v)
    o, lse = run(q, k, v, splits=splits)
    assert np.array_equal(o, np.repeat(v.astype(np.float64).mean(axis=2), 2, axis=1))
    assert np.allclose(lse, np.log(512), rtol=0, atol=1e-6)


@every_dtype
def test_ragged_lengths_read_nothing_behind_the_end(dtype):
    lengths = [0, 1, 150, 149, 77, -3, 1000, 32]
    q, k, v = random_qkv(8, 4, 2, 150, 64, dtype)
    for b, n in enumerate(lengths):
        k[b, :, max(0, n):] = v[b, :, max(0, n):] = NAN
    for splits in (1, 4, None):
        assert_right(q, k, v, lengths, splits=splits, dtype=dtype)


def test_scale_and_a_query_axis():
    q, k, v = random_qkv(2, 2, 1, 70, 48)
    assert_right(q, k, v, scale=0.7)
    o, lse = decode(*(cp.asarray(a) for a in (q[:, :, None], k, v)))
    assert o.shape == (2, 2, 1, 48) and lse.shape == (2, 2) and o.dtype == np.float32
    assert np.allclose(cp.asnumpy(o)[:, :, 0], oracle(q, k, v)[0], atol=1e-6)


# ------------------------------------------------------------------------------------------------- bad numbers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])           # a kernel without tensor cores, and one with
@pytest.mark.parametrize("splits", [1, 4])
class TestContract:
    def test_no_keys(self, splits, dtype):
        for Sk, lengths in ((0, None), (90, [0])):
            o, lse = run(*random_qkv(1, 4, 2, Sk, 64, dtype), lengths, splits=splits)
            assert not o.any() and (lse == -INF).all()

    def test_some_scores_minus_inf(self, splits, dtype):
        q, k, v = random_qkv(1, 2, 1, 90, 64, dtype)
        q[..., 0], k[0, 0, ::3, 0] = 1, -INF
        k[0, 0, :40, 0] = -INF                           # whole slots and splits that see nothing
        assert_right(q, k, v, splits=splits, dtype=dtype)

    def test_all_scores_minus_inf(self, splits, dtype):
        q, k, v = random_qkv(1, 2, 1, 90, 64, dtype)
        q[0, 0, 0], q[0, 1, 0], k[..., 0] = 1, 2, -INF
        o, lse = run(q, k, v, splits=splits)
        assert not o.any() and (lse == -INF).all()

    @pytest.mark.parametrize("bad", [NAN, INF])
    @pytest.mark.parametrize("at", [0, 45, 89])
    def test_a_bad_score(self, splits, dtype, bad, at):
        q, k, v = random_qkv(2, 4, 2, 90, 64, dtype)
        q[..., 3], k[1, 0, at, 3] = 1, bad
        o, lse = run(q, k, v, splits=splits)
        hit = np.zeros((2, 4), bool)
        hit[1, :2] = True                                # the queries that share this head of the cache, no others
        assert np.array_equal(np.isnan(lse), hit) and np.array_equal(np.isnan(o).all(-1), hit) and np.array_equal(np.isnan(o).any(-1), hit)

    def test_a_bad_query_leaves_its_group_alone(self, splits, dtype):
        q, k, v = random_qkv(1, 3, 1, 90, 64, dtype)
        q[0, 1, 7] = NAN
        o, lse = run(q, k, v, splits=splits)
        assert np.isnan(lse).tolist() == [[False, True, False]] and np.isnan(o).all(-1).tolist() == [[False, True, False]]
        assert not np.isnan(o[0, [0, 2]]).any()

    def test_a_nan_among_the_values_stays_in_its_column(self, splits, dtype):
        q, k, v = random_qkv(1, 2, 1, 90, 64, dtype)
        v[0, 0, 50, 9] = NAN
        o, lse = run(q, k, v, splits=splits)
        assert np.flatnonzero(np.isnan(o)).tolist() == [9, 64 + 9] and np.isfinite(lse).all()

    @pytest.mark.parametrize("shift", [-3e4, -300, 300, 3e4])
    def test_scores_of_any_size(self, splits, dtype, shift):
        q, k, v = random_qkv(1, 2, 1, 90, 64, dtype)
        q[..., 0], k[..., 0] = 8, shift
        o, lse = run(q, k, v, splits=splits)
        expected, expected_lse = oracle(q, k, v)
        atol = 1e-7 * abs(shift) + 1e-6 if dtype == "float32" else 2e-2
        assert not np.abs(o - expected).max() > atol and np.allclose(lse, expected_lse, rtol=1e-6, atol=0)


# ------------------------------------------------------------------------------------- on the CPU device: counts, races


def on_cpu_device(B, Hq, Hkv, Sk, D, dtype="float32", lengths=None, splits=None, source=None, seed=0):
    """(counters, o) of a launch on the CPU device, which demands that the outputs are written whole; `source` replaces the kernel's."""
    q, k, v = (cp.asarray(a) for a in random_qkv(B, Hq, Hkv, Sk, D, dtype))
    o, lse = results(q)
    lengths = None if lengths is None else cp.asarray(np.asarray(lengths, np.int32))
    ready = launch(q, k, v, o, lse, lengths, splits=splits)
    if source:
        ready = ready._replace(kernel=cp.RawKernel(source, "attention_decode", options=ready.kernel.options))
    return ready.count(outputs=(o, lse), seed=seed), o


@every_dtype
@pytest.mark.parametrize("Hq", [2, 8, 16])
def test_the_cache_is_read_once(dtype, Hq):
    """Whatever the splits and the query heads that share it, up to MAX_GROUP of them; and sectors are used whole."""
    D, Sk, size = 64, 200, 4 if dtype == "float32" else 2
    for splits in (1, 3, None):
        counters, _ = on_cpu_device(2, Hq, 2, Sk, D, dtype, lengths=[200, 77], splits=splits)
        for name in ("k", "v"):
            loads, _ = counters.of(name)
            assert loads.bytes == 2 * (200 + 77) * D * size and loads.sectors * 32 == loads.bytes


def test_what_the_partial_states_cost():
    B, Hq, Hkv, Sk, D = 1, 4, 2, 300, 64
    for splits in (2, 5):
        counters, _ = on_cpu_device(B, Hq, Hkv, Sk, D, splits=splits)
        parts = Hq * plan(B, Hq, Hkv, Sk, D, splits=splits).splits
        assert counters.of("sums")[1].bytes == counters.of("sums")[0].bytes == 4 * D * parts   # read once, by the block that ends last
        assert counters.of("states")[1].bytes == 8 * parts
    counters, _ = on_cpu_device(B, Hq, Hkv, Sk, D, splits=1)
    assert counters.stores.bytes == 4 * Hq * (D + 1)     # o and lse, nothing else


def test_a_short_sequence_leaves_no_work_to_its_blocks():
    counters, _ = on_cpu_device(2, 2, 2, 256, 64, lengths=[256, 40], splits=4)
    assert counters.of("k")[0].bytes == 2 * 296 * 64 * 4
    assert counters.of("states")[1].bytes == 2 * 4 * 8    # four blocks a head for the first sequence, one for the second


@pytest.mark.skipif(on_gpu, reason="the CPU device's orders")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_order_of_blocks_and_warps_gives_the_same_bits(seed):
    for shape in ((1, 2, 1, 400, 64), (2, 8, 2, 130, 128), (1, 4, 1, 700, 64, "bfloat16")):
        _, first = on_cpu_device(*shape, splits=6)
        _, other = on_cpu_device(*shape, splits=6, seed=seed)
        assert np.array_equal(cp.asnumpy(first), cp.asnumpy(other))


COUNT = "atomicInc(arrived + part, used - 1) == used - 1"


@pytest.mark.parametrize("kind, changes", [
    ("block_race", {COUNT: "split == used - 1", "__threadfence();": ""}),                    # merges without counting
    ("race", {"    __syncthreads();\n    if (!last)": "    if (!last)"}),                         # who is last, read before it is known
    ("race", {"    __syncthreads();\n    for (int g = slot": "    for (int g = slot"}),      # states of warps, read too early
], ids=["no count", "no barrier behind the count", "no barrier between the warps"])
def test_mistakes_are_caught(kind, changes):
    source = load("attention/decode.cu")
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    with pytest.raises(cpu_device.KernelError) as error:
        on_cpu_device(1, 2, 2, 1000, 64, splits=4, source=source, seed=1)
    assert error.value.kind == kind


def test_counters_are_zero_again():
    q, k, v = (cp.asarray(a) for a in random_qkv(2, 4, 2, 300, 64))
    ready = launch(q, k, v, *results(q), splits=5)
    for _ in range(3):
        ready()
    assert not cp.asnumpy(ready.args[7]).any()


# ------------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("Sk", [0, 1, 31, 32, 33, 1000, 32_768, 1_000_003])
def test_blocks_share_out_all_keys(Sk):
    for splits in (1, 2, 7, 100, None):
        p = plan(2, 8, 4, Sk, 128, "bfloat16", splits)
        assert p.splits * p.chunk >= Sk > (p.splits - 1) * p.chunk or Sk == 0 and p.splits == 1
        assert splits is None or p.splits <= splits


def test_the_plan_is_the_cheapest_and_fills_the_gpu():
    for B, H in ((1, 1), (1, 8), (3, 5), (16, 32)):
        best = plan(B, H, H, 65_536, 128, "bfloat16")
        assert best.cost == min(plan(B, H, H, 65_536, 128, "bfloat16", n).cost for n in range(1, 1025))
        assert best.parts * best.splits > 0.8 * best.waves * best.resident


@pytest.mark.parametrize("per_head, group", [(1, 1), (2, 2), (8, 8), (12, 6), (16, 8), (11, 1), (14, 7)])
def test_groups(per_head, group):
    assert plan(1, 2 * per_head, 2, 100, 64).group == group <= MAX_GROUP


# ------------------------------------------------------------------------------------------------------ refusals

Q, K = np.zeros((2, 4, 64), np.float32), np.zeros((2, 2, 10, 64), np.float32)


@pytest.mark.parametrize("error, words, change", [
    (TypeError, "q must be a cp array, got ndarray", lambda a: a | {"q": Q}),
    (TypeError, "k must be a cp array, got list", lambda a: a | {"k": [1]}),
    (TypeError, "q must be float32, float16 or bfloat16, got float64", lambda a: a | {"q": a["q"].astype(np.float64)}),
    (TypeError, "q is float32 and v is float16", lambda a: a | {"v": a["v"].astype(np.float16)}),
    (ValueError, "q must have shape [B, Hq, D] or [B, Hq, 1, D], got (8, 64)", lambda a: a | {"q": a["q"].reshape(8, 64)}),
    (ValueError, "q has 2 queries a head, and decode takes one", lambda a: a | {"q": a["q"].reshape(2, 2, 2, 64)}),
    (ValueError, "do not fit", lambda a: a | {"v": cp.zeros((2, 2, 9, 64), np.float32)}),
    (ValueError, "do not fit", lambda a: a | {"k": cp.zeros((1, 2, 10, 64), np.float32), "v": cp.zeros((1, 2, 10, 64), np.float32)}),
    (ValueError, "D = 40 is not a multiple of 16", lambda a: {n: cp.zeros((*x.shape[:-1], 40), np.float32) for n, x in a.items()}),
    (ValueError, "D = 144 is not", lambda a: {n: cp.zeros((*x.shape[:-1], 144), np.float32) for n, x in a.items()}),
    (ValueError, "3 query heads cannot share 2", lambda a: a | {"q": cp.zeros((2, 3, 64), np.float32)}),
    (ValueError, "k is not contiguous", lambda a: a | {"k": cp.zeros((2, 2, 10, 128), np.float32)[..., ::2]}),
    (ValueError, "v does not start at a multiple of 16 bytes", lambda a: a | {"v": cp.zeros(2561, np.float32)[1:].reshape(2, 2, 10, 64)}),
    (ValueError, "splits = 0", lambda a: a | {"splits": 0}),
    (TypeError, "lengths must be an int32 cp array", lambda a: a | {"lengths": [3, 4]}),
    (TypeError, "lengths must be an int32 cp array", lambda a: a | {"lengths": cp.zeros(2, np.int64)}),
    (ValueError, "one length for each of the 2 sequences", lambda a: a | {"lengths": cp.zeros(3, np.int32)}),
])
def test_refused(error, words, change):
    arrays = {"q": cp.asarray(Q), "k": cp.asarray(K), "v": cp.asarray(K)}
    with pytest.raises(error) as refused:
        decode(**change(arrays))
    assert words in str(refused.value)


@pytest.mark.parametrize("q, k", [((0, 4, 64), (0, 2, 10, 64)), ((2, 0, 64), (2, 0, 10, 64)), ((2, 0, 64), (2, 2, 10, 64))])
def test_nothing_to_do(q, k):
    o, lse = decode(cp.zeros(q, np.float32), *(cp.zeros(k, np.float32) for _ in range(2)))
    assert o.shape == q and lse.shape == q[:2]


# -------------------------------------------------------------------------------------------------- the compiler, a GPU


@pytest.mark.parametrize("arch", [75, 80, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiles_without_spills(arch, dtype, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the test packages cuda-bindings and nvidia-cuda-nvrtc")
    from test_nvrtc import compile_for, spills

    monkeypatch.setattr("helpers.decode.capability", lambda: arch)
    for D, group in ((48, 2), (64, 1), (64, 4), (128, 1), (128, 8)):
        p = plan.__wrapped__(1, group, 1, 1000, D, dtype)
        assert p.file == ("decode_grouped.cu" if arch >= 80 and dtype != "float32" and group > 1 and D in (64, 128) else "decode.cu")
        log, ptx = compile_for(load(f"attention/{p.file}"), f"sm_{arch}{'a' * (arch == 90)}", list(p.options))
        assert set(spills(log)) == {("0", "0", "0")} and "warning" not in log, log
        assert ptx.count("ld.global.nc.v4") >= 4, "the cache is read 16 bytes at a time"


@pytest.mark.gpu
@pytest.mark.parametrize("B, Hq, Hkv, Sk, D", [(1, 8, 8, 32_768, 128), (2, 32, 8, 9_999, 64), (1, 64, 8, 40_001, 128),
                                               (1, 1, 1, 500_000, 96)])
@every_dtype
def test_long_caches_on_a_gpu(B, Hq, Hkv, Sk, D, dtype):
    """Against float64 on the GPU; a hundred repeats give the same bits."""
    assert on_gpu
    generator = torch.Generator("cuda").manual_seed(Sk)
    q, k, v = (torch.randn(shape, generator=generator, device="cuda").to(DTYPES[dtype]) for shape in
               ((B, Hq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, D)))
    as_cp = [cp.from_dlpack(t.view(torch.int16)).view(numpy_type(dtype)) if t.element_size() == 2 else cp.from_dlpack(t) for t in (q, k, v)]
    o, lse = decode(*as_cp)
    scores = torch.einsum("bhgd,bhkd->bhgk", q.double().view(B, Hkv, -1, D), k.double()) * D**-0.5
    expected = torch.einsum("bhgk,bhkd->bhgd", scores.softmax(-1), v.double()).reshape(B, Hq, D).cpu().numpy()
    atol = {"float32": 2e-6, "float16": 2e-5, "bfloat16": 2e-4}[dtype]
    assert not np.abs(cp.asnumpy(o).astype(np.float64) - expected).max() > atol
    assert reference.agrees(cp.asnumpy(lse), scores.logsumexp(-1).reshape(B, Hq).cpu().numpy(), atol=1e-5, rtol=INF)
    for _ in range(100):
        again, _ = decode(*as_cp)
        assert bool((again.view(np.uint8) == o.view(np.uint8)).all())

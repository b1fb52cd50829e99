"""Attention on a Hopper GPU against float64, its refusals, its schedule, its tensor maps, and what the compiler makes of it.

On a GPU of compute capability 9.0 the kernels run there, over the whole product of shapes; elsewhere hopper_emulator runs a part that
meets each of them.  What only a GPU can show is skipped there.
"""

import os
import re
from itertools import product

import hopper_emulator
import numpy as np
import pytest
from test_attention import DTYPES, SHAPES, qkv, unfused
from test_kernels import memory_that_held_nan
from test_nvrtc import compile_for, spills

from helpers import hopper, reference, snippets
from helpers.device import cp, on_gpu
from helpers.hopper import BEST, FEW_KEYS, KEYS, STEPS, Tuning

NAN, INF = np.nan, np.inf
IS_HOPPER = on_gpu and str(cp.cuda.Device().compute_capability) == "90"
only_hopper = pytest.mark.skipif(not IS_HOPPER, reason="needs a GPU of compute capability 9.0, such as an H100 or H200")
each_step = pytest.mark.parametrize("step", STEPS)
GROUPS = (1, 4)                                 # heads of q for one of k
TUNINGS = [(64, Tuning(192, 2, 3, False, True, True)), (64, Tuning(80, 3, 2, True, True, True)),
           (64, Tuning(64, 4, 4, True, True, True, 2)), (64, Tuning(176, 3, 2)), (64, Tuning(192, 3, 2, True, by_fma=1)),
           (128, Tuning(160, 2, 2, True, True, True)), (128, Tuning(96, 2, 3, False, True)),
           (128, Tuning(96, 3, 2)), (128, Tuning(64, 3, 4, True))]


def cases():
    """(step, dtype, D, heads of q for one of k, Sq, Sk, causal)."""
    for number, case in enumerate(product(STEPS, ("float16", "bfloat16"), hopper.HEAD_DIMENSIONS, GROUPS, SHAPES, (False, True))):
        step, dtype, D, group, (Sq, Sk), causal = case
        variant = (dtype == "float16", D == 128, group == 4)
        of_step = [(False, False, False), (True, True, True), (False, True, True), (True, False, True)][list(STEPS).index(step) % 4]
        small = max(Sq, Sk) < 300
        if IS_HOPPER or variant == of_step and small or step == BEST and variant == (False, True, True):
            yield pytest.param(*case[:4], Sq, Sk, causal, id=f"{step}-{dtype}-{D}-{group}-{Sq}x{Sk}{'-causal' * causal}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the emulator's programs are kept."""
    if not IS_HOPPER and not hopper_emulator.COMPILER:
        pytest.skip("needs g++ to run the kernels without a GPU")
    return tmp_path_factory.mktemp("hopper")


@pytest.fixture
def run(folder, monkeypatch):
    """A call with NumPy arrays, on the GPU with memory that held NaN; (o, lse) as NumPy arrays, and nothing checked.

    Lazy steps are so for short sequences too, but not in test_shapes.
    """
    monkeypatch.setattr(hopper, "FEW_KEYS", 0)
    if not IS_HOPPER:
        return lambda step, q, k, v, **how: hopper_emulator.run(folder, q, k, v, step, **how)

    def call(step, q, k, v, seed=0, **how):
        with memory_that_held_nan():
            return tuple(map(cp.asnumpy, hopper.attention(*map(cp.asarray, (q, k, v)), step, **how)))

    return call


def assert_right(o, lse, q, k, v, **how):
    """O within twice the error of the unfused computation, LSE within rounding of float32; NaN never passes."""
    assert o.dtype == q.dtype and o.shape == q.shape and lse.dtype == np.float32 and lse.shape == q.shape[:-1]
    expected, expected_lse = reference.attention(q, k, v, **how)
    error = np.abs(unfused(q, k, v, **how).astype(np.float64) - expected).max(initial=0)
    assert reference.agrees(o, expected, atol=1e-6 + 2 * error, rtol=INF), (np.abs(o - expected).max(), error)
    largest = np.max(np.abs(expected_lse), where=np.isfinite(expected_lse), initial=1)
    assert reference.agrees(lse, expected_lse, atol=2e-6 * largest, rtol=INF)


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("step, dtype, D, group, Sq, Sk, causal", list(cases()))
def test_shapes(run, monkeypatch, step, dtype, D, group, Sq, Sk, causal):
    monkeypatch.setattr(hopper, "FEW_KEYS", FEW_KEYS)
    inputs = qkv(dtype, Sq, Sk, D, Hq=group, Hkv=1)
    assert_right(*run(step, *inputs, causal=causal), *inputs, causal=causal)


@pytest.mark.parametrize("D, tuning", TUNINGS)
@pytest.mark.parametrize("step", ["hopper_turns", BEST] if IS_HOPPER else [BEST])
def test_tunings(run, step, D, tuning):
    inputs = qkv("bfloat16", 290, 400, D, Hq=4, Hkv=2)
    for causal in (False, True):
        assert_right(*run(step, *inputs, causal=causal, tuning=tuning), *inputs, causal=causal)


@each_step
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_scale(run, step, scale):
    inputs = qkv("bfloat16", 40, 290, 64)
    assert_right(*run(step, *inputs, scale=scale), *inputs, scale=scale)


@each_step
def test_queries_that_see_nothing(run, step):
    q, k, v = qkv("bfloat16", 450, 20, 64)
    o, lse = run(step, q, k, v, causal=True)
    assert (o[:, :, :430] == 0).all() and (lse[:, :, :430] == -INF).all()
    assert np.isfinite(lse[:, :, 430:]).all()


@each_step
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("key", [0, 150])
def test_a_nan_or_inf_score_spoils_its_queries_only(run, step, key, value):
    q, k, v = qkv("bfloat16", 200, 200, 64)
    q[..., 0], k[0, 0, key, 0] = 1, value
    o, lse = run(step, q, k, v, causal=True)
    spoiled = np.arange(200) >= key
    assert np.isnan(o[0, 0, spoiled].astype(np.float32)).all() and np.isnan(lse[0, 0, spoiled]).all()
    assert np.isfinite(o[0, 0, ~spoiled].astype(np.float32)).all() and np.isfinite(o[0, 1].astype(np.float32)).all()
    assert np.isfinite(lse[0, 1]).all()


@each_step
def test_leading_tiles_of_minus_infinity(run, step):
    q, k, v = qkv("bfloat16", 10, 500, 64)
    q[..., 0], k[:, :, :400, 0] = 1, -INF
    o, lse = run(step, q, k, v)
    expected, expected_lse = reference.attention(q, k[:, :, 400:], v[:, :, 400:])
    assert np.abs(o - expected).max() < 2e-2 and np.abs(lse - expected_lse).max() < 1e-5
    k[..., 0] = -INF
    o, lse = run(step, q, k, v)
    assert (o == 0).all() and (lse == -INF).all()


@each_step
@pytest.mark.parametrize("size", [1e-6, 30.0, 3e4, 1e15])
def test_scores_of_any_magnitude(run, step, size):
    q, k, v = qkv("bfloat16", 20, 340, 64, size=size)
    o, lse = run(step, q, k, v)
    assert np.isfinite(o.astype(np.float32)).all() and np.isfinite(lse).all() and (np.abs(o) <= np.abs(v).max()).all()
    if size < 100:                                        # above, the rounding of a score decides who wins
        assert_right(o, lse, q, k, v)


@each_step
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("order, size", [(1, 60), (-1, 60), (1, 6), (1, 1500), (-1, 1500)])
def test_scores_that_rise_or_fall_all_along(run, step, dtype, order, size):
    """Rising by little in each tile: O is rescaled late.  In the thousands: powers are computed from differences."""
    q, k, v = qkv(dtype, 9, 700, 64)
    q[:], k[..., 0] = 0, order * np.linspace(-size, size, 700)
    q[..., 0] = 4
    assert_right(*run(step, q, k, v), q, k, v)


# ------------------------------------------------------------------------------------ repeats, schedule


@each_step
def test_the_order_of_threads_does_not_matter(run, folder, step):
    """On a GPU 100 repeats, elsewhere some orders of warps and delays of copies: always the same bits."""
    inputs = qkv("bfloat16", 700, 500, 64)
    results = {b"".join(t.tobytes() for t in run(step, *inputs, causal=True, seed=seed)) for seed in range(101 if IS_HOPPER else 4)}
    assert len(results) == 1


@pytest.mark.parametrize("Sq, Sk, B, H, blocks", [(1, 1, 1, 1, 1), (900, 700, 2, 3, 4), (1024, 1024, 16, 16, 132), (300, 2000, 1, 2, 132)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("consumers", [2, 3])
def test_each_item_is_done_once_heavy_ones_first(Sq, Sk, B, H, blocks, causal, consumers):
    sizes, tuning = hopper.Sizes(B, H, H, Sq, Sk, 64), Tuning(consumers=consumers)
    table = hopper.schedule(sizes, tuning, causal, blocks)
    weights = np.append(np.tile(hopper.item_weights(sizes, tuning, causal), sizes.BH), 0)       # that of -1 is 0
    assert sorted(table[table >= 0]) == list(range(len(weights) - 1)) and (table[-1] == -1).all()
    assert all((column[i:] == -1).all() for column in table.T for i in [np.argmax(column == -1)])
    load = weights[table].sum(axis=0)
    assert load.max() <= weights.sum() / blocks + weights.max() * (1 - 1 / blocks)             # Graham's bound
    if causal:
        assert (np.diff(weights[table], axis=0) <= 0).all()


def test_weights_of_items():
    sizes = hopper.Sizes(1, 1, 1, 300, 400, 64)                                                 # from the last query backwards
    assert hopper.item_weights(sizes, Tuning(128, 2), False).tolist() == [5, 5, 3]              # the last has 44 queries: one consumer
    assert hopper.item_weights(sizes, Tuning(128, 2), True).tolist() == [1 + (3 + 4) / 2, 1 + (2 + 3) / 2, 1 + 2 / 2]
    assert hopper.item_weights(sizes._replace(Sk=20), Tuning(128, 2), True).tolist() == [1.5, 1, 1]


def test_grid_and_threads():
    sizes = hopper.Sizes(4, 16, 16, 4096, 4096, 128)
    assert hopper.geometry(BEST, Tuning(consumers=3), sizes, 132) == ((132,), 512)
    assert hopper.geometry(BEST, Tuning(), sizes._replace(B=1, Hq=1, Hkv=1, Sq=100), 132) == ((1,), 384)
    assert hopper.geometry("hopper_ring", Tuning(), sizes, 132) == ((64, 32), 384)
    assert hopper.geometry("hopper_wgmma", Tuning(stages=1), sizes, 132) == ((64, 32), 256)


WRONG = {                                       # an edit of the source -> what is noticed; in other sizes than 200, 700, 128
    "the swizzle's pattern is half as long": (BEST, Tuning(), ("1024 >> 4", "512 >> 4"), "not right"),
    "the next 64 columns are looked for elsewhere": (BEST, Tuning(), ("sizeof V[0])", "16)"), "not right"),
    "scores are read before they are there": ("hopper_overlap", Tuning(overlap=True), ("wait_wgmma<1>()", "wait_wgmma<2>()"), "not right"),
    "the output is rescaled while it is computed": ("hopper_overlap", Tuning(overlap=True),
                                                    ("wait_wgmma<0>();\n        settle(s.O);", ";"), "not right"),
    "a tile is let go before it is read": (BEST, Tuning(),
                                           ("wait_wgmma<0>();\n        settle(s.O);\n        release(memory.v_empty[stage]);",
                                            "release(memory.v_empty[stage]);\n        wait_wgmma<0>();"), "not right"),
    "no mask": (BEST, Tuning(), ("mask(S, seen, tile * KEYS);", ""), "not right"),
    "a tile is never let go": (BEST, Tuning(), ("release(memory.k_empty[stage]);", ""), "all threads wait"),
    "warps drift apart": (BEST, Tuning(64, 4), ("    join_warps();\n    release(memory.k_empty", "    release(memory.k_empty"),
                          "all threads wait", 512, 512, 64),
    "an output leaves before all lanes have put theirs": (BEST, Tuning(), ("    seen_by_copies();\n    join_warps();\n", ""), "not right"),
    "an output is not swizzled": (BEST, Tuning(), ("((n % 8) ^ (i % 8))", "(n % 8)"), "not right"),
    "a block ends before its outputs have left": (BEST, Tuning(), ("        wait_stores();\n    }", "    }"), "not right"),
}


@pytest.mark.skipif(IS_HOPPER, reason="shows that the emulator notices mistakes")
@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_noticed(folder, name):
    step, tuning, edit, noticed, *sizes = WRONG[name]
    inputs = qkv("bfloat16", *(sizes or (200, 700, 128)))
    outcomes = set()
    for seed in range(6):
        try:
            assert_right(*hopper_emulator.run(folder, *inputs, step, True, tuning=tuning, seed=seed, edit=edit), *inputs, causal=True)
            outcomes.add("right")
        except AssertionError as error:
            outcomes.add("all threads wait" if "all threads wait" in str(error) else "not right")
        if noticed in outcomes:
            return
    assert noticed in outcomes, outcomes


# ------------------------------------------------------------------------------------------- refusals


def zeros(*shape, dtype="bfloat16"):
    return cp.asarray(np.zeros(shape, DTYPES.get(dtype, dtype)))


REFUSED = {
    "float32": (lambda: ([zeros(1, 1, 2, 64, dtype="float32")] * 3, {}), TypeError, "float16 or bfloat16"),
    "two dtypes": (lambda: ([zeros(1, 1, 2, 64), *[zeros(1, 1, 2, 64, dtype="float16")] * 2], {}), TypeError, "one dtype"),
    "D = 96": (lambda: ([zeros(1, 1, 2, 96)] * 3, {}), ValueError, "neither 64 nor 128.*attention_mma_bands"),
    "five heads for two": (lambda: ([zeros(1, 5, 2, 64), *[zeros(1, 2, 2, 64)] * 2], {}), ValueError, "multiple"),
    "unaligned": (lambda: ([zeros(65)[1:].reshape(1, 1, 1, 64)] * 3, {}), ValueError, "16 bytes"),
    "scale 0": (lambda: ([zeros(1, 1, 2, 64)] * 3, {"scale": 0.0}), ValueError, "not above 0.*attention_mma_bands"),
    "scale NaN": (lambda: ([zeros(1, 1, 2, 64)] * 3, {"scale": NAN}), ValueError, "not above 0"),
    "no such step": (lambda: ([zeros(1, 1, 2, 64)] * 3, {"step": "hopper_magic"}), ValueError, BEST),
    "keys": (lambda: ([zeros(1, 1, 2, 64)] * 3, {"tuning": Tuning(keys=72)}), ValueError, "wgmma.h has a wrapper"),
    "consumers": (lambda: ([zeros(1, 1, 2, 64)] * 3, {"tuning": Tuning(consumers=5)}), ValueError, "2, 3 or 4"),
    "too much shared memory": (lambda: ([zeros(1, 1, 2, 128)] * 3, {"tuning": Tuning(stages=4)}), ValueError, "232,448"),
    "a ring without one": (lambda: ([zeros(1, 1, 2, 64)] * 3, {"step": "hopper_wgmma", "tuning": Tuning()}), ValueError, "no ring"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    make, error, words = REFUSED[name]
    arrays, how = make()
    with pytest.raises(error, match=words):
        hopper.attention(*arrays, **how)


@pytest.mark.skipif(on_gpu, reason="the words without a GPU")
def test_without_a_gpu_it_says_what_to_use():
    with pytest.raises(ValueError, match="compute capability 9.0, and none is usable here: use helpers.attention.attention.* runs here"):
        hopper.attention(*[zeros(1, 1, 2, 64)] * 3)


@pytest.mark.parametrize("capability", ["80", "89", "100", "120"])
def test_another_gpu_is_refused(monkeypatch, capability):
    class Device:
        compute_capability = capability

    monkeypatch.setattr(hopper, "on_gpu", True)
    monkeypatch.setattr(hopper.cp, "cuda", type("cuda", (), {"Device": Device}), raising=False)
    with pytest.raises(ValueError, match=rf"wgmma exists on no other; this one has {int(capability) / 10}: use .*attention_mma_bands"):
        hopper._check_device()


@only_hopper
def test_no_keys_no_queries_no_heads():
    q = zeros(1, 2, 3, 64)
    o, lse = hopper.attention(q, *[zeros(1, 2, 0, 64)] * 2)
    assert (cp.asnumpy(o) == 0).all() and (cp.asnumpy(lse) == -INF).all()
    assert hopper.attention(zeros(1, 2, 0, 64), q, q)[0].shape == (1, 2, 0, 64)
    assert hopper.attention(*[zeros(1, 0, 3, 64)] * 3)[1].shape == (1, 0, 3)


# ---------------------------------------------------------------------------------------- tensor maps


def test_fields_of_a_tensor_map():
    assert hopper.map_fields((2, 8, 1000, 128), 96) == ((128, 1000, 16), (256, 256_000), (64, 96, 1))
    assert hopper.map_fields((5, 7, 64), 64) == ((64, 7, 5), (128, 896), (64, 64, 1))


def test_what_the_driver_is_told(monkeypatch):
    """Data type, rank, address, sizes, strides, box, steps, no interleave, the swizzle of 128 bytes, zeros past the end."""
    told = {}

    def encode(to, kind, rank, address, sizes, strides, box, steps, *modes):
        told.update(to=to.value, kind=kind, address=address.value, sizes=[*sizes], strides=[*strides], box=[*box], steps=[*steps],
                    modes=modes)
        return told.get("error", 0)

    monkeypatch.setattr(hopper, "_driver", lambda: type("driver", (), {"cuTensorMapEncodeTiled": staticmethod(encode)}))
    for dtype, kind in (("float16", 6), ("bfloat16", 9)):
        array = zeros(2, 3, 50, 128, dtype=dtype)
        encoded = hopper.tensor_map(array, 112)
        assert encoded.ctypes.data == told["to"] and told["to"] % 128 == 0 and encoded.nbytes == 128 and encoded.size == 1
        assert told["kind"] == kind and told["address"] == array.data.ptr
        assert (told["sizes"], told["strides"], told["box"], told["steps"]) == ([128, 50, 6], [256, 12_800], [64, 112, 1], [1, 1, 1])
        assert told["modes"] == (0, 3, 2, 0)
    told["error"] = 1
    with pytest.raises(RuntimeError, match=r"sizes \(128, 50, 6\).*error 1"):
        hopper.tensor_map(array, 112)


# ------------------------------------------------------------------------------------------ compiling


def test_the_wrappers_are_as_generated():
    assert snippets.text("attention/hopper/wgmma.h") == hopper.wgmma_header()


@pytest.mark.parametrize("n", [8, 64, 192])
@pytest.mark.parametrize("a_in_registers", [False, True])
def test_a_wrapper_names_each_result_once(n, a_in_registers):
    text = hopper.wgmma_wrapper(n, a_in_registers)
    instruction = " ".join(re.findall(r'"([^"]*)"', text.split(': "+f"')[0]))
    count = n // 2
    assert re.findall(r'"\+f"\(c\[(\d+)\]\[(\d+)\]\)', text) == [(str(i // 4), str(i % 4)) for i in range(count)]
    assert re.search(r"\{(%0,[^}]*)\}", instruction)[1].replace(" ", "").split(",") == [f"%{i}" for i in range(count)]
    operands = 5 if a_in_registers else 3
    assert {int(i) for i in re.findall(r"%(\d+)", instruction)} == set(range(count + operands))
    assert re.search(r"%\d+, 1, 1, 1, 1; \}" if a_in_registers else r"%\d+, p, 1, 1, 0, 0; \}", instruction)
    assert max(map(len, text.splitlines())) <= 140


COMPILED = sorted({(step, D, tuning) for step, chosen in STEPS.items() for D, causal in chosen.tunings
                   for tuning in (chosen.tuning(D, causal, Sk) for Sk in (FEW_KEYS, 4096, 16_384))}
                  | {(BEST, D, tuning) for D, tuning in TUNINGS}, key=str)


@pytest.mark.parametrize("step, D, tuning", COMPILED)
def test_compiles_without_spills_and_wgmma_stays_asynchronous(step, D, tuning):
    for dtype in ("bfloat16", "float16"):
        options = [o for o in hopper.options(step, tuning, D, dtype) if not o.startswith("-arch")]
        source = snippets.load(STEPS[step].file)
        assert f"{STEPS[step].entry}(" in source
        log, ptx = compile_for(f"{source}\nstatic_assert(sizeof(Memory) == {tuning.shared_mem(D)}, \"\");", "sm_90a", options)
        assert set(spills(log)) == {("0", "0", "0")}, log
        assert "warning" not in log and "(C75" not in log, log
        name = "f16.f16" if dtype == "float16" else "bf16.bf16"
        for n, k in ((tuning.keys, D), (D, tuning.keys)):
            assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{name}") >= k // 16


def test_what_does_not_fit_the_registers():
    """160 registers a thread hold O, S and P of 128 keys for D = 64, but not of 144, and not for D = 128: wgmma is serialised."""
    for D, keys in ((64, 144), (128, 128)):
        tuning = Tuning(keys, 3, 2, overlap=True)
        options = [o for o in hopper.options(BEST, tuning, D, "bfloat16") if not o.startswith("-arch")]
        log, _ = compile_for(snippets.load(STEPS[BEST].file), "sm_90a", options)
        assert "C7512" in log and set(spills(log)) != {("0", "0", "0")}, log


def test_each_number_of_keys_has_a_wrapper():
    text = snippets.text("attention/hopper/wgmma.h")
    assert [int(n) for n in re.findall(r"WGMMA\((\d+)\) \"", text)] == [*KEYS, *hopper.HEAD_DIMENSIONS]


@only_hopper
@pytest.mark.skipif("HOPPER_LONG" not in os.environ, reason="HOPPER_LONG=1 asks for it: long sequences against the main path's kernel")
@pytest.mark.parametrize("D", hopper.HEAD_DIMENSIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences(D, causal):
    from helpers.attention import attention
    inputs = [cp.asarray(t) for t in qkv("bfloat16", 16_384, 16_000, D)]
    (o, lse), (expected, expected_lse) = hopper.attention(*inputs, causal=causal), attention(*inputs, causal=causal)
    assert np.abs(cp.asnumpy(o).astype(np.float32) - cp.asnumpy(expected).astype(np.float32)).max() < 2e-2
    seen = np.isfinite(cp.asnumpy(expected_lse))
    assert np.abs(cp.asnumpy(lse)[seen] - cp.asnumpy(expected_lse)[seen]).max() < 1e-4

"""The small helpers: snippets, device choice, records, counting on either device, and what they say to bad input."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from helpers import bench, cpu_device, load, measure, record, show_diff, show_snippet, snippets
from helpers.device import cp, on_gpu


def python(code: str, **environment):
    """Run `code` in a fresh interpreter; (exit status, stdout, stderr)."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr


# ------------------------------------------------------------------------------------------------ snippets


def test_unknown_snippet_names_the_closest():
    with pytest.raises(FileNotFoundError, match=r"no snippet 'safe/v1_blok.cu'.*safe/v1_block.cu"):
        load("safe/v1_blok.cu")


def test_a_snippet_outside_the_folder_is_refused():
    with pytest.raises(FileNotFoundError, match="no snippet"):
        load("../README.md")


@pytest.mark.parametrize("name", snippets.names())
def test_includes_are_pasted_in_and_line_numbers_kept(name):
    source = load(name)
    assert not snippets._INCLUDE.search(source), "a local include is left"
    starts = [line for line in source.splitlines() if line.startswith("#line 1 ")]
    assert len(starts) == len(set(starts)), "a header is there twice"
    file, number = None, 0
    for line in source.splitlines():
        if line.startswith("#line"):
            _, at, file = line.split()
            number, file = int(at), file.strip('"')
        else:
            original = snippets.text(file).splitlines()
            assert line == original[number - 1]
            number += 1


def test_compile_errors_carry_the_line_of_the_file():
    source = load("safe/v2_warp_shuffle.cu").replace("// Pass 3: the quotient.", "no_such_name();")
    number = next(i for i, line in enumerate(snippets.text("safe/v2_warp_shuffle.cu").splitlines(), 1) if "Pass 3" in line)
    kernel = cpu_device.RawKernel(source, "softmax_safe_v2")
    with pytest.raises(cpu_device.CompileException, match=rf"safe/v2_warp_shuffle.cu:{number}:.*no_such_name"):
        kernel.compile()


def test_show_snippet_and_show_diff(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(snippets, "display", lambda markdown: shown.append(markdown.data))
    show_snippet("safe/v1_block.cu", "// Pass 1", "__syncthreads")
    assert shown[-1].startswith("```cpp\n    // Pass 1") and shown[-1].endswith("__syncthreads();\n```")
    show_diff("safe/v0_thread_per_row.cu", "safe/v1_block.cu")
    assert shown[-1].startswith("```diff\n--- safe/v0") and "\n+    __shared__ float partial" in shown[-1]
    with pytest.raises(ValueError, match="has no line with 'nowhere'"):
        show_snippet("safe/v1_block.cu", "nowhere")


# -------------------------------------------------------------------------------------------------- device


def test_forced_cpu_device_says_why():
    status, out, _ = python("from helpers import device_sentence; print(device_sentence)", SOFTMAX_DEVICE="cpu")
    assert status == 0 and "CPU device" in out and "SOFTMAX_DEVICE=cpu" in out


@pytest.mark.skipif(on_gpu, reason="there is a GPU")
def test_insisting_on_a_gpu_without_one_fails_with_the_reason():
    status, _, err = python("import helpers", SOFTMAX_DEVICE="gpu")
    assert status != 0 and "no GPU is usable" in err


def test_a_misspelt_wish_is_an_error():
    status, _, err = python("import helpers", SOFTMAX_DEVICE="cuda")
    assert status != 0 and "cpu, gpu or unset" in err


# ------------------------------------------------------------------------------------------------ counting

COPY = 'extern "C" __global__ void copy(const float *x, float *y, int n) { int i = threadIdx.x; if (i < n) y[i] = x[i]; }'


def test_count_leaves_a_gpu_launch_alone_and_counts_exactly():
    kernel, x = cp.RawKernel(COPY, "copy"), cp.asarray(np.ones(48, np.float32))
    counters = measure.count(kernel, (1,), (64,), (x, cp.empty_like(x), np.int32(48)))
    assert (counters.loads.instructions, counters.loads.requests, counters.loads.sectors) == (48, 2, 6)
    assert counters.of("y")[1].bytes == 192
    with pytest.raises(KeyError, match="touched x, y"):
        counters.of("z")


def test_count_refuses_a_view_on_either_device():
    kernel, x = cp.RawKernel(COPY, "copy"), cp.asarray(np.ones((8, 8), np.float32))
    with pytest.raises(ValueError, match="not contiguous"):
        measure.count(kernel, (1,), (64,), (x[:, ::2], cp.empty_like(x), np.int32(32)))


def test_count_reports_unwritten_outputs_on_request():
    kernel, x = cp.RawKernel(COPY, "copy"), cp.asarray(np.ones(48, np.float32))
    y = cp.empty_like(x)
    with pytest.raises(cpu_device.KernelError, match="left 8 elements of y unwritten, the first is y.40."):
        measure.count(kernel, (1,), (64,), (x, y, np.int32(40)), outputs=(y,))


def test_access_map_lists_every_access_in_order():
    kernel, x = cp.RawKernel(COPY, "copy"), cp.asarray(np.ones(48, np.float32))
    events = measure.access_map(kernel, (1,), (64,), (x, cp.empty_like(x), np.int32(48))).events
    assert len(events) == 96 and (np.diff(events["step"].astype(int)) >= 0).all()
    loads = events[events["kind"] == 0]
    assert (loads["address"] == 4 * loads["thread"].astype(int)).all()


# ------------------------------------------------------------------------------------------------- records


@pytest.mark.skipif(on_gpu, reason="times are measured there")
def test_times_are_not_taken_on_the_cpu_device():
    with pytest.raises(RuntimeError, match="record"):
        measure.time_us(lambda: None)


def test_records_are_complete():
    needed = {"device", "driver", "cuda", "cupy", "torch", "date", "commit", "command"}
    files = list(measure.RESULTS.glob("*.json"))
    assert files
    for file in files:
        data = json.loads(file.read_text())
        assert needed <= set(data["run"]) and all(data["run"][k] for k in needed), file.name
        for row in data["rows"]:
            assert {"topic", "name"} <= set(row) and (row["topic"] == "sanitizer" or {"peer", "shape", "dtype"} <= set(row)), file.name
            if row.get("us"):
                assert row["us_p10"] <= row["us"] <= row["us_p90"] and row["repeats"] >= 5, file.name


def test_unknown_records_name_those_there_are():
    with pytest.raises(FileNotFoundError, match="h200-.*-ladders.json"):
        record("nonsense")
    with pytest.raises(KeyError, match="0 rows"):
        record("ladders").find(name="nonsense")


def test_bench_refuses_unknown_topics_and_missing_gpus():
    with pytest.raises(SystemExit, match="no topic 'nonsense'; there are ladders"):
        bench.main("nonsense")
    if not on_gpu:
        with pytest.raises(SystemExit, match="measures a GPU and none is usable"):
            bench.main("ladders")

"""The CPU device does what CUDA and CuPy do: the API's rules, the language, exact counters, and whatever happens, it goes on."""

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from helpers import cpu_device as cp
from helpers.cpu_device import CompileException, CUDADriverError, KernelError, NoCompiler, compiler
from helpers.cpu_device import kernel as kernel_module

ROOT = Path(compiler.__file__).parents[2]
i4, f4 = np.int32, np.float32


@cache
def module(code: str, names: tuple = (), options: tuple = ()):
    return cp.RawModule(code=code, options=options, name_expressions=names)


def get(code: str, name: str, options: tuple = ()):
    return module(code, (), options).get_function(name)


def random(*shape, dtype=f4, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# ------------------------------------------------------------------------------------------ how to launch

BASIC = r"""
extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void reversed(const int* x, int* y, int n) {
    extern __shared__ int s[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
}
extern "C" __global__ void types(int* y, bool b, char c, unsigned short us, unsigned u, long long ll, unsigned long long ull,
                                 float f, double d) {
    y[0] = b + c + us + u + (int)ll + (int)ull + (int)f + (int)d;
}
struct Pair { float a; int b; };
extern "C" __global__ void by_value(int* y, Pair p) { y[0] = (int)p.a * 10 + p.b; }
extern "C" __global__ void nothing() {}
__global__ void mangled(int* y) { y[0] = 1; }
template <class T> __global__ void twice(T* y) { y[threadIdx.x] *= 2; }
"""


def axpy():
    return get(BASIC, "axpy")


def arrays(n=100):
    return cp.asarray(random(n)), cp.zeros(n, f4)


def test_a_launch():
    x, y = arrays()
    assert axpy()((1,), (128,), (x, y, f4(2), i4(100))) is None
    np.testing.assert_array_equal(y.get(), 2 * x.get())


@pytest.mark.parametrize("change, error, says", [
    (lambda x, y: (random(100), y, f4(2), i4(100)), TypeError, r"argument 1 \(x\).*Unsupported type <class 'numpy.ndarray'>.*cp.asarray"),
    (lambda x, y: (x, y, f4(2), 100), TypeError, r"argument 4 \(n\).*Python int is passed as 8 bytes.*np.int32\(100\)"),
    (lambda x, y: (x, y, 2.0, i4(100)), TypeError, r"argument 3 \(a\).*Python float is passed as an 8-byte double.*np.float32\(2.0\)"),
    (lambda x, y: (x, y, np.float64(2), i4(100)), TypeError, r"np.float64.*np.float32"),
    (lambda x, y: (x, y, f4(2), np.int64(100)), TypeError, r"np.int64.*np.int32"),
    (lambda x, y: (x, y, f4(2), f4(100)), TypeError, r"np.float32.*np.int32"),
    (lambda x, y: (x, y, f4(2)), TypeError, r"takes 4 arguments \(x, y, a, n\), but 3 were given"),
    (lambda x, y: (x, y, f4(2), i4(100), i4(1)), TypeError, r"takes 4 arguments.*but 5"),
    (lambda x, y: (x, f4(2), f4(2), i4(100)), TypeError, r"argument 2 \(y\).*pointer"),
    (lambda x, y: (x, y, y, i4(100)), TypeError, r"argument 3 \(a\).*no pointer"),
    (lambda x, y: (x[::2], y, f4(2), i4(50)), ValueError, r"argument 1 \(x\).*not contiguous.*cp.ascontiguousarray"),
    (lambda x, y: [x, y, f4(2), "100"], TypeError, r"Unsupported type"),
    (lambda x, y: x, TypeError, r"arguments must be a tuple"),
])
def test_wrong_arguments(change, error, says):
    with pytest.raises(error, match=says):
        axpy()((1,), (128,), change(*arrays()))


@pytest.mark.parametrize("grid, block, shared, error, says", [
    ((1,), (2048,), 0, CUDADriverError, "at most 1024 threads"),
    ((1,), (32, 33), 0, CUDADriverError, "32x33x1 = 1056"),
    ((1,), (1, 1, 65), 0, CUDADriverError, "64 threads in z"),
    ((0,), (32,), 0, CUDADriverError, "at least 1"),
    ((1,), (0,), 0, CUDADriverError, "at least 1"),
    ((1, 65536), (32,), 0, CUDADriverError, "65,535"),
    ((2**31,), (32,), 0, CUDADriverError, "2,147,483,647"),
    ((1,), (32,), 49153, CUDADriverError, "max_dynamic_shared_size_bytes"),
    (1, (32,), 0, TypeError, "grid must be a tuple"),
    ((1,), 32, 0, TypeError, "block must be a tuple"),
    ((1,), (32.0,), 0, TypeError, "block must be a tuple"),
    ((1, 1, 1, 1), (32,), 0, TypeError, "one to three"),
])
def test_bad_launch_configurations(grid, block, shared, error, says):
    with pytest.raises(error, match=says):
        get(BASIC, "nothing")(grid, block, (), shared_mem=shared)


def test_all_types_of_parameters():
    y = cp.zeros(1, i4)
    get(BASIC, "types")((1,), (1,), (y, True, np.int8(-3), np.uint16(5), np.uint32(7), -100, np.uint64(11), f4(13.5), 17.5))
    assert int(y[0]) == 1 - 3 + 5 + 7 - 100 + 11 + 13 + 17
    many = 'extern "C" __global__ void k(int* y, double a%s) {}' % "".join(f", double a{i}" for i in range(300))
    with pytest.raises(CUDADriverError, match="4,096 bytes of arguments"):
        cp.RawKernel(many, "k")((1,), (1,), (y, *[1.0] * 301))
    value = np.array([(4.0, 2)], dtype=[("a", f4), ("b", i4)])
    get(BASIC, "by_value")((1,), (1,), (y, value))
    assert int(y[0]) == 42
    with pytest.raises(TypeError, match="8 bytes"):
        get(BASIC, "by_value")((1,), (1,), (y, np.array([(4.0, 2.0)], dtype=[("a", f4), ("b", np.float64)])))


def test_contiguous_views_are_arguments_like_any_other():
    x, y = cp.asarray(random(10, 64)), cp.zeros((10, 64), f4)
    axpy()((1,), (128,), (x[3], y[5], f4(1), i4(64)))
    np.testing.assert_array_equal(y.get()[5], x.get()[3])
    assert not y.get()[[0, 4, 6]].any()
    with pytest.raises(KernelError) as caught:  # beyond the array, not beyond the view: as compute-sanitizer sees it
        axpy()((1,), (128,), (x[9], y[5], f4(1), i4(65)))
    assert (caught.value.array, caught.value.index) == ("x", 64)


def test_dynamic_shared_memory_follows_cupys_rule():
    kernel = cp.RawKernel(BASIC, "reversed")
    n = 20_000
    x, y = cp.arange(n, dtype=i4), cp.zeros(n, i4)
    with pytest.raises(CUDADriverError, match="set kernel.max_dynamic_shared_size_bytes first"):
        kernel((1,), (256,), (x, y, i4(n)), shared_mem=4 * n)
    kernel.max_dynamic_shared_size_bytes = 4 * n
    kernel((1,), (256,), (x, y, i4(n)), shared_mem=4 * n)
    np.testing.assert_array_equal(y.get(), x.get()[::-1])
    kernel.max_dynamic_shared_size_bytes = 232_448
    n = 232_448 // 4
    x, y = cp.arange(n, dtype=i4), cp.zeros(n, i4)
    kernel((1,), (1024,), (x, y, i4(n)), shared_mem=4 * n)
    np.testing.assert_array_equal(y.get(), x.get()[::-1])
    with pytest.raises(CUDADriverError, match="227 KB"):
        kernel.max_dynamic_shared_size_bytes = 232_449


def test_static_shared_memory_ends_at_48_kb():
    code = 'extern "C" __global__ void k(float* y) {{ __shared__ float s[{0}]; s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[31 - threadIdx.x]; }}'
    kernel = cp.RawKernel(code.format(12288), "k")
    kernel((1,), (32,), (cp.zeros(32, f4),))
    assert kernel.shared_size_bytes == 48 << 10
    with pytest.raises(CUDADriverError, match="227 KB"):
        kernel.max_dynamic_shared_size_bytes = (227 << 10) - (48 << 10) + 1
    dynamic = cp.RawKernel('extern "C" __global__ void k(float* y) { extern __shared__ float d[]; __shared__ float s[8192]; '
                           's[threadIdx.x] = d[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[31 - threadIdx.x] + d[0]; }', "k")
    dynamic((1,), (32,), (cp.zeros(32, f4),), shared_mem=16 << 10)
    with pytest.raises(CUDADriverError, match="max_dynamic_shared_size_bytes"):  # 32 KB and 17 KB are more than 48
        dynamic((1,), (32,), (cp.zeros(32, f4),), shared_mem=17 << 10)
    with pytest.raises(CompileException, match="49,156 bytes.*extern __shared__"):
        cp.RawKernel(code.format(12289), "k").compile()


def test_names_of_kernels():
    with pytest.raises(CUDADriverError, match='mangled is not declared extern "C"'):
        cp.RawKernel(BASIC, "mangled")((1,), (1,), (cp.zeros(1, i4),))
    with pytest.raises(CUDADriverError, match="twice is a template: use RawModule with name_expressions"):
        cp.RawKernel(BASIC, "twice").compile()
    with pytest.raises(CUDADriverError, match="kernels in this source: axpy, reversed, types, by_value, nothing"):
        cp.RawKernel(BASIC, "axpi").compile()
    with pytest.raises(CUDADriverError, match="CUDA_ERROR_NOT_FOUND"):
        module(BASIC).get_function("axpi")


def test_kernels_that_the_preprocessor_leaves_out():
    code = """#ifdef WANTED
    extern "C" __global__ void wanted(int* y) { y[0] = 1; }
    #else
    extern "C" __global__ void other(int* y) { y[0] = 2; }
    #endif
    extern "C" __global__ void always(int* y) { y[0] = 3; }"""
    y = cp.zeros(1, i4)
    for options, there, absent in (((), {"other": 2, "always": 3}, "wanted"), (("-DWANTED",), {"wanted": 1, "always": 3}, "other")):
        for name, value in there.items():
            cp.RawKernel(code, name, options)((1,), (1,), (y,))
            assert int(y[0]) == value
        with pytest.raises(CUDADriverError, match=f"leaves {absent} out"):
            cp.RawKernel(code, absent, options).compile()
    with pytest.raises(CompileException, match="mistake"):
        cp.RawKernel(code + "int f() { return mistake; }", "always").compile()


def test_kernels_that_a_macro_writes():
    code = """#define KERNEL(T) extern "C" __global__ void double_##T(T* y) { y[threadIdx.x] *= 2; }
    KERNEL(int) KERNEL(float)
    extern "C" __global__ void plain(int* y) { y[threadIdx.x] = 1; }"""
    m = cp.RawModule(code=code)
    for name, dtype in (("double_int", i4), ("double_float", f4)):
        y = cp.full(4, 3, dtype)
        m.get_function(name)((1,), (4,), (y,))
        assert y.get().tolist() == [6] * 4
    with pytest.raises(CUDADriverError, match="plain"):
        m.get_function("double_char")


def test_templates_by_name_expression():
    names = ("twice<float>", "twice<long long>")
    m = cp.RawModule(code=BASIC, name_expressions=names, options=("-std=c++17",))
    for name, dtype in zip(names, (f4, np.int64)):
        y = cp.asarray(np.arange(8, dtype=dtype))
        m.get_function(name)((1,), (8,), (y,))
        np.testing.assert_array_equal(y.get(), 2 * np.arange(8, dtype=dtype))


def test_attributes():
    kernel = cp.RawKernel(BASIC, "axpy", options=("-std=c++17",))
    assert kernel.name == "axpy" and kernel.code == BASIC and kernel.options == ("-std=c++17",)
    assert kernel.max_threads_per_block == 1024 and kernel.shared_size_bytes == 0 and kernel.max_dynamic_shared_size_bytes == 48 << 10
    assert kernel.num_regs is None and set(kernel.attributes) >= {"num_regs", "local_size_bytes"}


def test_compile_errors_name_file_and_line():
    code = '#line 1 "safe/v9.cu"\nextern "C" __global__ void k(float* y) {\n    y[0] = undefined_thing;\n}\n'
    with pytest.raises(CompileException, match=r"safe/v9\.cu:2:\d+: error: .*undefined_thing"):
        cp.RawKernel(code, "k").compile()
    asm = '#line 1 "ptx.cu"\nextern "C" __global__ void k(int* y) {\n    asm volatile("mov.u32 %0, %laneid;" : "=r"(y[0]));\n}\n'
    with pytest.raises(CompileException, match=r"ptx\.cu:2: inline PTX has no meaning on a CPU.*__CPU_DEVICE__"):
        cp.RawKernel(asm, "k").compile()
    guarded = asm.replace("    asm", "#ifdef __CPU_DEVICE__\n    y[0] = 7;\n#else\n    asm").replace(");\n}", ");\n#endif\n}")
    y = cp.zeros(1, i4)
    cp.RawKernel(guarded, "k")((1,), (1,), (y,))
    assert int(y[0]) == 7


@pytest.mark.parametrize("body, says", [
    ("y[0] = INFINITY;", "INFINITY"), ("y[0] = FLT_MAX;", "FLT_MAX"), ("uint32_t u = 1; y[0] = u;", "uint32_t"),
    ("y[0] = std::exp(1.0f);", "std"), ("atomicMax(y, 1.0f);", "atomicMax does not exist for this type"),
    ("__half h; y[0] = 1;", "__half"), ("y[0] = max(1.0f, 2);", "ambiguous"),
    ("y[0] = __shfl_sync(~0u, make_float2(1, 2), 0).x;", "shuffles move numbers"),
])
def test_what_nvrtc_refuses_is_refused_here(body, says):
    with pytest.raises(CompileException, match=says):
        cp.RawKernel(f'extern "C" __global__ void k(float* y) {{ {body} }}', "k").compile()


def test_host_headers_are_refused_and_own_types_are_not():
    with pytest.raises(CompileException, match=r'kernel\.cu:1:\d+: error: .*cannot open source file "cstdint"'):
        cp.RawKernel('#include <cstdint>\nextern "C" __global__ void k(int* y) { y[0] = 1; }', "k").compile()
    y = cp.zeros(1, np.uint32)
    cp.RawKernel('#ifndef __CPU_DEVICE__\n#include <cuda/ptx>\n#endif\ntypedef unsigned int uint32_t;\n#define INFINITY __int_as_float(0x7f800000)\n'
                 'extern "C" __global__ void k(uint32_t* y) { y[0] = INFINITY > 1.0f; }', "k")((1,), (1,), (y,))
    assert int(y[0]) == 1


def test_macros_and_include_folders(tmp_path):
    (tmp_path / "own.h").write_text("#define OWN 5\n")
    code = '#include <own.h>\nextern "C" __global__ void k(int* y) { y[0] = OWN * N * M + (defined_here); }'
    y = cp.zeros(1, i4)
    cp.RawKernel(code, "k", options=("-DN=3", "-D", "M=2", f"-I{tmp_path}", "--define-macro=defined_here=1", "--use_fast_math"))((1,), (1,), (y,))
    assert int(y[0]) == 31


def test_compiled_kernels_are_cached(monkeypatch):
    code = BASIC + f"// {time.time()}"
    start = time.perf_counter()
    cp.RawKernel(code, "axpy").compile()
    cold = time.perf_counter() - start
    monkeypatch.setattr(compiler.subprocess, "run", refuse_to_compile(compiler.subprocess.run))
    cp.RawKernel(code, "axpy").compile()
    assert cold < 20


def refuse_to_compile(run):
    def only_nm(command, *args, **kwargs):
        assert "nm" in command[0], "compiled again"
        return run(command, *args, **kwargs)
    return only_nm


# ---------------------------------------------------------------------------------------------- arrays


def test_arrays_keep_apart_from_numpy():
    x = cp.asarray(random(4))
    for mix in (lambda: np.asarray(x), lambda: x + random(4), lambda: random(4) * x, lambda: cp.exp(random(4)),
                lambda: x.__setitem__(slice(0, 2), random(2))):
        with pytest.raises(TypeError, match="Implicit conversion|Unsupported type"):
            mix()
    x[...] = np.ones(4, f4)  # this one CuPy allows
    assert x.get().tolist() == [1, 1, 1, 1]
    y = cp.asarray(x)
    assert y is x and cp.array(x) is not x


def test_array_semantics():
    X = random(3, 4, seed=1)
    x = cp.asarray(X)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == ((3, 4), f4, 2, 12, 48, 4, 3)
    for make in (lambda a: a[1], lambda a: a[:, ::2], lambda a: a.T, lambda a: a.reshape(4, 3), lambda a: a.reshape(-1),
                 lambda a: a[a > 0], lambda a: a[[2, 0]], lambda a: a + 1, lambda a: 2 / a, lambda a: -a, lambda a: a @ a.T, lambda a: a > 0,
                 lambda a: a.sum(), lambda a: a.max(axis=1), lambda a: a.mean(axis=0, keepdims=True), lambda a: a.argmax(axis=1),
                 lambda a: a.astype(np.float16), lambda a: a.copy(), lambda a: a.ravel(), lambda a: a.cumsum(axis=0), lambda a: abs(a),
                 lambda a: a[1, 2], lambda a: a ** 2, lambda a: a.view(np.int32), lambda a: a.swapaxes(0, 1), lambda a: a[None].squeeze()):
        got = make(x)
        assert isinstance(got, cp.ndarray)
        np.testing.assert_array_equal(got.get(), make(X))
    np.testing.assert_array_equal(cp.exp(x).get(), np.exp(X))
    np.testing.assert_array_equal(cp.concatenate([x, x]).get(), np.concatenate([X, X]))
    np.testing.assert_array_equal(cp.where(x > 0, x, 0).get(), np.where(X > 0, X, 0))
    assert float(x[0, 0]) == X[0, 0] and x.item(5) == X.flat[5] and x.tolist() == X.tolist() and bool((x == x).all())
    assert cp.float32 is np.float32 and cp.pi == np.pi
    with pytest.raises(AttributeError, match="no module 'random'"):
        cp.random
    with pytest.raises(AttributeError, match="has no 'fuse'"):
        cp.fuse


def test_views_share_memory_and_writes_are_seen():
    x = cp.zeros((4, 4), f4)
    row = x[2]
    row[1:3] = 7
    x[0] += 1
    assert x.get()[2].tolist() == [0, 7, 7, 0] and x.get()[0].tolist() == [1, 1, 1, 1]
    out = cp.empty(4, f4)
    assert cp.add(row, 1, out=out) is out and out.get().tolist() == [1, 8, 8, 1]
    copy = x.get()
    x.fill(0)
    assert copy[2, 1] == 7


def test_memory_that_numpy_functions_wrote_is_written():
    """Whatever fills an empty array marks it: slices, masks, fill, out=, copyto, set, a launch."""
    read = get(BASIC, "axpy")

    def readable(x, n=8):
        read((1,), (32,), (x, cp.empty(8, f4), f4(1), i4(n)))

    x = cp.empty(8, f4)
    with pytest.raises(KernelError, match="nothing has written"):
        readable(x)
    x[:4] = 1
    readable(x, 4)
    with pytest.raises(KernelError) as caught:
        readable(x)
    assert caught.value.index == 4
    x.reshape(2, 4)[1, ::2] = 1
    x[cp.asarray([5, 7])] = 2
    readable(x)
    for fill in (lambda a: a.fill(0), lambda a: cp.exp(cp.zeros(8, f4), out=a), lambda a: cp.copyto(a, cp.zeros(8, f4)),
                 lambda a: a.set(np.zeros(8, f4)), lambda a: np.multiply(cp.zeros(8, f4), 2, out=a),
                 lambda a: read((1,), (32,), (cp.zeros(8, f4), a, f4(1), i4(8)))):
        x = cp.empty(8, f4)
        fill(x)
        readable(x)
    assert np.isnan(cp.empty(100, f4).get()).all() and (cp.empty(5, i4).get() == -1).all()


def test_dlpack():
    torch = pytest.importorskip("torch")
    x = cp.asarray(random(5))
    t = torch.from_dlpack(x)
    t += 1
    np.testing.assert_array_equal(x.get(), t.numpy())
    np.testing.assert_array_equal(cp.from_dlpack(t).get(), t.numpy())
    np.testing.assert_array_equal(cp.asarray(t).get(), t.numpy())


def test_empty_arrays():
    x = cp.zeros((0, 5), f4)
    assert x.get().shape == (0, 5) and x.sum().get() == 0
    axpy()((1,), (32,), (x, x, f4(1), i4(0)))


def test_allocations_are_aligned_as_cupys():
    for n in (1, 3, 1000, 10**6):
        assert cp.empty(n, np.uint8).data.ptr % 512 == 0
    x = cp.empty(100, f4)
    assert x[1:].data.ptr == x.data.ptr + 4


# -------------------------------------------------------------------------------------------- counters

COUNT = r"""
extern "C" __global__ void copy(const float* x, float* y, int stride, int offset) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i * stride + offset];
}
extern "C" __global__ void copy4(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void branches(const float* x, float* y) {
    int t = threadIdx.x;
    float v;
    if (t % 2) v = x[t] + 1;
    else v = cosf(x[t + 32]);
    y[blockIdx.x * 32 + t] = v;
}
__device__ float call(const float* x, int t) {
    if (t & 1) return cosf(x[t]);
    return x[t + 32] + x[t + 64];
}
extern "C" __global__ void calls(const float* x, float* y) { y[threadIdx.x] = call(x, threadIdx.x); }
extern "C" __global__ void loops(const float* x, float* y, int n) {
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += x[j];
    y[threadIdx.x] = sum;
}
template <class T> __device__ void banks(float* y, int stride) {
    extern __shared__ char bytes[];
    T* s = (T*)bytes;
    s[threadIdx.x * stride] = T();
    __syncwarp();
    T v = s[threadIdx.x * stride];
    y[threadIdx.x] = *(float*)&v;
}
extern "C" __global__ void banks4(float* y, int stride) { banks<float>(y, stride); }
extern "C" __global__ void banks8(float* y, int stride) {
    extern __shared__ char bytes[];
    double* s = (double*)bytes;
    s[threadIdx.x * stride] = 1;
    __syncwarp();
    y[threadIdx.x] = s[threadIdx.x * stride];
}
extern "C" __global__ void banks16(float* y, int stride) {
    extern __shared__ char bytes[];
    float4* s = (float4*)bytes;
    s[threadIdx.x * stride] = make_float4(1, 2, 3, 4);
    __syncwarp();
    float4 v = s[threadIdx.x * stride];
    y[threadIdx.x] = v.x + v.w;
}
extern "C" __global__ void one_word(float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = s[3];
}
extern "C" __global__ void arithmetic(const float* x, float* y) {
    int t = threadIdx.x;
    float v = expf(x[t]) + __expf(x[t]) + exp2f(x[t]);
    v = v / x[t] + logf(v);
    for (int lanes = 16; lanes; lanes /= 2) v += __shfl_xor_sync(0xffffffff, v, lanes);
    __syncthreads();
    y[blockIdx.x * 32 + t] = v;
    atomicAdd(y + 64, v);
}
"""


def counted(name, grid, block, args, shared=0):
    get(COUNT, name)(grid, block, args, shared_mem=shared)
    return cp.current.last


@pytest.mark.parametrize("stride, offset, sectors", [(1, 0, 4), (2, 0, 8), (3, 0, 12), (8, 0, 32), (32, 0, 32), (1, 1, 5), (1, 8, 4),
                                                     (1, 7, 5), (0, 0, 1), (-1, 31, 4)])
def test_sectors_of_a_request(stride, offset, sectors):
    x, y = cp.zeros(1100, f4), cp.zeros(1100, f4)
    c = counted("copy", (1,), (32,), (x, y, i4(stride), i4(offset)))
    assert c.loads == (32, 1, 128, sectors, 0, 0) and c.stores == (32, 1, 128, 4, 0, 0)
    assert c.of("x")[0].sectors == sectors and c.of("x")[1].requests == 0 and c.of("y")[1].bytes == 128
    assert (c.blocks, c.threads, c.barriers, c.shuffles) == (1, 32, 0, 0)


def test_counters_add_up_over_warps_and_blocks():
    x, y = cp.zeros(300, f4), cp.zeros(300, f4)
    c = counted("copy", (3,), (100,), (x, y, i4(1), i4(0)))  # warps of 32, 32, 32 and 4 lanes; blocks start at 0, 400, 800 bytes
    assert c.loads.instructions == 300 and c.loads.requests == 12 and c.loads.bytes == 1200
    starts = [400 * b + 128 * w for b in range(3) for w in range(4)]
    ends = [min(s + 128, 400 * (i // 4 + 1)) for i, s in enumerate(starts)]
    assert c.loads.sectors == c.stores.sectors == sum(-(-e // 32) - s // 32 for s, e in zip(starts, ends))
    assert c.threads == 300


def test_vector_accesses_are_whole():
    x, y = cp.zeros((64, 4), f4), cp.zeros((64, 4), f4)
    c = counted("copy4", (1,), (64,), (x, y))
    assert c.loads == c.stores == (64, 2, 1024, 32, 0, 0)


def test_divergent_lanes_make_their_own_requests():
    x, y = cp.zeros(96, f4), cp.zeros(64, f4)
    c = counted("branches", (1,), (32,), (x, y))
    assert c.loads == (32, 2, 128, 8, 0, 0)     # each half of the lanes touches all four sectors
    assert c.stores == (32, 1, 128, 4, 0, 0)    # together again
    c = counted("calls", (1,), (32,), (x, y))
    assert c.loads.instructions == 48 and c.loads.requests == 3 and c.stores.requests == 1


def test_lanes_that_leave_a_loop_early():
    x, y = cp.zeros(200, f4), cp.zeros(64, f4)
    c = counted("loops", (1,), (64,), (x, y, i4(200)))  # 200 = 3 * 64 + 8: a fourth turn for 8 lanes of the first warp
    assert c.loads.instructions == 200 and c.loads.requests == 7 and c.loads.sectors == 25 and c.stores.requests == 2


@pytest.mark.parametrize("kernel, stride, wavefronts, extra", [
    ("banks4", 1, 1, 0), ("banks4", 2, 2, 1), ("banks4", 32, 32, 31), ("banks4", 33, 1, 0), ("banks4", 3, 1, 0), ("banks4", 8, 8, 7),
    ("banks8", 1, 2, 0), ("banks8", 2, 4, 2), ("banks8", 16, 32, 30), ("banks8", 17, 2, 0),
    ("banks16", 1, 4, 0), ("banks16", 2, 8, 4), ("banks16", 8, 32, 28), ("banks16", 9, 4, 0)])
def test_bank_conflicts(kernel, stride, wavefronts, extra):
    c = counted(kernel, (1,), (32,), (cp.zeros(32, f4), i4(stride)), shared=16 * 32 * 16)
    for t in (c.shared_loads, c.shared_stores):
        assert (t.requests, t.wavefronts, t.extra_wavefronts) == (1, wavefronts, extra)


def test_one_word_for_all_lanes_is_no_conflict():
    c = counted("one_word", (1,), (32,), (cp.zeros(32, f4),))
    assert c.shared_loads.wavefronts == 1 and c.shared_loads.extra_wavefronts == 0 and c.barriers == 1


def test_counts_of_operations():
    x, y = cp.full(64, 2, f4), cp.zeros(65, f4)
    c = counted("arithmetic", (2,), (32,), (x, y))
    assert (c.exps, c.logs, c.divisions) == (3 * 64, 64, 64)
    assert (c.shuffles, c.barriers) == (10, 2)
    assert c.atomics.instructions == 64 and c.atomics.requests == 2


def test_counters_by_line_and_as_a_table():
    x, y = cp.zeros(64, f4), cp.zeros(64, f4)
    c = counted("branches", (1,), (32,), (x, y))
    first = next(i for i, line in enumerate(COUNT.splitlines(), 1) if "if (t % 2)" in line)
    assert [(r.line, r.kind, r.array, r.instructions) for r in c.by_line()] == [
        (first, "load", "x", 16), (first + 1, "load", "x", 16), (first + 2, "store", "y", 32)]
    assert ("global loads: requests", 2) in c.table()
    assert "global loads: requests" in str(c) and "<table>" in c._repr_html_()
    with pytest.raises(KeyError, match="'z'.*x, y"):
        c.of("z")


def test_access_map_shows_who_touched_what_in_order():
    x, y = cp.zeros(64, f4), cp.zeros(64, f4)
    with cp.settings(trace_limit=1000):
        c = counted("branches", (2,), (32,), (x, y))
    e = c.events
    assert len(e) == 2 * 64 and {c.array_names[a] for a in e["array"]} == {"x", "y"}
    assert (np.diff(e["step"].astype(int)) >= 0).all() and set(e["block"]) == {0, 1}
    steps = [e[e["step"] == s] for s in range(3)]
    assert [len(s) for s in steps] == [16, 16, 32]
    assert sorted(steps[0]["thread"] % 2) in ([0] * 16, [1] * 16)
    assert (steps[2]["kind"] == 1).all() and (steps[2]["address"] == 4 * steps[2]["thread"]).all() and (steps[2]["bytes"] == 4).all()
    with cp.settings(trace_limit=10):
        assert len(counted("branches", (1,), (32,), (x, y)).events) == 10


def test_counters_do_not_depend_on_what_is_not_asked_for():
    x, y = cp.zeros(1000, f4), cp.zeros(1000, f4)
    first = counted("copy", (10,), (100,), (x, y, i4(1), i4(0)))
    for _ in range(50):
        cp.empty(3, f4)
    again = counted("copy", (10,), (100,), (x, y, i4(1), i4(0)))
    assert first.rows == again.rows


# ------------------------------------------------------------------------------------------ the language

LANGUAGE = r"""
#include <cuda_runtime.h>
#include <math_constants.h>
#include <cuda/std/limits>
#define FULL 0xffffffffu

extern "C" __global__ void indices(int* y) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    dim3 d = blockDim;
    uint3 t = threadIdx;
    y[block * threads + thread] = block * 10000 + t.x + 100 * t.y + 1000 * t.z + 0 * d.x;
}

__constant__ float table[4] = {1, 2, 4, 8};
__device__ int counter = 40;
extern "C" __device__ float settable = 0.5f;
namespace inner { __device__ long long deep[2] = {1, 2}; }
extern "C" __global__ void variables(float* y) {
    if (threadIdx.x == 0) counter += 2;
    y[threadIdx.x] = table[threadIdx.x % 4] + settable + inner::deep[1];
}

template <class F> __device__ void each(float* y, F f) { y[threadIdx.x] = f(y[threadIdx.x]); }
struct Twice { __device__ float operator()(float v) const { return 2 * v; } };
extern "C" __global__ void lambdas(float* y) {
    __shared__ float s[32];
    float bias = 1;
    each(y, [=](float v) { return v + bias; });
    each(y, Twice());
    auto store = [&](float v) { s[threadIdx.x] = v; };
    store(y[threadIdx.x]);
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x];
}

template <class T, int N> __device__ T sum_of_tile(T v) {
    __shared__ T tile[N];               // a shared array of a template: one for each instance
    tile[threadIdx.x] = v;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < N; ++i) sum += tile[i];
    __syncthreads();
    return sum;
}
extern "C" __global__ void templates(double* y) {
    y[threadIdx.x] = sum_of_tile<int, 32>(threadIdx.x) + sum_of_tile<double, 32>(0.5);
}

extern "C" __global__ void __launch_bounds__(64, 2) shuffles(int* y) {
    int t = threadIdx.x, k = 0;
#define OUT(value) y[64 * k++ + t] = (int)(value)
    OUT(__shfl_sync(FULL, t, 5));
    OUT(__shfl_sync(FULL, t, t + 3));
    OUT(__shfl_sync(FULL, t, 2, 8));
    OUT(__shfl_up_sync(FULL, t, 3));
    OUT(__shfl_up_sync(FULL, t, 3, 8));
    OUT(__shfl_down_sync(FULL, t, 3));
    OUT(__shfl_down_sync(FULL, t, 3, 16));
    OUT(__shfl_xor_sync(FULL, t, 7));
    OUT(__shfl_xor_sync(FULL, t, 4, 8));
    OUT(__shfl_xor_sync(FULL, (double)t * 0.5, 1) * 2);
    OUT(__shfl_xor_sync(FULL, (long long)t << 40, 1) >> 40);
    OUT(__ballot_sync(FULL, t % 3 == 0));
    OUT(__any_sync(FULL, t == 40) + 10 * __all_sync(FULL, t < 32));
    OUT(__match_any_sync(FULL, t % 4));
    int same;
    OUT(__match_all_sync(FULL, t / 32, &same) + same);
    OUT(__reduce_add_sync(FULL, t) + __reduce_min_sync(FULL, t - 7) + __reduce_max_sync(FULL, t));
    OUT(__reduce_and_sync(FULL, 0xffu - (t & 1)) | __reduce_or_sync(FULL, 1u << 8 << t % 4) | __reduce_xor_sync(FULL, t == 1 ? 1u << 20 : 0u));
    if (t % 2) OUT(__activemask()); else OUT(__popc(__activemask()));
    if (t < 40) OUT(__shfl_sync(__activemask(), t, 1)); else OUT(-1);
    OUT(__syncthreads_count(t < 10) + 100 * __syncthreads_and(t < 10) + 1000 * __syncthreads_or(t == 3));
}

extern "C" __global__ void vectors(float* y) {
    float4 a = {1, 2, 3, 4}, b = a, c = make_float4(5, 6, 7, 8), z = {};
    float2 p = make_float2(1, 2);
    int3 q = make_int3(1, 2, 3);
    uchar4 u = make_uchar4(1, 2, 3, 255);
    double4 d = make_double4(1, 2, 3, 4);
    longlong2 l = {1ll << 40, 2};
    union { float4 v; float f[4]; } both;
    both.v = c;
    b.y += c.w;
    float sum = a.x + b.y + c.z + p.y + q.z + u.w + d.w + (l.x >> 40) + both.f[1] + z.x;
    *y = sum + sizeof(float3) + sizeof(float4) + alignof(float4) + alignof(float2) + sizeof(double4) + alignof(int2);
}

extern "C" __global__ void bits(unsigned* y) {
    int k = 0;
    y[k++] = __float_as_uint(1.5f);
    y[k++] = __popc(0xff00ffu) + 100 * __clz(1 << 20) + 10000 * __ffs(0x80);
    y[k++] = __brev(1u) + __popcll(~0ull);
    y[k++] = __byte_perm(0x33221100u, 0x77665544u, 0x7250);
    y[k++] = __funnelshift_l(0x80000000u, 1u, 1) + __funnelshift_r(1u, 2u, 1);
    y[k++] = __umulhi(0x80000000u, 6u) + __mulhi(-2, 1) + __mul24(3, 5) + __sad(3, 8, 1);
    y[k++] = __float2int_rn(2.5f) + 10 * __float2int_rz(-2.7f) + 100 * __float2int_ru(2.1f) + 1000 * __float2int_rd(-2.1f);
    y[k++] = __float2int_rn(1e20f);
    y[k++] = __float2int_rz(CUDART_NAN_F);
    y[k++] = __double2int_rn(3.5) + __float2uint_rn(-3.0f) + (unsigned)__float2ll_rn(5.0f);
    y[k++] = max(3, 5u) + min(-1ll, 4ll) + max(2.0f, 3.0f) + min(2.0, 3.0f) + abs(-4);
    y[k++] = isnan(CUDART_NAN_F) + 2 * isinf(CUDART_INF_F) + 4 * signbit(-0.0f) + 8 * isfinite(1.0f) + 16 * (cuda::std::numeric_limits<float>::max() > 3e38f);
    y[k++] = __hiloint2double(__double2hiint(2.5), __double2loint(2.5)) == 2.5;
    y[k++] = fmaxf(CUDART_NAN_F, 1.0f) == 1.0f && fminf(2.0f, CUDART_NAN_F) == 2.0f && __saturatef(CUDART_NAN_F) == 0;
    y[k++] = __dp4a(0x01020304, 0x01010101, 5);
}

extern "C" __global__ void hints(const float* x, float* y) {
    int i = threadIdx.x;
    float v = __ldg(x + i) + __ldcs(x + 32 + i) + __ldcg(x + 64 + i) + __ldca(x + 96 + i) + __ldlu(x + 128 + i) + __ldcv(x + 160 + i);
    float4 w = __ldg((const float4*)x + 1);
    __stcs(y + i, v + w.x);
    __stcg(y + 32 + i, v);
    __stwt(y + 64 + i, v);
    __stwb(y + 96 + i, v);
}

extern "C" __global__ void copies(const unsigned char* x, unsigned char* y, int n) {
    if (threadIdx.x == 0) memcpy(y, x, n);
    if (threadIdx.x == 1) memset(y + n, 7, n);
    float f = 1.5f;
    int i;
    memcpy(&i, &f, 4);
    if (threadIdx.x == 2) y[2 * n] = i >> 24;
}

extern "C" __global__ void prints(int n) {
    if (threadIdx.x < n) printf("block %d thread %d: %5.2f %s\n", blockIdx.x, threadIdx.x, threadIdx.x * 0.5, "ok");
}
extern "C" __global__ void clocks(long long* y) {
    long long a = clock64();
    __syncthreads();
    y[threadIdx.x] = clock64() - a;
    __nanosleep(10);
}
"""


def language(name):
    return get(LANGUAGE, name)


both_modes = pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])


@both_modes
@pytest.mark.parametrize("grid, block", [((3,), (5,)), ((2, 3), (4, 8)), ((2, 1, 3), (3, 4, 5)), ((1, 2), (1, 1, 64)), ((4,), (1024,))])
def test_grids_and_blocks_of_up_to_three_dimensions(grid, block, checked):
    full = lambda v: (*v, 1, 1)[:3]  # noqa: E731
    (gx, gy, gz), (bx, by, bz) = full(grid), full(block)
    y = cp.empty((gz * gy * gx, bz, by, bx), i4)
    with cp.settings(checked=checked):
        language("indices")(grid, block, (y,))
    b, tz, ty, tx = np.indices(y.shape)
    np.testing.assert_array_equal(y.get(), b * 10000 + tx + 100 * ty + 1000 * tz)


def test_device_variables():
    m = cp.RawModule(code=LANGUAGE)
    y = cp.zeros(8, f4)
    m.get_function("variables")((1,), (8,), (y,))
    np.testing.assert_array_equal(y.get(), [3.5, 4.5, 6.5, 10.5] * 2)
    table, counter = cp.ndarray((4,), f4, m.get_global("table")), cp.ndarray((), i4, m.get_global("counter"))
    deep = cp.ndarray(2, np.int64, m.get_global("deep"))
    assert int(counter) == 42 and table.get().tolist() == [1, 2, 4, 8] and deep.get().tolist() == [1, 2]
    table[...] = cp.asarray(np.array([10, 20, 30, 40], f4))
    cp.ndarray((1,), f4, m.get_global("settable"))[0] = 0
    with pytest.raises(KernelError):  # a crash loses nothing
        get(LANGUAGE, "hints")((1,), (32,), (0, y))
    m.get_function("variables")((1,), (8,), (y,))
    assert y.get().tolist() == [12, 22, 32, 42] * 2 and int(counter) == 44
    with cp.settings(checked=False):  # the other build of the same source has variables of its own
        m.get_function("variables")((1,), (8,), (y,))
        assert y.get()[0] == 3.5
    fresh = cp.RawModule(code=LANGUAGE)
    fresh.get_function("variables")((1,), (8,), (y,))
    assert y.get()[0] == 3.5
    with pytest.raises(CUDADriverError, match="device variables in this source: .*table"):
        m.get_global("tabel")


@both_modes
def test_lambdas_and_templates(checked):
    with cp.settings(checked=checked):
        y = cp.asarray(np.arange(32, dtype=f4))
        language("lambdas")((1,), (32,), (y,))
        np.testing.assert_array_equal(y.get(), 2 * (np.arange(32)[::-1] + 1))
        z = cp.zeros(32, np.float64)
        language("templates")((1,), (32,), (z,))
        np.testing.assert_array_equal(z.get(), 496 + 16)


@both_modes
def test_warp_functions(checked):
    y = cp.zeros((20, 64), i4)
    with cp.settings(checked=checked):
        language("shuffles")((1,), (64,), (y,))
    t = np.arange(64)
    warp, lane = t // 32 * 32, t % 32
    seg = lambda w: warp + lane // w * w  # noqa: E731
    match = np.array([sum(1 << k for k in range(32) if k % 4 == r) for r in range(4)], np.uint32).astype(i4)
    odd = np.array([0xAAAAAAAA], np.uint32).view(i4)[0]
    expected = [
        warp + 5, warp + (lane + 3) % 32, seg(8) + 2, np.where(lane < 3, t, t - 3), np.where(lane % 8 < 3, t, t - 3),
        np.where(lane > 28, t, t + 3), np.where(lane % 16 > 12, t, t + 3), t ^ 7, t ^ 4, t ^ 1, t ^ 1,
        [np.array([sum(1 << k for k in range(32) if (w + k) % 3 == 0)], np.uint32).view(i4)[0] for w in warp],
        np.where(warp == 32, 1, 10), match[t % 4], np.full(64, 0), np.where(warp == 0, 496 - 7 + 31, 1520 + 25 + 63),
        np.where(warp == 0, 0xFE | 0xF00 | 1 << 20, 0xFE | 0xF00), np.where(t % 2, odd, 16), np.where(t < 40, warp + 1, -1),
        np.full(64, 1010),
    ]
    for row, (got, want) in enumerate(zip(y.get(), expected)):
        np.testing.assert_array_equal(got, want, err_msg=f"row {row}")


def test_vector_types_and_bits():
    y = cp.zeros(1, f4)
    language("vectors")((1,), (1,), (y,))
    assert float(y[0]) == 1 + 10 + 7 + 2 + 3 + 255 + 4 + 1 + 6 + 0 + 12 + 16 + 16 + 8 + 32 + 8
    z = cp.zeros(15, np.uint32)
    language("bits")((1,), (1,), (z,))
    minus = lambda v: v % 2**32  # noqa: E731
    assert z.get().tolist() == [
        0x3FC00000, 16 + 1100 + 80000, (1 << 31) + 64, 0x77225500, 3 + 0, 3 - 1 + 15 + 6, minus(2 - 20 + 300 - 3000), 2**31 - 1, 0, 4 + 0 + 5,
        5 - 1 + 3 + 2 + 4, 31, 1, 1, 1 + 2 + 3 + 4 + 5]


def test_cache_hints_are_plain_accesses():
    x, y = cp.asarray(random(192)), cp.empty(128, f4)
    language("hints")((1,), (32,), (x, y))
    six = x.get().reshape(6, 32).sum(0)
    np.testing.assert_allclose(y.get().reshape(4, 32), np.stack([six + x.get()[4], six, six, six]), rtol=1e-4, atol=1e-5)
    assert cp.current.last.loads.requests == 7 and cp.current.last.stores.requests == 4


def test_copies_are_checked_and_counted():
    x, y = cp.asarray(np.arange(100, dtype=np.uint8)), cp.empty(201, np.uint8)
    language("copies")((1,), (32,), (x, y, i4(100)))
    assert y.get().tolist() == [*range(100), *[7] * 100, 0x3F]
    assert cp.current.last.of("x")[0].bytes == 100 and cp.current.last.of("y")[1].bytes == 201
    with pytest.raises(KernelError) as caught:
        language("copies")((1,), (32,), (x, y, i4(101)))
    assert caught.value.kind == "out_of_bounds" and caught.value.array == "x"


def test_printf(capsys):
    language("prints")((2,), (32,), (i4(2),))
    assert capsys.readouterr().out == "".join(f"block {b} thread {t}:  {t * 0.5:.2f} ok\n" for b in (0, 1) for t in (0, 1))


def test_clock_streams_and_events():
    y = cp.zeros(32, np.int64)
    start, end, stream = cp.cuda.Event(), cp.cuda.Event(), cp.cuda.Stream(non_blocking=True)
    with pytest.raises(RuntimeError, match="record"):
        cp.cuda.get_elapsed_time(start, end)
    with stream:
        start.record()
        language("clocks")((1,), (32,), (y,), stream=stream)
        end.record(stream)
    end.synchronize()
    cp.cuda.Device(0).synchronize()
    cp.cuda.Stream.null.synchronize()
    assert (y.get() >= 0).all() and 0 < cp.cuda.get_elapsed_time(start, end) < 60_000
    assert not cp.cuda.is_available()


ATOMICS = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T> __global__ void add(T* y, const T* x, int n) {
    __shared__ T s;
    if (threadIdx.x == 0) s = T(0);
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s, x[i]), atomicAdd(y, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(y + 1, s);
}
template <class T> __global__ void others(T* y, const T* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicMin(y, x[i]), atomicMax(y + 1, x[i]), atomicAnd(y + 2, x[i]), atomicOr(y + 3, x[i]), atomicXor(y + 4, x[i]);
        atomicCAS((unsigned long long*)(y + 5), 0ull, 5ull);
    }
}
extern "C" __global__ void unsigned_only(unsigned* y, float* f, int* order) {
    atomicInc(y, 9), atomicDec(y + 1, 6), atomicSub(y + 2, 2), atomicAdd_system(y + 3, 1), atomicAdd_block(y + 4, 2);
    order[atomicAdd(y + 5, 1)] = threadIdx.x;
    if (atomicExch(f, 1.0f) == 0) atomicExch(f + 1, 3.0f);
    int* lock = (int*)(y + 6);
    bool mine = atomicCAS(lock, 0, 1) == 0;      // one thread of all gets the lock
    if (mine) f[2] = 1;
}
"""


@both_modes
@pytest.mark.parametrize("name, dtype", [("int", i4), ("unsigned", np.uint32), ("unsigned long long", np.uint64), ("float", f4),
                                         ("double", np.float64), ("__half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)])
def test_atomic_add_of_every_type(name, dtype, checked):
    m = module(ATOMICS, tuple(f"add<{t}>" for t in ("int", "unsigned", "unsigned long long", "float", "double", "__half", "__nv_bfloat16"))
               + tuple(f"others<{t}>" for t in ("long long", "unsigned long long")))
    n = 200 if np.dtype(dtype).itemsize > 2 else 50
    x = np.random.default_rng(0).integers(0, 4, n).astype(dtype)
    y = cp.zeros(2, dtype)
    with cp.settings(checked=checked, workers=2):
        m.get_function(f"add<{name}>")((3,), (64,), (y, cp.asarray(x), i4(n)))
    assert y.get().astype(float).tolist() == [x.astype(float).sum()] * 2


@both_modes
def test_other_atomics(checked):
    m = module(ATOMICS, tuple(f"add<{t}>" for t in ("int", "unsigned", "unsigned long long", "float", "double", "__half", "__nv_bfloat16"))
               + tuple(f"others<{t}>" for t in ("long long", "unsigned long long")))
    x = np.random.default_rng(1).integers(-2**62, 2**62, 100)
    with cp.settings(checked=checked, workers=2):
        for name, dtype in (("long long", np.int64), ("unsigned long long", np.uint64)):
            v = x.astype(dtype)
            y = cp.asarray(np.array([v[0], v[0], -1 if dtype == np.int64 else 2**64 - 1, 0, 0, 0], dtype))
            m.get_function(f"others<{name}>")((2,), (32,), (y, cp.asarray(v), i4(100)))
            assert y.get().tolist() == [v.min(), v.max(), np.bitwise_and.reduce(v), np.bitwise_or.reduce(v), np.bitwise_xor.reduce(v), 5]
        y, f, order = cp.asarray(np.array([0, 3, 100, 0, 0, 0, 0], np.uint32)), cp.zeros(3, f4), cp.empty(64, i4)
        m.get_function("unsigned_only")((1,), (64,), (y, f, order))
        assert y.get().tolist() == [64 % 10, (3 - 64) % 7, 100 - 128 + 2**32, 64, 128, 64, 1] and f.get().tolist() == [1, 3, 1]
        assert sorted(order.get().tolist()) == list(range(64))


FUNCTIONS = ["expf", "exp2f", "exp10f", "logf", "log2f", "log10f", "log1pf", "expm1f", "sqrtf", "rsqrtf", "cbrtf", "sinf", "cosf", "tanf",
             "tanhf", "sinhf", "coshf", "asinhf", "atanf", "erff", "erfcf", "lgammaf", "floorf", "ceilf", "truncf", "rintf", "fabsf",
             "__expf", "__logf", "__sinf", "__frcp_rn", "normcdff", "sinpif", "cospif", "exp", "log", "sqrt", "tanh", "rsqrt"]
MATH = 'extern "C" __global__ void f(const float* x, float* y, int n) { int i = threadIdx.x; switch (n) {\n' + "".join(
    f"case {k}: y[i] = {name}(x[i]); break;\n" for k, name in enumerate(FUNCTIONS)) + (
    "case 100: y[i] = powf(x[i], 1.5f) + fmaf(x[i], 2, 3) + fmodf(x[i], 0.7f) + atan2f(x[i], 2) + hypotf(x[i], 3) + copysignf(1, -x[i]) "
    "+ ldexpf(x[i], 3) + __fdividef(x[i], 3) + __powf(x[i], 2) + fdimf(x[i], 1) + nearbyintf(x[i]); }}")


def test_math_functions():
    import math

    X = np.linspace(0.05, 3, 61, dtype=f4)
    x, y = cp.asarray(X), cp.empty(61, f4)
    special = {"rsqrt": lambda v: v**-0.5, "exp10": lambda v: 10**v, "erf": math.erf, "erfc": math.erfc, "lgamma": math.lgamma,
               "asinh": math.asinh, "atan": math.atan, "__frcp_rn": lambda v: 1 / v, "sinpi": lambda v: math.sin(math.pi * v),
               "cospi": lambda v: math.cos(math.pi * v), "normcdf": lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), "fabs": abs,
               "__exp": math.exp, "__log": math.log, "__sin": math.sin}
    for k, name in enumerate(FUNCTIONS):
        base = name[:-1] if name.endswith("f") and name not in ("erf",) else name
        function = special.get(base) or getattr(np, base)
        get(MATH, "f")((1,), (61,), (x, y, i4(k)))
        np.testing.assert_allclose(y.get(), [function(float(v)) for v in X], rtol=3e-7, atol=2e-7, err_msg=name)
    get(MATH, "f")((1,), (61,), (x, y, i4(100)))
    v = X.astype(float)
    expected = (v**1.5 + 2 * v + 3 + np.fmod(v, f4(0.7)) + np.arctan2(v, 2) + np.hypot(v, 3) - 1 + 8 * v + v / 3 + v * v + np.maximum(v - 1, 0)
                + np.rint(v))
    np.testing.assert_allclose(y.get(), expected, rtol=1e-6)


# ---------------------------------------------------------------------------------- half and bfloat16

SMALL = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define INDEX int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return
#define KERNELS(P, H, H2, h)                                                                                              \
extern "C" __global__ void P##narrow(const float* x, H* y, int n) { INDEX; y[i] = __float2##h(x[i]); }                      \
extern "C" __global__ void P##directed(const float* x, H* y, int n) {                                                       \
    INDEX; y[i] = __float2##h##_rz(x[i]); y[n + i] = __float2##h##_rd(x[i]); y[2 * n + i] = __float2##h##_ru(x[i]); }       \
extern "C" __global__ void P##narrow64(const double* x, H* y, int n) { INDEX; y[i] = __double2##h(x[i]); }                  \
extern "C" __global__ void P##widen(const H* x, float* y, int n) { INDEX; y[i] = __##h##2float(x[i]); }                     \
extern "C" __global__ void P##binary(const H* a, const H* b, H* y, int n) {                                                 \
    INDEX; H p = a[i], q = b[i];                                                                                            \
    y[i] = p + q; y[n + i] = __hsub(p, q); y[2 * n + i] = p * q; y[3 * n + i] = __hdiv(p, q); y[4 * n + i] = __hmax(p, q);  \
    y[5 * n + i] = __hmin_nan(p, q); y[6 * n + i] = H(p < q) + H(__hge(p, q)) + H(__hneu(p, q));                            \
    y[7 * n + i] = __hadd_sat(p, q); }                                                                                      \
extern "C" __global__ void P##fma(const H* a, const H* b, const H* c, H* y, int n) { INDEX; y[i] = __hfma(a[i], b[i], c[i]); } \
extern "C" __global__ void P##unary(const H* x, H* y, int n) {                                                              \
    INDEX; H v = x[i];                                                                                                      \
    y[i] = -v; y[n + i] = __habs(v); y[2 * n + i] = hsqrt(v); y[3 * n + i] = hexp(v); y[4 * n + i] = hrint(v);              \
    y[5 * n + i] = H(__hisnan(v)) + H(2 * __hisinf(v)); y[6 * n + i] = __int2##h##_rn(__##h##2int_rz(v)); y[7 * n + i] = hrcp(v); } \
extern "C" __global__ void P##pairs(const H2* x, H2* y, float2* z, int n) {                                                 \
    INDEX; H2 v = x[i];                                                                                                     \
    float2 f = __##h##22float2(v);                                                                                          \
    z[i] = make_float2(f.x + __low2float(v), f.y + __high2float(v));                                                        \
    H2 w = __hfma2(v, v, __float2##h##2_rn(1.0f));                                                                          \
    w = __hmax2(w, __floats2##h##2_rn(0.5f, -0.5f)) + __lowhigh2highlow(v) * h2exp(__float22##h##2_rn(make_float2(0, 1)));  \
    y[i] = __hgt2(w, v) + __halves2##h##2(__low2##h(w), __high2##h(w)); }                                                   \
extern "C" __global__ void P##masks(const H2* a, const H2* b, unsigned* y, int n) {                                          \
    INDEX; y[i] = __hgeu2_mask(a[i], b[i]); y[n + i] = __hge2_mask(a[i], b[i]); y[2 * n + i] = __hneu2_mask(a[i], b[i]); }  \
extern "C" __global__ void P##row_sum(const H2* x, H2* y) {                                                                 \
    H2 v = x[threadIdx.x];                                                                                                  \
    for (int lanes = 16; lanes; lanes /= 2) v += __shfl_xor_sync(0xffffffff, v, lanes);                                     \
    __shared__ H2 s[32];                                                                                                    \
    s[threadIdx.x] = v;                                                                                                     \
    __syncthreads();                                                                                                        \
    y[threadIdx.x] = s[31 - threadIdx.x]; }
KERNELS(h_, __half, __half2, half)
KERNELS(b_, __nv_bfloat16, __nv_bfloat162, bfloat16)
"""
small_types = pytest.mark.parametrize("prefix, dtype", [("h_", np.dtype(np.float16)), ("b_", np.dtype(ml_dtypes.bfloat16))], ids=["half", "bfloat16"])


def small(name, *inputs, rows=1, dtype=None):
    """Run a kernel of SMALL on whole arrays, unchecked (half a million elements); `rows` results of the input's length."""
    n = inputs[0].size
    y = cp.empty(rows * n, dtype)
    with cp.settings(checked=False):
        get(SMALL, name)((-(-n // 256),), (256,), (*map(cp.asarray, inputs), y, i4(n)))
    return y.get().reshape(rows, n)


def all_patterns(dtype):
    return np.arange(65536, dtype=np.uint16).view(dtype)


def same(got, expected):
    """Equal to the bit, except that any NaN is a NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        got, expected = (np.asarray(a).astype(np.float64) for a in (got, expected))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(expected)[~np.isnan(got)])


@small_types
def test_conversions_of_16_bit_floats(prefix, dtype):
    every = all_patterns(dtype)
    same(small(prefix + "widen", every, dtype=f4)[0], every.astype(f4))
    rng = np.random.default_rng(2)
    finite = every[np.isfinite(every.astype(f4))].astype(np.float64)
    ordered = np.unique(finite)
    halfway = (ordered[1:] + ordered[:-1]) / 2
    near = np.concatenate([halfway, np.nextafter(halfway.astype(f4), f4(np.inf)), np.nextafter(halfway.astype(f4), f4(-np.inf)), finite])
    x = np.concatenate([near.astype(f4), rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(f4),
                        f4([np.inf, -np.inf, np.nan, 65519.9, 65520.0, 3.4e38, 1e-45, -1e-45])])
    with np.errstate(all="ignore"):
        same(small(prefix + "narrow", x, dtype=dtype)[0], x.astype(dtype))
    wide = np.concatenate([halfway, np.nextafter(halfway, np.inf), np.nextafter(halfway, -np.inf)])  # one rounding, not two
    got = small(prefix + "narrow64", wide, dtype=dtype)[0].astype(np.float64)
    above = np.repeat([[0], [1], [-1]], len(halfway), axis=1).ravel()
    low, high = np.tile(ordered[:-1], 3), np.tile(ordered[1:], 3)
    assert np.all(np.where(above > 0, got == high, np.where(above < 0, got == low, (got == low) | (got == high))))


@small_types
def test_directed_rounding_of_16_bit_floats(prefix, dtype):
    x = np.concatenate([random(20_000, seed=3) * f4(s) for s in (1, 1e-6, 3e4, 1e-30)])
    down_z, down, up = (r.astype(np.float64) for r in small(prefix + "directed", x, rows=3, dtype=dtype))
    assert np.all(down <= x) and np.all(x <= up) and np.all(np.abs(down_z) <= np.abs(x))
    same(down_z, np.where(x > 0, down, up))
    with np.errstate(over="ignore"):
        nearest = x.astype(dtype).astype(np.float64)
    assert np.all((nearest == down) | (nearest == up)) and np.all((down == up) == (nearest == x))


@small_types
def test_arithmetic_of_16_bit_floats(prefix, dtype):
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(0, 65536, 200_000, dtype=np.uint16).view(dtype) for _ in range(3))
    b[:1000] = a[:1000]
    p, q = a.astype(f4), b.astype(f4)
    nan = np.isnan(p) | np.isnan(q)
    with np.errstate(all="ignore"):
        got = small(prefix + "binary", a, b, rows=8, dtype=dtype)
        same(got[0], (p + q).astype(dtype))
        same(got[1], (p - q).astype(dtype))
        same(got[2], (p * q).astype(dtype))
        same(got[3], (p / q).astype(dtype))
        np.testing.assert_array_equal(got[4].astype(f4), np.fmax(p, q))
        np.testing.assert_array_equal(got[5].astype(f4), np.where(nan, np.nan, np.fmin(p, q)))
        np.testing.assert_array_equal(got[6].astype(f4), (p < q) * 1.0 + (p >= q) + (p != q))
        same(got[7], np.where(np.isnan(p + q), 0, np.clip(p + q, 0, 1)).astype(dtype) + np.zeros((), dtype))
        got = small(prefix + "unary", a, rows=8, dtype=dtype)
        same(got[0], -p)
        same(got[1], np.abs(p))
        same(got[2], np.sqrt(p).astype(dtype))
        np.testing.assert_allclose(got[3].astype(np.float64), np.exp(p.astype(np.float64)).astype(f4).astype(dtype).astype(np.float64), rtol=2.0**-7)
        same(got[4], np.rint(p))
        np.testing.assert_array_equal(got[5].astype(f4), np.isnan(p) + 2.0 * np.isinf(p) * np.sign(np.where(np.isnan(p), 0, p)))
        same(got[7], (f4(1) / p).astype(dtype))


@small_types
def test_fused_multiply_add_rounds_once(prefix, dtype):
    """Against exact arithmetic on integers, where a rounding to double first would go wrong too."""
    from fractions import Fraction

    rng = np.random.default_rng(5)
    bits = [rng.integers(0, 65536, 3000, dtype=np.uint16) for _ in range(3)]
    a, b, c = (v.view(dtype) for v in bits)
    a[:500], b[:500], c[:500] = dtype.type(1.0078125), dtype.type(1.0078125), dtype.type(2.0**-60 if prefix == "b_" else 2.0**-20)
    got = small(prefix + "fma", a, b, c, dtype=dtype)[0].astype(np.float64)
    ordered = np.unique(all_patterns(dtype)[np.isfinite(all_patterns(dtype).astype(f4))].astype(np.float64))
    for i in range(3000):
        with np.errstate(invalid="ignore"):  # signalling NaN
            x, y, z = (float(v[i].astype(np.float64)) for v in (a, b, c))
        if not np.isfinite([x, y, z]).all():
            with np.errstate(invalid="ignore"):
                assert np.array_equal(got[i], np.float64(x) * y + z, equal_nan=True)
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        k = int(np.searchsorted(ordered, float(exact)))
        near = [v for v in ordered[max(k - 2, 0):k + 2]]
        best = min(abs(Fraction(float(v)) - exact) for v in near)
        if np.isfinite(got[i]):
            assert abs(Fraction(float(got[i])) - exact) == best, (x, y, z, got[i])
        else:
            assert abs(exact) > Fraction(float(ordered[-1]))


@small_types
def test_pairs_of_16_bit_floats(prefix, dtype):
    X = (np.arange(64) / 8 - 4).astype(dtype).reshape(32, 2)
    x, y, z = cp.asarray(X), cp.empty((32, 2), dtype), cp.empty((32, 2), f4)
    get(SMALL, prefix + "pairs")((1,), (32,), (x, y, z, i4(32)))
    c = cp.current.last
    one = (32, 1, 128, 4, 0, 0)  # an access of 4 bytes a thread (a macro wrote the kernel, so the parameters' names are unknown)
    assert c.of("argument 1")[0] == one and c.of("argument 2")[1] == one
    v = X.astype(f4)
    np.testing.assert_array_equal(z.get(), 2 * v)
    w = np.maximum((v * v + 1).astype(dtype).astype(f4), f4([0.5, -0.5]))
    e = np.exp(f4([0, 1])).astype(dtype).astype(f4)
    w = (w + (v[:, ::-1] * e).astype(dtype).astype(f4)).astype(dtype).astype(f4)
    np.testing.assert_array_equal(y.get().astype(f4), ((w > v) + w).astype(dtype).astype(f4))
    get(SMALL, prefix + "row_sum")((1,), (32,), (cp.asarray(np.ones((32, 2), dtype)), y))
    assert (y.get().astype(f4) == 32).all()


@small_types
def test_masks_of_16_bit_floats(prefix, dtype):
    """Every number beside a random one, the next one and itself; in a pair both ways round."""
    every, rng = all_patterns(dtype), np.random.default_rng(6)
    a, b = np.tile(every, 3), np.concatenate([rng.permutation(every), np.roll(every, 1), every])
    y, n = cp.empty(3 * a.size, np.uint32), i4(a.size)
    pairs = [cp.asarray(np.stack(two, axis=1)) for two in ((a, b), (b, a))]
    with cp.settings(checked=False):
        get(SMALL, prefix + "masks")((a.size // 256,), (256,), (*pairs, y, n))
    p, q = a.astype(f4), b.astype(f4)
    nan = np.isnan(p) | np.isnan(q)
    for got, low, high in zip(y.get().reshape(3, -1), ((p >= q) | nan, p >= q, p != q), ((q >= p) | nan, q >= p, p != q), strict=True):
        np.testing.assert_array_equal(got, np.where(low, 0xFFFF, 0) + np.where(high, 0xFFFF0000, 0))


# -------------------------------------------------------------------------------- cooperative groups

GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void block_sum(const float* x, float* y, int n) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ float partial[32];
    float sum = 0;
    for (int i = block.thread_rank(); i < n; i += block.size()) sum += x[i];
    sum = cg::reduce(warp, sum, cg::plus<float>());
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = sum;
    block.sync();
    if (warp.meta_group_rank() == 0) {
        sum = warp.thread_rank() < warp.meta_group_size() ? partial[warp.thread_rank()] : 0;
        sum = cg::reduce(warp, sum, cg::plus<float>());
        if (warp.thread_rank() == 0) y[0] = sum;
    }
}
extern "C" __global__ void tiles(int* y) {
    auto block = cg::this_thread_block();
    auto four = cg::tiled_partition<4>(block);
    auto two = cg::tiled_partition<2>(four);
    int t = block.thread_rank(), k = 0;
#define OUT(value) y[64 * k++ + t] = (value)
    OUT(four.shfl(t, 2));
    OUT(four.shfl_down(t, 1));
    OUT(four.shfl_up(t, 1));
    OUT(two.shfl_xor(t, 1));
    OUT(four.ballot(t % 4 != 1));
    OUT(four.any(t == 5) + 10 * four.all(t < 8));
    OUT(cg::reduce(four, t, cg::greater<int>()) - cg::reduce(four, t, cg::less<int>()));
    OUT(four.match_any(t / 2 % 2));
    four.sync();
    cg::sync(block);
    if (t % 3 == 0) {
        auto active = cg::coalesced_threads();
        OUT(active.thread_rank() + 100 * active.size());
        OUT(active.shfl(t, 1) + 1000 * active.ballot(t > 10));
        OUT(cg::reduce(active, t, cg::plus<int>()));
    }
}
extern "C" __global__ void racing_tiles(int* y) {
    __shared__ int s[32];
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    s[threadIdx.x] = threadIdx.x;
#ifdef FIXED
    tile.sync();
#endif
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void lone_sync(int* y) {
    auto block = cg::this_thread_block();
    if (threadIdx.x < 7) block.sync();
    y[threadIdx.x] = 1;
}
"""


@both_modes
def test_cooperative_groups(checked):
    X = random(1000)
    y = cp.zeros(1, f4)
    z = cp.full((11, 64), -1, i4)
    with cp.settings(checked=checked):
        get(GROUPS, "block_sum")((1,), (256,), (cp.asarray(X), y, i4(1000)))
        get(GROUPS, "tiles")((1,), (64,), (z,))
    np.testing.assert_allclose(float(y[0]), X.sum(dtype=float), rtol=1e-5)
    t = np.arange(64)
    four = t // 4 * 4
    expected = [four + 2, np.where(t % 4 == 3, t, t + 1), np.where(t % 4 == 0, t, t - 1), t ^ 1, np.full(64, 0b1101),
                (four == 4) + 10 * (four < 8), np.full(64, 3), np.where(t % 4 < 2, 0b0011, 0b1100)]
    np.testing.assert_array_equal(z.get()[:8], expected)
    for warp in (0, 1):
        active = [k for k in range(32 * warp, 32 * warp + 32) if k % 3 == 0]
        rows = z.get()[8:, active]
        np.testing.assert_array_equal(rows[0], np.arange(len(active)) + 100 * len(active))
        np.testing.assert_array_equal(rows[1], active[1] + 1000 * sum(1 << r for r, k in enumerate(active) if k > 10))
        np.testing.assert_array_equal(rows[2], sum(active))


def test_bugs_in_groups_are_named_in_the_readers_line():
    y = cp.zeros(32, i4)
    with pytest.raises(KernelError) as caught:
        get(GROUPS, "racing_tiles")((1,), (32,), (y,))
    assert caught.value.kind == "race" and caught.value.array == "s" and "s[threadIdx.x" in str(caught.value)
    get(GROUPS, "racing_tiles", ("-DFIXED",))((1,), (32,), (y,))
    with pytest.raises(KernelError) as caught:
        get(GROUPS, "lone_sync")((1,), (32,), (y,))
    assert caught.value.kind == "barrier" and "block.sync()" in str(caught.value)


# ------------------------------------------------------------------------- checked, unchecked, schedules

REDUCE = r"""
extern "C" __global__ void row_sums(const float* x, float* y, int n) {
    __shared__ float partial[256];
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += x[(size_t)blockIdx.x * n + j];
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    partial[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < blockDim.x; w += 32) sum += partial[w];
    y[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void block_ids(int* y) { y[blockIdx.x] = blockIdx.x; }
"""


def test_the_same_result_however_it_runs():
    X = random(37, 1001)
    results = []
    for how in ({}, {"seed": 3}, {"checked": False, "workers": 1}, {"checked": False, "workers": 2}, {"checked": False, "workers": 3},
                {"checked": False, "seed": 5}):
        y = cp.empty((37, 128), f4)
        with cp.settings(**how):
            get(REDUCE, "row_sums")((37,), (128,), (cp.asarray(X), y, i4(1001)))
        results.append(y.get())
    for r in results:
        np.testing.assert_array_equal(r, results[0])
    np.testing.assert_allclose(results[0][:, 0], X.sum(1, dtype=float), rtol=1e-4, atol=1e-4)


@both_modes
def test_a_large_grid(checked):
    n = 20_000 if checked else 1_000_000
    y = cp.empty(n, i4)
    with cp.settings(checked=checked, workers=2):
        get(REDUCE, "block_ids")((n,), (1,), (y,))
    np.testing.assert_array_equal(y.get(), np.arange(n))


def test_settings_come_back():
    before = vars(cp.current).copy()
    with pytest.raises(ZeroDivisionError), cp.settings(checked=False, seconds=1.0, seed=4):
        assert not cp.current.checked
        1 / 0
    assert vars(cp.current) == before
    with pytest.raises(AttributeError), cp.settings(cheked=False):
        pass


# ------------------------------------------------------------------------------------ whatever happens

FOREVER = r"""
extern "C" __global__ void spin(int* y) { while (((volatile int*)y)[0] == 0) {} }
extern "C" __global__ void fine(int* y) { y[threadIdx.x] = threadIdx.x; }
"""


def assert_all_is_well():
    y = cp.zeros(32, i4)
    get(FOREVER, "fine")((1,), (32,), (y,))
    np.testing.assert_array_equal(y.get(), np.arange(32))


@both_modes
def test_ctrl_c_ends_the_launch_and_nothing_else(checked):
    y, keep = cp.zeros(32, i4), cp.asarray(np.arange(5))
    get(FOREVER, "fine").compile()
    timer = threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
    with cp.settings(checked=checked, workers=2), pytest.raises(KeyboardInterrupt):
        get(FOREVER, "spin").compile()
        timer.start()
        get(FOREVER, "spin")((2,), (32,), (y,))
    timer.join()
    assert_all_is_well()
    assert keep.get().tolist() == [0, 1, 2, 3, 4]


def test_time_limit_is_the_settings():
    y = cp.zeros(32, i4)
    start = time.perf_counter()
    with cp.settings(seconds=0.5), pytest.raises(KernelError, match=r"time limit: the kernel still ran after 0\.5 s"):
        get(FOREVER, "spin")((1,), (32,), (y,))
    assert 0.4 < time.perf_counter() - start < 5
    assert_all_is_well()


def test_threads_may_launch_at_once():
    results, errors = {}, []

    def work(k):
        try:
            for _ in range(5):
                x, y = cp.full(1000, k, f4), cp.empty(1000, f4)
                axpy()((8,), (128,), (x, y, f4(2), i4(1000)))
                assert (y.get() == 2 * k).all()
            results[k] = True
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(results) == 4


def in_a_child(queue, x):
    try:
        before = x.get().tolist()
        x.fill(7)
        new = cp.full(4, 9, f4)
        axpy()((1,), (32,), (new, x, f4(2), i4(4)))
        queue.put((before, x.get().tolist()))
    except BaseException as error:
        queue.put(repr(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_its_own_arrays_and_workers():
    assert_all_is_well()
    x = cp.asarray(np.array([1, 2, 3, 4], f4))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(queue, x))
    child.start()
    assert queue.get(timeout=60) == ([1, 2, 3, 4], [18, 18, 18, 18])
    child.join(20)
    assert child.exitcode == 0
    assert x.get().tolist() == [1, 2, 3, 4]
    assert_all_is_well()


def run_python(code: str, timeout=60, **kwargs):
    kwargs["env"] = {"PYTHONPATH": str(ROOT), **os.environ, **kwargs.get("env", {})}
    return subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout, **kwargs)


USES_THE_DEVICE = """
    import os, signal, numpy as np
    from helpers import cpu_device as cp
    from helpers.cpu_device import kernel
    source = 'extern "C" __global__ void k(int *y) { y[threadIdx.x] = 1; } extern "C" __global__ void f(int *y) { while (((volatile int *)y)[0] == 0) {} }'
    y = cp.zeros(32, np.int32)
    keep = [cp.zeros(10) for _ in range(100)]
    cp.RawKernel(source, "k")((1,), (32,), (y,))
"""


def test_the_end_of_python_is_quiet():
    run = run_python(USES_THE_DEVICE + "    print('done')")
    assert (run.stdout, run.stderr, run.returncode) == ("done\n", "", 0)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in an endless loop"])
def test_workers_do_not_outlive_python(busy):
    code = USES_THE_DEVICE + "    print(kernel.pool.workers[0].process.pid, flush=True)\n" + (
        "    y[0] = 0\n    cp.RawKernel(source, 'f')((1,), (32,), (y,))" if busy else "    os.kill(os.getpid(), signal.SIGKILL)")
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True,
                               env={"PYTHONPATH": str(ROOT), **os.environ})
    worker = int(process.stdout.readline())
    if busy:
        time.sleep(1)
        process.kill()
    process.wait(20)
    process.stdout.close()
    deadline = time.monotonic() + 10
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(worker)


def arena_bytes() -> int:
    """Memory that the arena really holds."""
    return os.fstat(kernel_module.arena.fd).st_blocks * 512


def test_memory_comes_back():
    gc.collect()
    before = arena_bytes()
    x = cp.zeros(64 << 20, np.uint8)
    assert arena_bytes() >= before + (64 << 20)
    view = x[5:]
    del x
    assert arena_bytes() >= before + (64 << 20)
    del view
    gc.collect()
    assert arena_bytes() <= before + (1 << 20)


def test_ten_thousand_arrays():
    many = [cp.full(3, k, f4) for k in range(10_000)]
    x, y = many[9_876], cp.empty(3, f4)
    axpy()((1,), (32,), (x, y, f4(1), i4(3)))
    assert y.get().tolist() == [9876] * 3 and cp.current.last.of("x")[0].requests == 1
    with pytest.raises(KernelError) as caught:
        axpy()((1,), (32,), (x, y, f4(1), i4(4)))
    assert (caught.value.array, caught.value.index) == ("x", 3)
    assert many[123].get().tolist() == [123] * 3


def test_too_large_an_array_is_refused():
    with pytest.raises(MemoryError, match="no room"):
        cp.empty(2**40, np.uint8)
    with pytest.raises(ValueError, match="Unsupported dtype object"):
        cp.asarray(np.array([None]))


def test_without_a_compiler_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiler.compiler.cache_clear()
    try:
        with pytest.raises(NoCompiler, match=r"^Kernels run on the CPU through a C\+\+ compiler and none was found: .*(install|xcode).*\.$"):
            cp.RawKernel(BASIC + "// never compiled", "axpy").compile()
    finally:
        compiler.compiler.cache_clear()


@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang++")
@pytest.mark.skipif(bool(os.environ.get("CXX")), reason="CXX chooses the compiler of the whole run")
def test_the_other_compiler_counts_the_same():
    """A few kernels with clang++ too; `CXX=clang++ pytest tests/test_cpu_device*.py` runs everything with it."""
    run = run_python(f"""
        import sys
        sys.path[:0] = [{str(Path(__file__).parent)!r}]
        import test_cpu_device as t
        assert "clang" in t.compiler.compiler()[1]
        t.test_sectors_of_a_request(2, 0, 8)
        t.test_divergent_lanes_make_their_own_requests()
        t.test_counts_of_operations()
        t.test_warp_functions(True)
        t.test_device_variables()
    """, env={"CXX": "clang++"})
    assert run.returncode == 0, run.stderr


# ------------------------------------------------------------------------------------------ arguments and places


POINTERS = r"""
struct Arrays { const float* x; float* y; };
extern "C" __global__ void in_a_struct(Arrays a, int n) { if (threadIdx.x < n) a.y[threadIdx.x] = a.x[threadIdx.x]; }
extern "C" __global__ void in_a_table(float* const* table, float* y) { y[threadIdx.x] = table[blockIdx.x][threadIdx.x]; }
extern "C" __global__ void as_a_number(unsigned long long x, float* y) { y[threadIdx.x] = ((float*)x)[threadIdx.x]; }
"""


def test_arrays_may_be_passed_in_any_way():
    x, y = cp.asarray(random(32)), cp.empty(32, f4)
    pair = np.array([(x.data.ptr, y.data.ptr)], dtype=[("x", np.uint64), ("y", np.uint64)])
    get(POINTERS, "in_a_struct")((1,), (32,), (pair, i4(32)))
    np.testing.assert_array_equal(y.get(), x.get())
    table = cp.asarray(np.array([x.data.ptr], np.uint64))
    get(POINTERS, "in_a_table")((1,), (32,), (table, y))
    get(POINTERS, "as_a_number")((1,), (32,), (np.uint64(x.data.ptr), y))
    get(POINTERS, "as_a_number")((1,), (32,), (x.data.ptr, y))
    np.testing.assert_array_equal(y.get(), x.get())


IN_PLACE = r"""
#include <cuda_fp16.h>
template <class T> __global__ void bump(T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = y[i] + T(1);
}
template <class T> __global__ void bump_twice(T* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = y[i] + T(1);
    __syncthreads();
    __shared__ T s[64];
    s[threadIdx.x] = y[blockIdx.x * blockDim.x + threadIdx.x];
    s[threadIdx.x] = s[threadIdx.x] + T(1);
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = s[63 - threadIdx.x];
}
"""


@pytest.mark.parametrize("name, dtype", [("unsigned char", np.uint8), ("__half", np.float16), ("float", f4), ("double", np.float64)])
def test_neighbours_in_one_cell_are_no_race(name, dtype):
    """Elements smaller than what the checks remember by: threads, warps and blocks meet in one cell and do not collide."""
    names = tuple(f"{k}<{t}>" for k in ("bump", "bump_twice") for t in ("unsigned char", "__half", "float", "double"))
    m = module(IN_PLACE, names)
    for seed in (0, 1, 2, 3):
        y = cp.zeros(130, dtype)
        with cp.settings(seed=seed):
            m.get_function(f"bump<{name}>")((3,), (43,), (y, i4(129)))
            assert y.get().tolist() == [1] * 129 + [0]
            y = cp.zeros(128, dtype)
            m.get_function(f"bump_twice<{name}>")((2,), (64,), (y, i4(128)))
            assert y.get().tolist() == [2] * 128

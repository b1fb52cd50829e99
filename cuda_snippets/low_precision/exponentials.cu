// The weight exp(x - m) of every element, in three ways that are the same in exact arithmetic.
//
// New:     the hardware has an instruction for 2^t, and e^z = 2^(z log2 e).  expf() spends nine instructions on an accurate
//          result, the second form three, and the third two: a fused multiply-add and the power, once m log2 e is known.
// Traffic: 1 read and 1 write per element.
// Launch:  one thread an element: as many blocks as N needs.
// Limits:  m is not -inf.  The third form needs |m| < 2^30: beyond that even the largest weight can overflow or vanish.
#define LOG2_E 1.44269504f

extern "C" __global__ void by_expf(const float* __restrict__ x, float* __restrict__ w, float m, int N) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < N) w[j] = expf(x[j] - m);
}

extern "C" __global__ void by_product(const float* __restrict__ x, float* __restrict__ w, float m, int N) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < N) w[j] = exp2f((x[j] - m) * LOG2_E);
}

extern "C" __global__ void by_fma(const float* __restrict__ x, float* __restrict__ w, float m, int N) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const float m2 = m * LOG2_E;                    // the same for the whole row
    if (j < N) w[j] = exp2f(fmaf(x[j], LOG2_E, -m2));
}

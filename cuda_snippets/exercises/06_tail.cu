// Exercise 06-b: multiply every row by its own factor, four floats at a time.
//
// It is right only where N is a multiple of 4 and x starts at a multiple of 16.
// Task:   make it right for every N and every start, and keep 16-byte accesses wherever they are possible.
// Launch: one row a block: grid M; any block of at most 1024 threads.
// Limits: x and y reach addresses that are multiples of 16 together.

extern "C" __global__ void scale_rows(const float* __restrict__ x, const float* __restrict__ factor, float* __restrict__ y,
                                      int M, int N) {
    const int t = threadIdx.x, threads = blockDim.x;
    const float f = factor[blockIdx.x];
    x += (long long)blockIdx.x * N;
    y += (long long)blockIdx.x * N;

    // --- your part
    const float4* __restrict__ x4 = (const float4*)x;
    float4* __restrict__ y4 = (float4*)y;
    for (int k = t; k < N / 4; k += threads) {
        const float4 v = x4[k];
        y4[k] = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
    }
    // --- end of your part
}

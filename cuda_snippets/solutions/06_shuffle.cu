// Solution of exercise 06-c: scale every row to length 1, y = x / sqrt(sum of x^2).  The threads meet through shuffles.
//
// New:    against the exercise: the lanes of a warp add their sums in 5 exchanges, then every warp adds the sums of all warps.
// Launch: one row a block: grid M; the block is a multiple of 32 threads, at most 1024.
// Limits: no row is all zeros.

extern "C" __global__ void unit_rows(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    // --- your part
    __shared__ float partial[32];                   // one value a warp
    // --- end of your part
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;
    y += (long long)blockIdx.x * N;

    float sum = 0;
    for (int j = t; j < N; j += threads) sum += x[j] * x[j];

    // --- your part
    for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
    if (t % 32 == 0) partial[t / 32] = sum;
    __syncthreads();
    sum = t % 32 < threads / 32 ? partial[t % 32] : 0;
    for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
    // --- end of your part

    const float factor = 1 / sqrtf(sum);
    for (int j = t; j < N; j += threads) y[j] = x[j] * factor;
}

// Exercise 06-c: scale every row to length 1, y = x / sqrt(sum of x^2).  The threads meet in a tree in shared memory.
//
// Task:   let them meet through shuffles: one barrier a row, and one value a warp in shared memory.  Blocks of any multiple
//         of 32 threads, such as 96, which the tree cannot halve.
// Launch: one row a block: grid M; the block is a multiple of 32 threads, at most 1024.
// Limits: no row is all zeros.

extern "C" __global__ void unit_rows(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    // --- your part
    __shared__ float partial[1024];                 // one value a thread
    // --- end of your part
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;
    y += (long long)blockIdx.x * N;

    float sum = 0;
    for (int j = t; j < N; j += threads) sum += x[j] * x[j];

    // --- your part
    partial[t] = sum;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    sum = partial[0];
    // --- end of your part

    const float factor = 1 / sqrtf(sum);
    for (int j = t; j < N; j += threads) y[j] = x[j] * factor;
}

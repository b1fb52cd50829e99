// Solution of exercise 05-d: double n floats, neighbouring threads touch neighbouring elements.
//
// New:    against the exercise: the threads take turns.  Thread id doubles elements id, id + threads, id + 2 * threads, ...
// Launch: any grid, any block, any n up to 2^31 minus the number of threads.

extern "C" __global__ void double_all(const float* __restrict__ x, float* __restrict__ y, int n) {
    const int threads = gridDim.x * blockDim.x;                 // in the whole grid
    const int id = blockIdx.x * blockDim.x + threadIdx.x;       // of this thread in it

    // --- your part
    for (int i = id; i < n; i += threads) y[i] = 2 * x[i];
    // --- end of your part
}

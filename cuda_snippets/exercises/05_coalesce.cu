// Exercise 05-d: double n floats.  Every thread takes one piece of neighbouring elements.
//
// Launch: any grid, any block, any n: one thread may have many elements, or none.
// Task:   let neighbouring threads touch neighbouring elements, so that a request of a warp needs 4 sectors and not 32.

extern "C" __global__ void double_all(const float* __restrict__ x, float* __restrict__ y, int n) {
    const int threads = gridDim.x * blockDim.x;                 // in the whole grid
    const int id = blockIdx.x * blockDim.x + threadIdx.x;       // of this thread in it

    // --- your part
    const int piece = (n + threads - 1) / threads;              // elements a thread, rounded up
    for (int i = id * piece; i < (id + 1) * piece && i < n; ++i) y[i] = 2 * x[i];
    // --- end of your part
}

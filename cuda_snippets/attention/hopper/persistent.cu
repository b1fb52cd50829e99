// One block for each multiprocessor, which goes from one item of work to the next: the last step.
//
// New:     against ring.cu: while consumers finish an item, the producer already fills the ring for the next, so that neither starting nor
//          writing leaves the tensor cores idle.  Which block does what is decided before the launch: heavy items first, each for the
//          block that has least to do (schedule() in helpers/hopper.py).
// Memory:  as wgmma.cu, and 4 bytes an item.
// Launch:  grid: one block a multiprocessor, or fewer; otherwise as ring.cu.  `items`: of round r and block b, items[r * gridDim.x + b] is
//          head * blocks + block of QUERIES queries, or -1 after the block's last.
// Limits:  as ring.cu; fewer than 2^31 items.
// Needs:   sm_90a
#include "attention/hopper/ring.h"
#if OVERLAP
#include "attention/hopper/overlapped.h"
#else
#include "attention/hopper/sequential.h"
#endif

// Calls f(round, head, first query) for each item of this block.
template <class F> __device__ __forceinline__ void each_item(const int* items, int blocks, int Sq, F f) {
    int next = items[blockIdx.x];
    for (int round = 0; next >= 0; ++round) {
        const int item = next;
        next = items[(round + 1) * gridDim.x + blockIdx.x];         // is there by the time it is needed
        f(round, item / blocks, first_query(item % blocks, Sq));
    }
}

extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
hopper_persistent(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                  const __grid_constant__ TensorMap o, float* __restrict__ lse, int Sq, int Sk, int causal, float scale,
                  const int* __restrict__ items, int blocks) {
    Memory& memory = ready_memory();
    Place place;
    if (threadIdx.x < 128) {
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)                                       // one warp brings K and V,
            each_item(items, blocks, Sq, [&](int, int head, int begin) {
                fetch_keys_and_values(memory, k, v, place, tiles_of(begin, QUERIES, Sq, Sk, causal), head / GROUP);
            });
        if (threadIdx.x == 32)                                      // another Q, as soon as a consumer has done with the last
            each_item(items, blocks, Sq, [&](int round, int head, int begin) {
                for (int w = 0; w < CONSUMERS; ++w) {
                    memory.q_empty[w].wait(round % 2 ^ 1);
                    fetch(memory.Q[w], q, memory.q_full[w], begin + 64 * w, head);
                }
            });
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int consumer = this_warpgroup() - 1;
#if OVERLAP
        if (consumer == CONSUMERS - 1) end_turn(consumer);          // consumer 0 begins
#endif
        each_item(items, blocks, Sq, [&](int round, int head, int begin) {
            const int queries = begin + 64 * consumer, first = queries + threadIdx.x % 128 / 32 * 16;
            State s;
            memory.q_full[consumer].wait(round % 2);
            consume(s, memory, place, memory.Q[consumer], memory.q_empty[consumer], Seen(first, Sq, Sk, causal), scale * 1.44269504f,
                    tiles_of(queries, 64, Sq, Sk, causal), tiles_of(begin, QUERIES, Sq, Sk, causal));
            write(s, memory.O[consumer], o, lse, queries, head, Sq, scale);
        });
        wait_stores();
    }
}

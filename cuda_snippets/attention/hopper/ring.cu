// A warpgroup that only copies, and consumers that only compute.
//
// New:     against wgmma.cu: a producer warpgroup keeps a ring of STAGES tiles filled and gives its registers to the consumers.  No
//          __syncthreads() is left: a consumer waits for the bytes of a tile, and the producer for the consumers that let it go.  So
//          consumers drift apart, and one computes exponentials while another keeps the tensor cores busy.
//          With -DLAZY=1 they do not look for maxima, see lazy.h.  With -DOVERLAP=1 a consumer computes exponentials while the tensor
//          cores work for itself, see overlapped.h.  With -DTURNS=1 as well, consumers take turns at the tensor cores.
// Memory:  as wgmma.cu.
// Launch:  grid (B * H, ceil(Sq / QUERIES)), block 128 * (1 + CONSUMERS), dynamic shared memory for `Memory`.
// Limits:  as wgmma.cu; CONSUMERS 2, 3 or 4.
// Needs:   sm_90a
#include "attention/hopper/ring.h"
#if OVERLAP
#include "attention/hopper/overlapped.h"
#else
#include "attention/hopper/sequential.h"
#endif

extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
hopper_ring(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
            const __grid_constant__ TensorMap o, float* __restrict__ lse, int Sq, int Sk, int causal, float scale) {
    Memory& memory = ready_memory();
    const int begin = first_query(blockIdx.y, Sq), head = blockIdx.x;
    const int tiles = tiles_of(begin, QUERIES, Sq, Sk, causal);
    Place place;
    if (threadIdx.x < 128) {                                        // the producer: one thread is enough
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            for (int w = 0; w < CONSUMERS; ++w) fetch(memory.Q[w], q, memory.q_full[w], begin + 64 * w, head);
            fetch_keys_and_values(memory, k, v, place, tiles, head / GROUP);
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int consumer = this_warpgroup() - 1, queries = begin + 64 * consumer;
        const int first = queries + threadIdx.x % 128 / 32 * 16;    // of this warp's band
#if OVERLAP
        if (consumer == CONSUMERS - 1) end_turn(consumer);          // consumer 0 begins
#endif
        State s;
        memory.q_full[consumer].wait(0);
        consume(s, memory, place, memory.Q[consumer], memory.q_empty[consumer], Seen(first, Sq, Sk, causal), scale * 1.44269504f,
                tiles_of(queries, 64, Sq, Sk, causal), tiles);
        write(s, memory.O[consumer], o, lse, queries, head, Sq, scale);
        wait_stores();
    }
}

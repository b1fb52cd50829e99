// Cooperative groups within a block: the block, tiles of a warp, the lanes that are active; and reductions over them.
#pragma once
namespace cuda_groups {

inline unsigned cuda_rank() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
inline unsigned cuda_threads() { return blockDim.x * blockDim.y * blockDim.z; }

struct thread_block {
  static void sync(HERE) { __syncthreads(file, line); }
  static unsigned thread_rank() { return cuda_rank(); }
  static unsigned num_threads() { return cuda_threads(); }
  static unsigned size() { return cuda_threads(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

struct grid_group {  // without sync(): blocks run one after the other
  static unsigned long long thread_rank() { return block_rank() * cuda_threads() + cuda_rank(); }
  static unsigned long long num_threads() { return num_blocks() * cuda_threads(); }
  static unsigned long long size() { return num_threads(); }
  static unsigned long long block_rank() { return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
  static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
};
inline grid_group this_grid() { return {}; }

// Lanes of one warp, as a mask.  `lane_at(r)` is the lane of the group's thread r.
struct cuda_lanes {
  unsigned mask;
  explicit cuda_lanes(unsigned mask) : mask(mask) {}
  unsigned thread_rank() const { return __popc(mask & ((1u << cuda_rank() % 32) - 1)); }
  unsigned num_threads() const { return __popc(mask); }
  unsigned size() const { return num_threads(); }
  void sync(HERE) const { __syncwarp(mask, file, line); }
  int any(int p, HERE) const { return __any_sync(mask, p, file, line); }
  int all(int p, HERE) const { return __all_sync(mask, p, file, line); }
  unsigned ballot(int p, HERE) const { return narrow(__ballot_sync(mask, p, file, line)); }
  template <class T> unsigned match_any(T v, HERE) const { return narrow(__match_any_sync(mask, v, file, line)); }
  template <class T> unsigned match_all(T v, int &pred, HERE) const { return narrow(__match_all_sync(mask, v, &pred, file, line)); }
  template <class T> T shfl(T v, int rank, HERE) const { return __shfl_sync(mask, v, lane_at(rank % (int)size()), 32, file, line); }
  template <class T> T shfl_up(T v, unsigned delta, HERE) const {
    unsigned rank = thread_rank();
    return __shfl_sync(mask, v, lane_at(rank < delta ? rank : rank - delta), 32, file, line);
  }
  template <class T> T shfl_down(T v, unsigned delta, HERE) const {
    unsigned rank = thread_rank();
    return __shfl_sync(mask, v, lane_at(rank + delta < size() ? rank + delta : rank), 32, file, line);
  }
 protected:
  unsigned narrow(unsigned lanes) const {  // from bits of the warp to bits of the group
    unsigned r = 0;
    for (unsigned i = 0; i < size(); ++i) r |= (lanes >> lane_at(i) & 1u) << i;
    return r;
  }
  int lane_at(unsigned rank) const {
    unsigned left = mask;
    while (rank--) left &= left - 1;
    return __ffs(left) - 1;
  }
};
struct coalesced_group : cuda_lanes { using cuda_lanes::cuda_lanes; };
inline coalesced_group coalesced_threads(HERE) { return coalesced_group(__activemask(file, line)); }

template <unsigned N, class Parent = void> struct thread_block_tile : cuda_lanes {
  static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");
  thread_block_tile() : cuda_lanes((N == 32 ? ~0u : (1u << N % 32) - 1) << (cuda_rank() % 32 & ~(N - 1))) {}
  static unsigned thread_rank() { return cuda_rank() % N; }
  static constexpr unsigned num_threads() { return N; }
  static constexpr unsigned size() { return N; }
  static unsigned meta_group_rank() { return cuda_rank() / N; }
  static unsigned meta_group_size() { return (cuda_threads() + N - 1) / N; }
  template <class T> T shfl(T v, int rank, HERE) const { return __shfl_sync(mask, v, rank, N, file, line); }
  template <class T> T shfl_up(T v, unsigned delta, HERE) const { return __shfl_up_sync(mask, v, delta, N, file, line); }
  template <class T> T shfl_down(T v, unsigned delta, HERE) const { return __shfl_down_sync(mask, v, delta, N, file, line); }
  template <class T> T shfl_xor(T v, unsigned lanes, HERE) const { return __shfl_xor_sync(mask, v, (int)lanes, N, file, line); }
};
template <unsigned N, class Parent> inline thread_block_tile<N, Parent> tiled_partition(const Parent &) { return {}; }

template <class Group> inline void sync(const Group &g, HERE) { g.sync(file, line); }

template <class T = void> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T = void> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T = void> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T = void> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T = void> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T = void> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

template <unsigned N, class P, class T, class Op> inline T reduce(const thread_block_tile<N, P> &tile, T v, Op op, HERE) {
  for (unsigned lanes = N / 2; lanes; lanes /= 2) v = op(v, tile.shfl_xor(v, lanes, file, line));
  return v;
}
template <class T, class Op> inline T reduce(const coalesced_group &group, T v, Op op, HERE) {
  T result = group.shfl(v, 0, file, line);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = op(result, group.shfl(v, rank, file, line));
  return result;
}

}  // namespace cuda_groups

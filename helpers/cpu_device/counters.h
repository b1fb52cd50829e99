// What a profiler would count: one row for each instruction and array, summed over all warps.  Included by runtime.cpp.
#pragma once
#include <unordered_map>

struct CounterRow {
  uint64_t pc;  // relative to the library: the Python side turns it into a line
  int32_t space, kind, array, bytes_each;
  uint64_t instructions;     // one for each lane that takes part
  uint64_t requests;         // one for each warp
  uint64_t bytes, sectors;   // of global memory: distinct 32-byte sectors of each request
  uint64_t wavefronts, extra;  // of shared memory: passes over the 32 banks, and those beyond the least possible
};
struct Event {  // one lane's access, for the access map
  uint32_t step, block;
  uint16_t thread;
  uint8_t kind, space;
  int16_t array;
  uint16_t bytes;
  uint64_t address;
};
static std::vector<CounterRow> counter_rows;
static std::vector<Event> trace;
static std::unordered_map<uint64_t, uint32_t> row_of;
static uint32_t trace_step;

static CounterRow &row_for(const Lane &l) {
  static uint64_t last_key = 0;
  static uint32_t last_row = 0;
  if (counter_rows.empty()) row_of.clear(), last_key = 0, trace_step = 0;
  uint64_t key = (uint64_t)(l.pc - (uintptr_t)library_base) << 20 | (uint64_t)(l.array + 1) << 8 | l.kind << 4 | l.space;
  if (key != last_key) {
    auto found = row_of.emplace(key, (uint32_t)counter_rows.size());
    if (found.second) counter_rows.push_back({l.pc - (uintptr_t)library_base, l.space, l.kind, l.array, l.bytes, 0, 0, 0, 0, 0, 0});
    last_key = key, last_row = found.first->second;
  }
  return counter_rows[last_row];
}

static void count_local() {
  CounterRow &row = row_for(*lane);
  ++row.instructions, row.bytes += lane->bytes;
}

static int distinct_sectors(uint64_t *sectors, int n) {
  int distinct = 0;
  bool ascending = true;
  for (int i = 1; i < n; ++i) ascending &= sectors[i - 1] <= sectors[i];
  if (!ascending) std::sort(sectors, sectors + n);
  for (int i = 0; i < n; ++i) distinct += i == 0 || sectors[i] != sectors[i - 1];
  return distinct;
}
// Shared memory has 32 banks of 4 bytes.  Lanes that want different words of one bank must take turns.  8-byte accesses are
// served by half warps, 16-byte accesses by quarter warps.
static int wavefronts_of(const uint64_t *addresses, const int *lane_of, int n, int bytes, int *least) {
  int part = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8, total = 0;
  *least = 0;
  for (int i = 0; i < n;) {
    int group = lane_of[i] / part, used[32] = {}, worst = 0;
    uint64_t words[128];
    int count = 0;
    for (; i < n && lane_of[i] / part == group; ++i)
      for (uint64_t w = addresses[i] / 4; w <= (addresses[i] + bytes - 1) / 4; ++w) words[count++] = w;
    std::sort(words, words + count);
    for (int k = 0; k < count; ++k)
      if (k == 0 || words[k] != words[k - 1]) worst = std::max(worst, ++used[words[k] % 32]);
    total += worst, ++*least;
  }
  return total;
}

// Count the lanes of `warp` that wait at `pc` (0: whatever the one lane waits for) as one request and let them go on.
static void count_request(Lane *warp, int n, uintptr_t pc = 0, int depth = 0) {
  uint64_t addresses[64], sectors[64];
  int lane_of[32], left = n;
  bool first_part = true;
  while (left) {  // usually once: all lanes of an instruction access the same array
    Lane *one = nullptr;
    int count = 0, spans = 0;
    left = 0;
    for (int i = 0; i < n; ++i) {
      Lane &l = warp[i];
      if (l.state != ACCESS || (pc && (l.pc != pc || l.depth != depth))) continue;
      if (!one) one = &l;
      if (l.space != one->space || l.array != one->array) { ++left; continue; }
      addresses[count] = l.address, lane_of[count++] = i;
      sectors[spans++] = l.address / 32;
      if ((l.address + l.bytes - 1) / 32 != l.address / 32) sectors[spans++] = l.address / 32 + 1;
      l.state = RUN;
      if ((request.flags & TRACE) && trace.size() < request.trace_limit)
        trace.push_back({trace_step, (uint32_t)(block_index.x + request.grid[0] * (block_index.y + request.grid[1] * block_index.z)),
                         (uint16_t)index_of(&l), l.kind, l.space, l.array, l.bytes, l.address});
    }
    if (!one) return;
    CounterRow &row = row_for(*one);
    row.instructions += count, row.requests += first_part, row.bytes += (uint64_t)count * one->bytes;
    if (one->space == GLOBAL) row.sectors += distinct_sectors(sectors, spans);
    if (one->space == SHARED) {
      int least, wavefronts = wavefronts_of(addresses, lane_of, count, one->bytes, &least);
      row.wavefronts += wavefronts, row.extra += wavefronts - least;
    }
    first_part = false;
  }
  ++trace_step;
}

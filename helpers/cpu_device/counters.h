// What a profiler would count: one row for each instruction and array, summed over all warps.  Included by runtime.cpp.
//
// A lane does not stop at each access: it writes the access into its log and runs on.  `replay` then reads the 32 logs of
// a warp side by side and puts together what a GPU would have issued as one request.
#pragma once

struct CounterRow {
  uint64_t pc;  // relative to the library: the Python side turns it into a line
  int32_t space, kind, array, bytes_each;
  uint64_t instructions;       // one for each lane that takes part
  uint64_t requests;           // one for each warp
  uint64_t bytes, sectors;     // of global memory: distinct 32-byte sectors of each request
  uint64_t wavefronts, extra;  // of shared memory: passes over the 32 banks, and those beyond the least possible
};
struct Event {  // one lane's access, for the access map
  uint32_t step, block;
  int32_t array;
  uint16_t thread, bytes;
  uint8_t kind, space;
  uint64_t address;
};
// An access in a lane's log.  The key sorts: the deepest function call first, then the lowest address of code, which is how
// lanes that took different branches come together again.  Below that: array, kind, space, size.
struct Access { uint64_t key, address; };
constexpr int LOG = 32, PLACE_BITS = 28;  // accesses a lane may be ahead; bits below depth and pc
struct Log {
  Access entries[LOG];
  unsigned head, tail;
};
static Log logs[32];  // of the warp that runs
static unsigned log_limit = LOG;
static std::vector<CounterRow> counter_rows;
static std::vector<Event> trace;
static std::map<uint64_t, uint32_t> row_of;
static uint32_t trace_step;

static inline __attribute__((always_inline)) uint64_t key_of(const Place &p, unsigned depth) {
  uint64_t call = 255 - std::min(depth, 255u);
  return (call << 28 | (library_offset(p.pc) & 0xfffffff)) << PLACE_BITS | (uint64_t)(p.array + 1) << 8 | p.kind << 6 |
         p.space << 3 | __builtin_ctz(p.bytes);
}
struct Key {  // taken apart again
  uint64_t k;
  uint64_t pc() const { return k >> PLACE_BITS & 0xfffffff; }
  int array() const { return (int)(k >> 8 & 0xfffff) - 1; }
  int kind() const { return k >> 6 & 3; }
  int space() const { return k >> 3 & 7; }
  int bytes() const { return 1 << (k & 7); }
};

static CounterRow &row_for(Key key) {
  static uint64_t last_key = 0;
  static uint32_t last_row = 0;
  if (counter_rows.empty()) row_of.clear(), last_key = 0, trace_step = 0;
  if (key.k != last_key) {
    auto found = row_of.emplace(key.k, (uint32_t)counter_rows.size());
    if (found.second) counter_rows.push_back({key.pc(), key.space(), key.kind(), key.array(), key.bytes(), 0, 0, 0, 0, 0, 0});
    last_key = key.k, last_row = found.first->second;
  }
  return counter_rows[last_row];
}

static int distinct_sectors(const uint64_t *addresses, int n) {
  uint64_t sectors[32];  // an aligned access of at most 16 bytes lies in one sector
  int distinct = 1;
  bool ascending = true;
  for (int i = 0; i < n; ++i) sectors[i] = addresses[i] / 32;
  for (int i = 1; i < n; ++i) ascending &= sectors[i - 1] <= sectors[i];
  if (!ascending) std::sort(sectors, sectors + n);
  for (int i = 1; i < n; ++i) distinct += sectors[i] != sectors[i - 1];
  return distinct;
}
// Shared memory has 32 banks of 4 bytes.  Lanes that want different words of one bank must take turns.  8-byte accesses are
// served by half warps, 16-byte accesses by quarter warps.
static int wavefronts_of(const uint64_t *addresses, const uint8_t *lane_of, int n, int bytes, int *least) {
  int part = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8, total = 0;
  *least = 0;
  for (int i = 0; i < n;) {
    int group = lane_of[i] / part, used[32] = {}, worst = 0, count = 0;
    uint64_t words[128];
    bool ascending = true;
    for (; i < n && lane_of[i] / part == group; ++i)
      for (uint64_t w = addresses[i] / 4; w <= (addresses[i] + bytes - 1) / 4; ++w) {
        ascending &= count == 0 || words[count - 1] <= w;
        words[count++] = w;
      }
    if (!ascending) std::sort(words, words + count);
    for (int k = 0; k < count; ++k)
      if (k == 0 || words[k] != words[k - 1]) worst = std::max(worst, ++used[words[k] % 32]);
    total += worst, ++*least;
  }
  return total;
}

// Count one request: the access at the head of the logs of the lanes in `lanes_in` (all of one instruction).
static void count_request(int first_thread, unsigned lanes_in) {
  bool first_part = true;
  while (lanes_in) {  // usually once: all lanes of an instruction access the same array
    uint64_t addresses[32], key = 0;
    uint8_t lane_of[32];
    int count = 0;
    for (unsigned left = lanes_in; left; left &= left - 1) {
      int i = __builtin_ctz(left);
      Log &log = logs[i];
      const Access &a = log.entries[log.head % LOG];
      if (!count) key = a.key;
      if (a.key != key) continue;
      ++log.head, lanes_in &= ~(1u << i);
      addresses[count] = a.address, lane_of[count++] = (uint8_t)i;
    }
    Key k{key};
    CounterRow &row = row_for(k);
    row.instructions += count, row.requests += first_part, row.bytes += (uint64_t)count * k.bytes();
    if (k.space() == GLOBAL) row.sectors += distinct_sectors(addresses, count);
    if (k.space() == SHARED) {
      int least, wavefronts = wavefronts_of(addresses, lane_of, count, k.bytes(), &least);
      row.wavefronts += wavefronts, row.extra += wavefronts - least;
    }
    if (request.flags & TRACE)
      for (int i = 0; i < count && trace.size() < request.trace_limit; ++i)
        trace.push_back({trace_step, (uint32_t)block_number, k.array(), (uint16_t)(first_thread + lane_of[i]), (uint16_t)k.bytes(),
                         (uint8_t)k.kind(), (uint8_t)k.space(), addresses[i]});
    first_part = false;
  }
  ++trace_step;
}

// Count what is in the logs of a warp of `n` lanes, request by request, until a lane that ran out of log has to run again
// (true) or all logs are empty (false).
static bool replay(int first_thread, int n) {
  for (;;) {
    bool again = false;
    uint64_t best = ~0ull;
    for (int i = 0; i < n; ++i) {
      const Log &log = logs[i];
      if (log.head != log.tail) best = std::min(best, log.entries[log.head % LOG].key >> PLACE_BITS);
      else if (state_of[first_thread + i] == LOG_FULL) state_of[first_thread + i] = RUN, again = true;
    }
    if (again) return true;
    if (best == ~0ull) return false;
    unsigned lanes_in = 0;
    for (int i = 0; i < n; ++i) {
      const Log &log = logs[i];
      lanes_in |= (unsigned)(log.head != log.tail && log.entries[log.head % LOG].key >> PLACE_BITS == best) << i;
    }
    count_request(first_thread, lanes_in);
  }
}

static void count_local(const Place &p) {
  CounterRow &row = row_for({key_of(p, 0)});
  ++row.instructions, row.bytes += p.bytes;
}

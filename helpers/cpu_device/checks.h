// Is this access right?  Bounds, alignment, reads of memory nothing wrote, and races.  Included by runtime.cpp.
//
// Races are found by order, not by luck: each barrier of a block starts a new epoch, each __syncwarp a new warp epoch.
// Every 2 bytes of shared and 4 bytes of global memory remember who touched them last, and when.  Two accesses of which
// one writes are a race when neither an epoch nor, within a warp, a warp epoch lies between them - in any schedule.
#pragma once

struct Mark {        // the last write, or the reads since
  uint32_t epoch;    // never repeats, so a mark of an earlier block or launch is recognised by its age alone
  uint32_t warp_epoch;
  uint32_t pc;       // relative to the library
  uint16_t thread;   // linear in the block
  uint8_t mask;      // which bytes of the cell
  uint8_t extra;     // a write: bit 0 atomic, bits 4-7 the bytes written in this launch.  A read: Readers
};
enum Readers : uint8_t { ONE_THREAD, ONE_WARP, SEVERAL_WARPS };
struct SharedCell { Mark write, read; };

static uint32_t epoch = 1, launch_epoch, block_epoch;
static uint32_t warp_epoch[32];
static bool block_synchronized;  // this block has used a fence or a global atomic: it may read what other blocks wrote
static char *initialized;        // one byte for each byte of the arena, shared with the Python side
static std::vector<char> written;  // per array, in this launch
static Mark *global_marks;         // one for each 4 bytes of the arena, zero pages until touched
static std::vector<SharedCell> dynamic_cells;
static std::vector<std::vector<SharedCell>> static_cells;  // one vector for each __shared__ array

static void begin_launch() {
  launch_epoch = ++epoch;
  written.assign(arrays.size(), 0);
  if (!lockstep) return;
  if (!global_marks) {
    void *p = mmap(nullptr, arena_bytes * (sizeof(Mark) / 4), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) _exit(6);
    global_marks = (Mark *)p;
  }
  dynamic_cells.assign(request.shared_bytes / 2 + 8, SharedCell());
  static_cells.clear();
  for (const Symbol &s : shared_symbols) static_cells.emplace_back(s.bytes / 2 + 8);
}
static void begin_block() {
  block_epoch = ++epoch;
  block_synchronized = false;
}

[[noreturn]] static void bad_access(Problem problem, uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  Report &r = report_problem(problem, pc);
  r.space = lane->space, r.kind = kind, r.address = address, r.bytes = bytes, r.array = lane->array;
  if (address - (uintptr_t)library_base < (uintptr_t)(library_end - library_base)) r.address = address - (uintptr_t)library_base;
  if (address - (uintptr_t)dynamic_shared < sizeof dynamic_shared) r.address = address - (uintptr_t)dynamic_shared, r.array = -2;
  abandon();
}
[[noreturn]] static void race(Problem problem, const Mark &other, bool other_wrote, uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  Report &r = report_problem(problem, pc);
  r.space = lane->space, r.kind = kind, r.address = address, r.bytes = bytes, r.array = lane->array;
  if (lane->space == SHARED) r.address = address - (uintptr_t)(lane->array < 0 ? dynamic_shared : library_base);
  if (lane->space == SHARED && lane->array < 0) r.array = -2;
  r.other_pc = other.pc, r.other_kind = other_wrote ? STORE : LOAD;
  unsigned t = other.thread, x = request.block[0], y = request.block[1];
  set3(r.other_thread, {t % x, t / x % y, t / x / y});
  abandon();
}

// A section's first symbol is the section itself; the others are its arrays, with gaps between them.
static bool in_section(const std::vector<Symbol> &symbols, uintptr_t address) {
  return !symbols.empty() && address - (uintptr_t)library_base - symbols[0].offset < symbols[0].bytes;
}
static int find_symbol(const std::vector<Symbol> &symbols, uintptr_t address, int bytes) {
  uint64_t offset = address - (uintptr_t)library_base;
  for (size_t i = 1; i < symbols.size(); ++i)
    if (offset >= symbols[i].offset && offset + bytes <= symbols[i].offset + symbols[i].bytes) return (int)i;
  return -1;
}

// Which memory is it?  Sets the lane's `space` and `array`; false for memory that is nobody's business (the arguments,
// constants of the library).
static bool locate(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  Lane &l = *lane;
  uint64_t offset = address - (uintptr_t)arena;
  if (offset < arena_bytes) {
    l.space = GLOBAL;
    if (l.array < 0 || l.array >= (int)arrays.size() || offset - arrays[l.array].offset >= arrays[l.array].bytes) {
      auto after = std::upper_bound(arrays.begin(), arrays.end(), offset, [](uint64_t o, const Array &a) { return o < a.offset; });
      l.array = (int16_t)(after - arrays.begin()) - 1;
    }
    if (l.array < 0 || offset + bytes > arrays[l.array].offset + arrays[l.array].bytes)
      bad_access(OUT_OF_BOUNDS, address, bytes, kind, pc);
  } else if (address - (uintptr_t)dynamic_shared < sizeof dynamic_shared) {
    l.space = SHARED, l.array = -1;
    if (address - (uintptr_t)dynamic_shared + bytes > request.shared_bytes) bad_access(OUT_OF_BOUNDS, address, bytes, kind, pc);
  } else if (address - (uintptr_t)library_base < (uintptr_t)(library_end - library_base)) {
    if (in_section(shared_symbols, address)) l.space = SHARED;
    else if (in_section(variables, address)) l.space = VARIABLE;
    else return false;
    l.array = find_symbol(l.space == SHARED ? shared_symbols : variables, address, bytes);
    if (l.array < 0) bad_access(OUT_OF_BOUNDS, address, bytes, kind, pc);
  } else if (address - (uintptr_t)stacks.base < Stacks::size * stacks.count) {
    l.space = LOCAL, l.array = -1;
  } else if (address - (uintptr_t)arguments < sizeof arguments || address - (uintptr_t)argument_at < sizeof argument_at) {
    return false;
  } else {
    l.space = OTHER, l.array = -1;
    bad_access(OUT_OF_BOUNDS, address, bytes, kind, pc);
  }
  if (l.space != LOCAL && address % bytes) bad_access(MISALIGNED, address, bytes, kind, pc);
  return true;
}

static bool same_warp_ordered(const Mark &m, unsigned me) {
  return m.thread / 32 == me / 32 && m.warp_epoch < warp_epoch[me / 32];
}
// Does this lane's access to `mask` bytes of a cell collide with a write in the same block?
static bool collides(const Mark &w, unsigned mask, unsigned me, bool atomic) {
  return w.epoch == epoch && (w.mask & mask) && w.thread != me && !(atomic && (w.extra & 1)) && !same_warp_ordered(w, me);
}
static void mark_write(Mark &w, unsigned mask, unsigned me, bool atomic, uintptr_t pc) {
  uint8_t before = w.epoch >= launch_epoch ? w.extra & 0xf0 : 0;
  uint8_t bytes = w.epoch == epoch && w.thread == me ? w.mask | mask : mask;
  w = {epoch, warp_epoch[me / 32], (uint32_t)(pc - (uintptr_t)library_base), (uint16_t)me, bytes,
       (uint8_t)(before | mask << 4 | (atomic ? 1 : 0))};
}

static void check_global(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  Lane &l = *lane;
  uint64_t offset = address - (uintptr_t)arena;
  Array &a = arrays[l.array];
  if (!a.initialized) {
    if (kind != STORE)
      for (int i = 0; i < bytes; ++i)
        if (!initialized[offset + i]) bad_access(UNINITIALIZED, address, bytes, kind, pc);
    if (kind != LOAD) memset(initialized + offset, 1, bytes);
  }
  if (kind == ATOMIC) block_synchronized = true;
  if (kind == LOAD && !written[l.array]) return;
  if (kind != LOAD) written[l.array] = 1;
  unsigned me = index_of(lane);
  for (uint64_t at = offset; at < offset + bytes; at = (at | 3) + 1) {
    Mark &w = global_marks[at / 4];
    unsigned mask = (((1u << std::min<uint64_t>(offset + bytes - at, 4 - at % 4)) - 1) << at % 4) & 15;
    if (w.epoch >= launch_epoch && w.epoch < block_epoch) {  // another block of this launch wrote here
      if ((w.mask & mask) && !block_synchronized && !(kind == ATOMIC && (w.extra & 1))) race(BLOCK_RACE, w, true, address, bytes, kind, pc);
    } else if (collides(w, mask, me, kind == ATOMIC)) {
      race(RACE, w, true, address, bytes, kind, pc);
    }
    if (kind != LOAD) mark_write(w, mask, me, kind == ATOMIC, pc);
  }
}

static void check_shared(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  Lane &l = *lane;
  uint64_t offset = l.array < 0 ? address - (uintptr_t)dynamic_shared : address - (uintptr_t)library_base - shared_symbols[l.array].offset;
  SharedCell *cells = l.array < 0 ? dynamic_cells.data() : static_cells[l.array].data();
  unsigned me = index_of(lane);
  bool atomic = kind == ATOMIC;
  for (uint64_t at = offset; at < offset + bytes; at = (at | 1) + 1) {
    SharedCell &c = cells[at / 2];
    unsigned mask = bytes == 1 ? 1u << at % 2 : 3;
    if (kind != STORE && c.write.epoch < block_epoch) bad_access(UNINITIALIZED, address, bytes, kind, pc);
    if (collides(c.write, mask, me, atomic)) race(RACE, c.write, true, address, bytes, kind, pc);
    Mark &r = c.read;
    bool read_now = r.epoch == epoch && (r.mask & mask) && !(r.extra == ONE_THREAD && r.thread == me) &&
                    !(r.extra != SEVERAL_WARPS && same_warp_ordered(r, me));
    if (kind == LOAD) {
      uint8_t readers = !read_now ? ONE_THREAD : r.extra == SEVERAL_WARPS || r.thread / 32 != me / 32 ? SEVERAL_WARPS : ONE_WARP;
      r = {epoch, warp_epoch[me / 32], (uint32_t)(pc - (uintptr_t)library_base), (uint16_t)me, (uint8_t)(read_now ? r.mask | mask : mask), readers};
    } else {
      if (read_now) race(RACE, r, false, address, bytes, kind, pc);
      mark_write(c.write, mask, me, atomic, pc);
    }
  }
}

static void check(uintptr_t address, int bytes, Kind kind, uintptr_t pc) {
  if (lane->space == GLOBAL) check_global(address, bytes, kind, pc);
  if (lane->space == SHARED) check_shared(address, bytes, kind, pc);
  if (lane->space == VARIABLE && kind == ATOMIC) block_synchronized = true;
}

// After the launch: arrays that had to be written whole, but were not.
static void find_unwritten() {
  for (size_t i = 0; i < arrays.size() && lockstep && !failed; ++i) {
    const Array &a = arrays[i];
    if (!a.wants_written) continue;
    uint64_t missing = 0, first = 0;
    for (uint64_t at = a.offset; at < a.offset + a.bytes; ++at) {
      const Mark &w = global_marks[at / 4];
      if (w.epoch >= launch_epoch && (w.extra >> 4 >> at % 4 & 1)) continue;
      if (!missing++) first = at;
    }
    if (!missing) continue;
    Report &r = report_problem(UNWRITTEN, 0);
    r.space = GLOBAL, r.array = (int)i, r.address = (uintptr_t)arena + first, r.bytes = missing;
  }
}

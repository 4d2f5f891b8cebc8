// The allocator's hot path, compared with other allocators: one block allocated and freed, by size
// and by number of threads, and a hundred at once. Each time is also given in uncontended
// std::mutex lock and unlock pairs, measured before and after it. No timed loop makes a driver
// call: free memory is already there. Blocks of random sizes are the exception: eight threads share a
// stream, or have one each, and free memory has to be found.
#include <benchmark/benchmark.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/replay/replay.h"
#include "bench/support/peers.h"
#include "bench/support/session.h"

namespace stillmap::bench {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

std::string in_words(std::size_t bytes) {
  if (bytes >= GiB) return std::to_string(bytes / GiB) + " GiB";
  if (bytes >= MiB) return std::to_string(bytes / MiB) + " MiB";
  return bytes >= KiB ? std::to_string(bytes / KiB) + " KiB" : std::to_string(bytes) + " B";
}

// What the threads of one case share: made by its first thread, before the others begin to measure,
// and gone when all of them have ended. A peer may have per-thread state whose destructor runs at
// the end of the thread: libstdc++'s pool uses the pool there.
template <class Peer>
struct arena_of_case {
  std::unique_ptr<session> machine_of_case;
  std::unique_ptr<peer_machine> machine;
  std::unique_ptr<Peer> peer;
  double mutex = 0;
  driver_counts before;
};
template <class Peer>
arena_of_case<Peer> shared;

template <class Peer>
bool set_up(benchmark::State &state, std::size_t bytes, int blocks) {
  auto &c = shared<Peer>;
  c.machine_of_case = std::make_unique<session>(state, memory_kind::unbacked, 4 * GiB);
  if (!*c.machine_of_case) return false;
  c.machine = std::make_unique<peer_machine>(c.machine_of_case->dev());
  if (c.machine->streams.size() != most_threads) {
    state.SkipWithError("no streams");
    return false;
  }
  c.peer = std::make_unique<Peer>(*c.machine);
  if (const char *const why = c.peer->missing()) {
    state.SkipWithError(why);
    return false;
  }
  c.mutex = replay::mutex_ns();
  // What the loops take, and freed, until requests are known to recur.
  const auto warm_up = [&] {
    const context_guard guard(c.machine->dev.driver(), c.machine->dev.context());
    std::vector<void *> first(static_cast<std::size_t>(blocks));
    bool fine = true;
    for (int i = 0; i < 64 * state.threads(); ++i) {
      const int thread = i % state.threads();
      for (void *&block : first) block = c.peer->allocate(bytes, thread);
      for (void *block : first) fine &= block != nullptr && c.peer->free(block, bytes, thread);
    }
    return fine;
  };
  if (!warm_up()) {
    state.SkipWithError("no memory");
    return false;
  }
  c.before = c.machine->dev.driver().counts();
  return true;
}

template <class Peer>
void tear_down(const benchmark::State &) {
  auto &c = shared<Peer>;
  c.peer.reset();
  c.machine.reset();
  c.machine_of_case.reset();
}

template <class Peer>
void blocks_of(benchmark::State &state, std::size_t bytes, int blocks) {
  const int thread = state.thread_index();
  bool ready = true;
  if (thread == 0) ready = set_up<Peer>(state, bytes, blocks);
  if (!ready) shared<Peer>.peer.reset();
  std::vector<void *> held(static_cast<std::size_t>(blocks));
  bool freed = true;
  for (auto _ : state) {
    // Set up by the first thread, whose reason for having none is not the others'.
    Peer *const peer = shared<Peer>.peer.get();
    if (peer == nullptr) {
      state.SkipWithError("not set up");
      break;
    }
    for (void *&block : held) {
      block = peer->allocate(bytes, thread);
      benchmark::DoNotOptimize(std::as_const(block));  // the lvalue form loses it at -O2 (GCC 12)
    }
    for (void *block : held) freed &= peer->free(block, bytes, thread);
  }
  if (!freed) state.SkipWithError("a block could not be freed");
  if (thread != 0 || !ready) return;
  auto &c = shared<Peer>;
  // Before and after: a machine's clock changes while it is watched.
  state.counters["mutex_ns"] = (c.mutex + replay::mutex_ns()) / 2;
  state.counters["blocks"] = blocks;
  if (freed && Peer::on_device && (c.machine->dev.driver().counts() - c.before).total() != 0) {
    state.SkipWithError("a driver call in the loop");
  }
}

// A pair is the free of a random one of a thread's blocks and the allocation of another.
template <class Peer>
void random_blocks(benchmark::State &state, bool one_stream) {
  const int thread = state.thread_index(), on = one_stream ? 0 : thread;
  auto &c = shared<Peer>;
  bool ready = true;
  if (thread == 0) ready = set_up<Peer>(state, 8 * MiB, 1);
  if (!ready) c.peer.reset();
  struct block {
    void *at = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<block> held(32);
  std::mt19937 random(static_cast<unsigned>(thread) + 1);
  std::optional<context_guard> current;
  bool fine = true;
  for (auto _ : state) {
    Peer *const peer = c.peer.get();
    if (peer == nullptr) {
      state.SkipWithError("not set up");
      break;
    }
    if (!current) current.emplace(c.machine->dev.driver(), c.machine->dev.context());
    block &b = held[random() % held.size()];
    if (b.at != nullptr) fine &= peer->free(b.at, b.bytes, on);
    b.bytes = MiB + random() % (7 * MiB);
    b.at = peer->allocate(b.bytes, on);
    fine &= b.at != nullptr;
  }
  if (current) {
    for (const block &b : held) fine &= b.at == nullptr || c.peer->free(b.at, b.bytes, on);
  }
  if (!fine) state.SkipWithError("a block could not be had, or not be freed");
  if (thread == 0 && ready) state.counters["mutex_ns"] = (c.mutex + replay::mutex_ns()) / 2;
}

// tools/bench_table.py makes a table of names with a bar: what | by whom.
template <class Peer>
void add(std::size_t bytes, int blocks, int threads) {
  std::string name = blocks == 1 ? "" : std::to_string(blocks) + " x ";
  name += in_words(bytes);
  if (threads != 1) name += ", " + std::to_string(threads) + " threads";
  auto *const b = benchmark::RegisterBenchmark(
      (name + "|" + Peer::name).c_str(),
      [bytes, blocks](benchmark::State &state) { blocks_of<Peer>(state, bytes, blocks); });
  b->Threads(threads)->UseRealTime()->Teardown(tear_down<Peer>);
  if (!smoke()) b->MinTime(0.2);
}

template <class Peer>
void add_random(bool one_stream) {
  const std::string name =
      one_stream ? "random 1-8 MiB, 8 threads, one stream" : "random 1-8 MiB, 8 threads";
  auto *const b = benchmark::RegisterBenchmark(
      (name + "|" + Peer::name).c_str(),
      [one_stream](benchmark::State &state) { random_blocks<Peer>(state, one_stream); });
  b->Threads(most_threads)->UseRealTime()->Teardown(tear_down<Peer>);
  if (!smoke()) b->MinTime(0.2);
}

template <class... Peers>
void add_all() {
  for (const std::size_t bytes :
       {std::size_t{512}, 4 * KiB, 32 * KiB, 256 * KiB, MiB, 4 * MiB, 64 * MiB, GiB}) {
    (add<Peers>(bytes, 1, 1), ...);
  }
  for (const std::size_t bytes : {512 + std::size_t{0}, 8 * KiB, 64 * KiB, 3 * MiB}) {
    (add<Peers>(bytes, 100, 1), ...);
  }
  for (const std::size_t bytes : {4 * KiB, MiB}) {
    for (const int threads : {2, 4, 8}) (add<Peers>(bytes, 1, threads), ...);
  }
}

[[maybe_unused]] const bool added = [] {
  add_all<stillmap_peer, segments_peer, malloc_peer, mimalloc_peer, pmr_peer>();
  for (const bool one_stream : {true, false}) {
    add_random<stillmap_peer>(one_stream);
    add_random<segments_peer>(one_stream);
  }
  return true;
}();

}  // namespace
}  // namespace stillmap::bench

// Throughput of the allocators with eight threads: all on one stream, each on its own, with sizes that
// come again and with random ones. Each thread keeps 16 blocks and replaces a random one of them. The
// segment policy stands behind one mutex, as in frameworks. Driver calls are counted, not forbidden:
// a random size fits only by chance where another was.
#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <random>
#include <string>

#include "bench/support/peers.h"
#include "bench/support/session.h"

namespace stillmap::bench {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
constexpr int threads = 8;
constexpr std::size_t window = 16;  // blocks of a thread

enum class sizes { same, few, random };

struct load {
  bool one_stream;
  sizes of;
  std::size_t smallest, largest;  // bytes
};

class size_source {
 public:
  size_source(const load &l, int thread)
      : load_(l),
        random_(static_cast<unsigned>(thread) + 1),
        next_(l.smallest / 512, l.largest / 512) {}
  std::size_t bytes() {
    if (load_.of == sizes::same) return load_.smallest;
    if (load_.of == sizes::few) return load_.smallest << (random_() % 4);
    return next_(random_) * 512;
  }
  std::size_t index() { return random_() % window; }

 private:
  const load &load_;
  std::minstd_rand random_;
  std::uniform_int_distribution<std::size_t> next_;
};

template <class Peer>
struct shared_case {
  std::unique_ptr<session> of_case;
  std::unique_ptr<peer_machine> machine;
  std::unique_ptr<Peer> peer;
  driver_counts before;
};
template <class Peer>
shared_case<Peer> in_use;

template <class Peer>
void set_up(benchmark::State &state) {
  auto &c = in_use<Peer>;
  c.of_case = std::make_unique<session>(state, memory_kind::unbacked, 4 * GiB);
  if (!*c.of_case) return;
  c.machine = std::make_unique<peer_machine>(c.of_case->dev());
  if (c.machine->streams.size() != most_threads) return state.SkipWithError("no streams");
  auto peer = std::make_unique<Peer>(*c.machine);
  if (const char *const why = peer->missing()) return state.SkipWithError(why);
  c.peer = std::move(peer);
  c.before = c.machine->dev.driver().counts();
}

template <class Peer>
void replace_blocks(benchmark::State &state, const load &l) {
  auto &c = in_use<Peer>;
  const int thread = state.thread_index();
  if (thread == 0) set_up<Peer>(state);
  size_source source(l, thread);
  const int stream = l.one_stream ? 0 : thread;
  struct block {
    void *at = nullptr;
    std::size_t bytes = 0;
  };
  std::array<block, window> held;
  bool fine = true;
  for (auto _ : state) {
    Peer *const peer = c.peer.get();  // set up by the first thread before the loop begins
    if (peer == nullptr) {
      state.SkipWithError("not set up");
      break;
    }
    block &b = held[source.index()];
    if (b.at != nullptr) fine &= peer->free(b.at, b.bytes, stream);
    b.bytes = source.bytes();
    b.at = peer->allocate(b.bytes, stream);
    fine &= b.at != nullptr;
  }
  if (Peer *const peer = c.peer.get()) {
    for (const block &b : held) {
      if (b.at != nullptr) fine &= peer->free(b.at, b.bytes, stream);
    }
  }
  if (!fine) state.SkipWithError("a request failed");
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()));
  if (thread != 0) return;
  if (c.machine != nullptr && Peer::on_device) {
    state.counters["driver_calls"] =
        static_cast<double>((c.machine->dev.driver().counts() - c.before).total());
  }
  c.peer.reset();
  c.machine.reset();
  c.of_case.reset();
}

// tools/bench_table.py makes a table of names with a bar: what | by whom.
template <class Peer>
void add(const std::string &what, load l) {
  auto *const b = benchmark::RegisterBenchmark(
      (what + "|" + Peer::name).c_str(),
      [l](benchmark::State &state) { replace_blocks<Peer>(state, l); });
  b->Threads(threads)->UseRealTime();
  if (!smoke()) b->MinTime(0.2);
}

template <class... Peers>
void add_all() {
  for (const bool one : {true, false}) {
    const std::string where = one ? ", 8 threads on one stream" : ", 8 threads on 8 streams";
    (add<Peers>("4 KiB" + where, {one, sizes::same, 4 * KiB, 4 * KiB}), ...);
    (add<Peers>("1 MiB" + where, {one, sizes::same, MiB, MiB}), ...);
    (add<Peers>("1, 2, 4, 8 MiB" + where, {one, sizes::few, MiB, MiB}), ...);
    (add<Peers>("random, to 64 KiB" + where, {one, sizes::random, 512, 64 * KiB}), ...);
    (add<Peers>("random, 1 to 8 MiB" + where, {one, sizes::random, MiB, 8 * MiB}), ...);
  }
}

[[maybe_unused]] const bool added = [] {
  add_all<stillmap_peer, segments_peer, malloc_peer, mimalloc_peer>();
  return true;
}();

}  // namespace
}  // namespace stillmap::bench

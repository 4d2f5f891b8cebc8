#include "tests/support/buffer_model.h"

#include <cuda.h>

#include <algorithm>
#include <random>

#include "stillmap/vmm/context.h"
#include "tests/support/small_machine.h"

namespace stillmap::testing {
namespace {

constexpr std::size_t pinned_bytes = std::size_t{8} << 20;

const char *const fault_calls[] = {
    "cuMemCreate",  "cuMemMap",          "cuMemSetAccess",   "cuMemAddressReserve", "cuMemAlloc",
    "cuMemUnmap",   "cuEventCreate",     "cuEventRecord",    "cuStreamWaitEvent",   "cuMemcpyDtoD",
    "cuEventQuery", "cuMemcpyDtoDAsync", "cuCtxSynchronize", "cuEventSynchronize"};
constexpr CUresult fault_codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                    CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};

// Name, how often it is drawn, and the largest value of each argument plus one.
struct op_kind {
  const char *name;
  unsigned weight;
  std::vector<std::uint64_t> ranges;
};
const std::vector<op_kind> &kinds() {
  constexpr std::uint64_t bytes = std::uint64_t{20} << 20;
  static const std::vector<op_kind> all{{"create", 6, {4, 16, 16}},
                                        {"resize", 14, {4, bytes, 4}},
                                        {"reserve", 4, {4, bytes, 4}},
                                        {"shrink", 6, {4, 3}},
                                        {"commit", 10, {4, 9, 4, 4}},
                                        {"decommit", 10, {4, 6, 3, 3}},
                                        {"alias", 6, {4, 5, 3, 5, 3}},
                                        {"fork", 7, {4, 5}},
                                        {"prepare", 10, {4, 5, 3, 3}},
                                        {"splice", 10, {4, 5, 2, 4, 9, 3}},
                                        {"close", 4, {5, 3}},
                                        {"move", 2, {5, 5}},
                                        {"fill", 14, {4, 160, 40, 256, 3}},
                                        {"upload", 10, {4, 160, 8, 256, 3}},
                                        {"kernel", 8, {4, 160, 8, 256, 3}},
                                        {"copy", 12, {4, 160, 8, 4, 160, 3}},
                                        {"read", 16, {4, 160, 8, 3}},
                                        {"check", 4, {}},
                                        {"fault", 20, {14, 6, 4}},
                                        {"trim", 2, {3, 8}},
                                        {"warm", 2, {3, 6}},
                                        {"squeeze", 3, {40}},
                                        {"collect", 2, {2}},
                                        {"drop_pool", 2, {3}}};
  return all;
}

}  // namespace

void buffer_model::demand(bool holds, const std::string &what) {
  if (!holds) throw broken{what};
}

buffer_model::buffer_model(std::size_t mib, std::uint64_t seed) {
  demand(small_machine::start(mib, seed) != nullptr, "the driver does not start");
  unreported_ = background_error_count();
  auto opened = device::open(0);
  demand(opened.has_value(), "the device does not open");
  device_.emplace(*opened);
  for (std::size_t i = 0; i < stream_count; ++i) {
    auto made = stream::create(*device_);
    demand(made.has_value(), "no stream");
    streams_.push_back(std::move(*made));
  }
  if (device_->capabilities().vmm) pools_[0] = device_->pool();
  const context_guard guard(device_->driver(), device_->context());
  const auto pinned = device_->driver().allocate_host(pinned_bytes);
  demand(pinned.has_value(), "no pinned memory");
  pinned_ = static_cast<unsigned char *>(*pinned);
}

// Also after a failure, when the context may be broken: whatever complains now is of no interest.
buffer_model::~buffer_model() {
  static_cast<void>(small_machine::stop_failing(""));
  for (buffer_state &b : buffers_) b = {};
  for (auto &p : pools_) p.reset();
  if (device_) {
    const context_guard guard(device_->driver(), device_->context());
    static_cast<void>(device_->driver().synchronize_context());
    if (module_ != nullptr) {
      const auto unload =
          reinterpret_cast<CUresult (*)(CUmodule)>(device_->driver().symbol("cuModuleUnload"));
      static_cast<void>(unload(static_cast<CUmodule>(module_)));
    }
    if (pinned_ != nullptr) static_cast<void>(device_->driver().free_host(pinned_));
  }
  streams_.clear();
  device_.reset();
}

std::optional<op_failure> buffer_model::run(const op_sequence &ops, const std::string &plant) {
  std::size_t at = 0;
  try {
    std::size_t mib = 64;
    std::uint64_t seed = 1;
    if (!ops.empty() && ops.front().name == "machine") {
      mib = std::clamp<std::size_t>(ops.front().arg(0), 8, 512);
      seed = ops.front().arg(1);
    }
    std::uint64_t unreported = 0;
    {
      buffer_model world(mib, seed);
      unreported = world.unreported_;
      for (; at < ops.size(); ++at) {
        world.perform(ops[at]);
        world.check_books();
        if (!plant.empty() && ops[at].name == plant) world.corrupt_a_byte();
      }
      world.check_contents();
      world.unreported_ = unreported = background_error_count();
      for (std::size_t b = 0; b < max_buffers; ++b) world.close({"close", {b, b % 3}});
      world.check_books();
    }
    demand(unreported == background_error_count(), "closing everything reported failures");
    const std::string left = small_machine::leftovers();
    demand(left.empty(), "left behind: " + left);
  } catch (const broken &b) {
    return op_failure{at, b.what};
  }
  return std::nullopt;
}

op_sequence buffer_model::generate(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 dice(seed);
  op_sequence out{{"machine", {dice() % 3 == 0 ? 24u : 64u, dice() % 8 == 0 ? 0 : seed + 1}}};
  unsigned total = 0;
  for (const op_kind &k : kinds()) total += k.weight;
  for (std::uint64_t b = 0; b < 2 + seed % 2; ++b) {
    out.push_back({"create", {b, dice() % 8, dice() % 16}});
    out.push_back({"resize", {b, dice() % (std::uint64_t{16} << 20), dice() % 4}});
  }
  while (out.size() < count) {
    std::uint64_t draw = dice() % total;
    for (const op_kind &k : kinds()) {
      if (draw >= k.weight) {
        draw -= k.weight;
        continue;
      }
      op o{k.name, {}};
      for (const std::uint64_t range : k.ranges) o.args.push_back(dice() % range);
      out.push_back(std::move(o));
      break;
    }
  }
  return out;
}

op_sequence buffer_model::from_bytes(const unsigned char *data, std::size_t size) {
  std::size_t at = 0;
  const auto next = [&](std::uint64_t range) {
    std::uint64_t v = 0;
    for (std::uint64_t r = range - 1; r != 0; r >>= 8) v = v << 8 | (at < size ? data[at++] : 0);
    return v % range;
  };
  op_sequence out{{"machine", {16 + next(64), next(256)}}};
  while (at < size && out.size() < 120) {
    const op_kind &k = kinds()[next(kinds().size())];
    op o{k.name, {}};
    for (const std::uint64_t range : k.ranges) o.args.push_back(range == 1 ? 0 : next(range));
    out.push_back(std::move(o));
  }
  return out;
}

void buffer_model::perform(const op &o) {
  using handler = void (buffer_model::*)(const op &);
  static const std::map<std::string, handler> handlers{
      {"create", &buffer_model::create},   {"resize", &buffer_model::grow},
      {"reserve", &buffer_model::grow},    {"shrink", &buffer_model::give_back},
      {"commit", &buffer_model::commit},   {"decommit", &buffer_model::give_back},
      {"alias", &buffer_model::alias},     {"fork", &buffer_model::fork},
      {"prepare", &buffer_model::prepare}, {"splice", &buffer_model::splice},
      {"close", &buffer_model::close},     {"move", &buffer_model::move},
      {"fill", &buffer_model::write},      {"upload", &buffer_model::write},
      {"kernel", &buffer_model::write},    {"copy", &buffer_model::copy},
      {"read", &buffer_model::read}};
  may_report_ = false;
  if (o.name == "machine") return;
  if (const auto it = handlers.find(o.name); it != handlers.end()) {
    (this->*it->second)(o);
  } else if (o.name == "check") {
    check_contents();
  } else {
    demand(perform_surroundings(o), "no such operation: " + o.name);
  }
}

bool buffer_model::perform_surroundings(const op &o) {
  if (o.name == "fault") {
    fault_ = wanted_fault{fault_calls[o.arg(0) % std::size(fault_calls)],
                          1 + (o.arg(1) % 6) * (o.arg(1) % 6) / 5,
                          static_cast<int>(fault_codes[o.arg(2) % std::size(fault_codes)])};
  } else if (o.name == "trim") {
    auto &pool = pools_[o.arg(0) % pools_.size()];
    if (pool == nullptr) return true;
    const std::size_t keep = o.arg(1) * pool->page_bytes();
    const bool trimmed = call("trim", std::nullopt, 0, {}, [&] {
      const auto r = pool->trim(keep);
      return r ? status() : tl::unexpected(r.error());
    });
    const page_pool_stats s = pool->stats();
    demand(!trimmed || s.free.bytes() - s.waiting.bytes() <= keep,
           "trim left more than it was told to keep");
  } else if (o.name == "warm") {
    auto &pool = pools_[o.arg(0) % pools_.size()];
    if (pool == nullptr) return true;
    const std::size_t bytes = o.arg(1) * pool->page_bytes();
    if (call("prepare", std::nullopt, bytes, {o.arg(0) % pools_.size()},
             [&] { return pool->prepare(bytes); })) {
      demand(pool->stats().free.bytes() >= bytes, "prepare made too little");
    }
  } else if (o.name == "squeeze") {
    small_machine::occupy((o.arg(0) % 64) << 20);
  } else if (o.name == "collect") {
    device_->space().collect(o.arg(0) % 2 != 0);
  } else if (o.name == "drop_pool") {
    auto &pool = pools_[o.arg(0) % max_pools + 1];
    dropped_.push_back(pool);
    pool.reset();
  } else {
    return false;
  }
  return true;
}

// ---- calling the library ------------------------------------------------------------------------

bool buffer_model::call(const std::string &what, std::optional<errc> refused, std::size_t fresh,
                        const std::vector<std::size_t> &from,
                        const std::function<status()> &perform_it, bool or_busy) {
  arm();
  const status s = perform_it();
  const bool fired = disarm();
  const bool busy = or_busy && !s && s.error().is(errc::busy);
  tally &seen = tallies_[what];
  ++(s ? seen.done : refused || busy ? seen.refused : seen.failed);
  if (busy) return false;
  if (refused) {
    demand(!s, what + " succeeded where it must be refused");
    demand(fired || s.error().is(*refused), what + " gave the wrong error: " + s.error().message());
    return false;
  }
  if (s || fired) return s.has_value();
  demand(s.error().is(errc::out_of_memory), what + " failed: " + s.error().message());
  demand(memory_is_short(fresh, from), what + " ran out of memory with enough of it free: asked " +
                                           std::to_string(fresh) + ", " + s.error().message());
  return false;
}

bool buffer_model::memory_is_short(std::size_t fresh, const std::vector<std::size_t> &from) const {
  const auto now = device_->memory();
  demand(now.has_value(), "device::memory failed");
  std::size_t free = now->free.bytes();
  if (std::any_of(dropped_.begin(), dropped_.end(), [](const auto &p) { return !p.expired(); })) {
    return true;  // which of the buffers' pools those are is not known any more
  }
  for (const std::size_t p : from) {
    if (p == 2 || from.size() > 1) return true;  // a limit, or shares that differ
    if (pools_[p] != nullptr) free += pools_[p]->stats().free.bytes();
  }
  return fresh > free;
}

void buffer_model::arm() {
  if (!fault_) return;
  small_machine::fail(fault_->call, fault_->nth, fault_->code);
}

bool buffer_model::disarm() {
  if (!fault_) return false;
  const bool fired = small_machine::stop_failing(fault_->call);
  // What cannot be undone now is tried again later, and said to the sink.
  may_report_ = fired && (fault_->call == "cuMemUnmap" || fault_->call == "cuEventSynchronize" ||
                          fault_->call == "cuEventQuery");
  fault_.reset();
  return fired;
}

fence buffer_model::fence_over(const stream_set &streams) {
  fence all;
  for (const std::size_t s : streams) {
    const auto f = fence::after(*device_, streams_[s - 1]);
    demand(f.has_value(), "fence::after failed");
    demand(all.join(*f).has_value(), "fence::join failed");
  }
  return all;
}

fence buffer_model::fence_for(const op &o, std::size_t mode_arg, const stream_set &streams) {
  fence idle = fence_over(streams);
  if (o.arg(mode_arg) % 3 == 2) demand(idle.wait().has_value(), "fence::wait failed");
  return idle;
}

buffer_model::buffer_state *buffer_model::live(const op &o, std::size_t arg) {
  buffer_state &b = buffers_[o.arg(arg) % max_buffers];
  return b.real ? &b : nullptr;
}

std::optional<stream_ref> buffer_model::stream_of(const op &o, std::size_t arg) const {
  const std::size_t s = o.arg(arg) % (stream_count + 1);
  return s == 0 ? std::nullopt : std::optional<stream_ref>(streams_[s - 1]);
}

}  // namespace stillmap::testing

// Performs a sequence on two device vectors and two std::vectors side by side.
#include "tests/support/vector_model.h"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/device_vector.h"
#include "tests/support/small_machine.h"

namespace stillmap::testing {
namespace {

struct broken {
  std::string what;
};
void demand(bool holds, const std::string &what) {
  if (!holds) throw broken{what};
}

// A failure of waiting is left out: the work waited for is done all the same.
const char *const vector_fault_calls[] = {
    "cuMemCreate", "cuMemMap",        "cuMemSetAccess", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync",
    "cuMemAlloc",  "cuMemsetD8Async", "cuEventRecord",  "cuMemHostAlloc",    "cuMemAddressReserve"};

template <std::size_t Bytes>
struct element {
  std::array<unsigned char, Bytes> bytes{};
  bool operator==(const element &) const = default;
};

template <class T>
class vector_world {
 public:
  explicit vector_world(const device &d) : device_(d) {
    for (int i = 0; i < 2; ++i) {
      auto s = stream::create(d);
      demand(s.has_value(), "no stream");
      streams_.push_back(std::move(*s));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      vector_options options;
      options.staging_bytes = 1500;
      options.buffer.reserve_bytes =
          i == 0 ? 0 : device_.capabilities().page_bytes;  // the other has to move
      auto v = device_vector<T>::create(d, options, streams_[i]);
      demand(v.has_value(), "no vector");
      real_.push_back(std::move(*v));
    }
  }

  void perform(const op &o) {
    if (o.name == "fault") {
      fault_ = o;
      return;
    }
    std::size_t i = o.arg(0) % 2;
    if (o.name == "move") {
      move(i);
      return;
    }
    if (o.name == "check") {
      check(i);
      return;
    }
    std::vector<T> after = model_[i];
    const std::size_t from_other = ready_in_the_other(i, o);
    arm();
    const status s = apply(o, i, after, from_other);
    const bool fired = disarm();
    // The other vector's stream is not ordered after the copies from its memory.
    if (from_other != 0) demand(real_[i].synchronize().has_value(), "synchronize failed");
    if (s) {
      model_[i] = std::move(after);
    } else {
      demand(fired || s.error().is(errc::out_of_memory),
             to_text({o}) + " failed: " + s.error().message());
    }
    demand(real_[i].size() == model_[i].size(), "size() is " + std::to_string(real_[i].size()) +
                                                    ", not " + std::to_string(model_[i].size()) +
                                                    (s ? "" : ", after a failure"));
    if (!s) check(i);
  }

  void check(std::size_t i) {
    const auto got = real_[i].to_host();
    demand(got.has_value(), "to_host failed: " + (got ? "" : got.error().message()));
    demand(got->size() == model_[i].size(), "to_host gives another size");
    if (got->empty() || std::memcmp(got->data(), model_[i].data(), got->size() * sizeof(T)) == 0) {
      return;
    }
    for (std::size_t k = 0; k < got->size(); ++k) {
      demand((*got)[k] == model_[i][k], "element " + std::to_string(k) + " of " +
                                            std::to_string(got->size()) +
                                            " is wrong: " + std::to_string((*got)[k].bytes[0]) +
                                            ", not " + std::to_string(model_[i][k].bytes[0]));
    }
  }

 private:
  T next() {
    T t;
    counter_ = counter_ * 1664525 + 1013904223;
    t.bytes.fill(static_cast<unsigned char>(counter_ >> 24));
    std::memcpy(t.bytes.data(), &counter_, std::min(sizeof counter_, sizeof t));
    return t;
  }
  std::vector<T> next(std::size_t n) {
    // Few bytes in all, whatever the element: a run of large ones is short.
    n = std::min(n, std::size_t{600000} / sizeof(T));
    std::vector<T> out(n);
    for (T &t : out) t = next();
    return out;
  }

  // Device memory to insert from: the other vector, whose stream comes first.
  std::size_t ready_in_the_other(std::size_t i, const op &o) {
    if (o.name != "append_device" && o.name != "insert_device") return 0;
    auto &other = real_[i ^ 1];
    demand(other.synchronize().has_value(), "synchronize failed");
    const std::size_t asked = o.arg(o.name == "append_device" ? 1 : 2);
    return std::min({asked, other.size(), std::size_t{600000} / sizeof(T)});
  }

  status apply(const op &o, std::size_t i, std::vector<T> &model, std::size_t from_other) {
    device_vector<T> &real = real_[i];
    const auto position = [&](std::uint64_t a) { return model.empty() ? 0 : a % model.size(); };
    if (o.name == "push") {
      // One by one: each that failed was not pushed.
      for (const T &t : next(o.arg(1) % 4000)) {
        if (status s = real.push_back(t); !s) {
          model_[i] = model;
          return s;
        }
        model.push_back(t);
      }
      return {};
    }
    if (o.name == "append" || o.name == "append_async") {
      // Kept until the end: an asynchronous append reads it later.
      const auto &values = *kept_.emplace_back(std::make_unique<std::vector<T>>(next(o.arg(1))));
      model.insert(model.end(), values.begin(), values.end());
      return o.name == "append" ? real.append(values) : real.append_async(values);
    }
    if (o.name == "append_device") {
      const auto &other = model_[i ^ 1];
      model.insert(model.end(), other.begin(),
                   other.begin() + static_cast<std::ptrdiff_t>(from_other));
      return real.append_from_device(address_of(i ^ 1), from_other);
    }
    if (o.name == "append_self") {
      if (model.size() * sizeof(T) > 4000000) return {};
      if (status s = real.flush(); !s) return s;
      const std::vector<T> copy = model;
      model.insert(model.end(), copy.begin(), copy.end());
      return real.append_from_device(address_of(i), copy.size());
    }
    if (o.name == "assign") {
      model = next(o.arg(1));
      return real.assign(model);
    }
    if (o.name == "insert") {
      const auto values = next(o.arg(2));
      const std::size_t at = o.arg(1) % (model.size() + 1);
      model.insert(model.begin() + static_cast<std::ptrdiff_t>(at), values.begin(), values.end());
      return real.insert(at, values);
    }
    if (o.name == "insert_device") {
      const auto &other = model_[i ^ 1];
      const std::size_t at = o.arg(1) % (model.size() + 1);
      model.insert(model.begin() + static_cast<std::ptrdiff_t>(at), other.begin(),
                   other.begin() + static_cast<std::ptrdiff_t>(from_other));
      return real.insert_from_device(at, address_of(i ^ 1), from_other);
    }
    if (o.name == "erase") {
      const std::size_t at = position(o.arg(1));
      const std::size_t n = std::min<std::size_t>(o.arg(2), model.size() - at);
      model.erase(model.begin() + static_cast<std::ptrdiff_t>(at),
                  model.begin() + static_cast<std::ptrdiff_t>(at + n));
      return real.erase(at, n);
    }
    if (o.name == "resize") {
      const std::size_t n = o.arg(1) % (std::size_t{2000000} / sizeof(T));
      model.resize(n);
      return real.resize(n);
    }
    if (o.name == "grow_raw") {  // what is new is unspecified, and then written
      const std::size_t old = model.size();
      const auto values = next(o.arg(1));
      if (status s = real.resize_uninitialized(old + values.size()); !s) return s;
      disarm();
      for (std::size_t k = 0; k < values.size(); k += 1 + values.size() / 4) {
        demand(real.set(old + k, values[k]).has_value(), "set failed");
      }
      const auto now = real.to_host();
      demand(now.has_value(), "to_host failed");
      for (std::size_t k = 0; k < values.size(); k += 1 + values.size() / 4) {
        demand((*now)[old + k] == values[k], "what was set is not there");
      }
      model.insert(model.end(), now->begin() + static_cast<std::ptrdiff_t>(old), now->end());
      return {};
    }
    if (o.name == "reserve") {
      const std::size_t n = o.arg(1) % (std::size_t{4000000} / sizeof(T));
      status s = real.reserve(n);
      demand(!s || real.capacity() >= n, "reserve left too little");
      return s;
    }
    if (o.name == "pop") {
      status s = real.pop_back();
      if (!model.empty()) {
        model.pop_back();
        return s;
      }
      demand(!s && s.error().is(errc::invalid_argument), "pop_back of nothing");
      return {};
    }
    if (o.name == "set" || o.name == "get") {
      if (model.empty()) {
        const auto nothing = real.get(0);
        demand(!nothing && nothing.error().is(errc::invalid_argument), "get of nothing");
        return {};
      }
      const std::size_t at = position(o.arg(1));
      if (o.name == "set") return real.set(at, model[at] = next());
      const auto got = real.get(at);
      if (!got) return tl::unexpected(got.error());
      demand(*got == model[at], "get gives another element");
      return {};
    }
    if (o.name == "clear") {
      model.clear();
      return real.clear();
    }
    if (o.name == "shrink") return real.shrink_to_fit();
    if (o.name == "flush") return real.flush();
    if (o.name == "stream") {
      const std::size_t s = o.arg(1) % 3;
      return real.set_stream(s == 2 ? stream_ref() : stream_ref(streams_[s]));
    }
    throw broken{"no such operation: " + o.name};
  }

  const T *address_of(std::size_t i) const {
    return static_cast<const T *>(real_[i].address().pointer());
  }

  void move(std::size_t i) {
    device_vector<T> away = std::move(real_[i]);
    real_[i] = std::move(away);
    demand(real_[i].size() == model_[i].size(), "a move changed size()");
  }

  void arm() {
    if (!fault_) return;
    small_machine::fail(call(), fault_->arg(1) % 8 + 1, CUDA_ERROR_OUT_OF_MEMORY);
  }
  bool disarm() {
    if (!fault_) return false;
    const bool fired = small_machine::stop_failing(call());
    fault_.reset();
    return fired;
  }
  const char *call() const {
    return vector_fault_calls[fault_->arg(0) % std::size(vector_fault_calls)];
  }

  device device_;
  std::vector<stream> streams_;
  std::vector<std::unique_ptr<std::vector<T>>> kept_;  // before real_: outlives its copies
  std::vector<device_vector<T>> real_;
  std::array<std::vector<T>, 2> model_;
  std::optional<op> fault_;
  std::uint32_t counter_ = 1;
};

template <std::size_t Bytes>
void run_all(const device &d, const op_sequence &ops, std::size_t &at) {
  vector_world<element<Bytes>> world(d);
  for (; at < ops.size(); ++at) {
    if (ops[at].name != "machine") world.perform(ops[at]);
    const std::string violation = small_machine::violation();
    demand(violation.empty(), violation);
  }
  world.check(0);
  world.check(1);
}

}  // namespace

std::optional<op_failure> run_vector_model(const op_sequence &ops) {
  std::size_t at = 0;
  const std::uint64_t before = background_error_count();
  std::optional<op_failure> failed;
  try {
    op machine{"machine", {64, 1, 2}};
    if (!ops.empty() && ops.front().name == "machine") machine = ops.front();
    demand(small_machine::start(std::clamp<std::uint64_t>(machine.arg(0), 8, 512),
                                machine.arg(1)) != nullptr,
           "the driver does not start");
    auto d = device::open(0);
    demand(d.has_value(), "the device does not open");
    switch (vector_element_sizes[machine.arg(2) % std::size(vector_element_sizes)]) {
      case 1:
        run_all<1>(*d, ops, at);
        break;
      case 3:
        run_all<3>(*d, ops, at);
        break;
      case 8:
        run_all<8>(*d, ops, at);
        break;
      case 24:
        run_all<24>(*d, ops, at);
        break;
      default:
        run_all<1000>(*d, ops, at);
        break;
    }
  } catch (const broken &b) {
    failed = op_failure{at, b.what};
  }
  static_cast<void>(small_machine::stop_failing(""));
  if (failed) return failed;
  if (const std::string left = small_machine::leftovers(); !left.empty()) {
    return op_failure{at, "left behind: " + left};
  }
  if (background_error_count() != before) return op_failure{at, "a failure went to the error sink"};
  return std::nullopt;
}

}  // namespace stillmap::testing

// device_vector, on pages and on copies.
#include <array>
#include <functional>

#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

using vector = device_vector<std::uint32_t>;

const std::vector<std::uint32_t> &some() {
  static const std::vector<std::uint32_t> values = [] {
    std::vector<std::uint32_t> out(3000);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = 7 + static_cast<std::uint32_t>(i) * 13;
    return out;
  }();
  return values;
}

// Sending what is staged needs no fence: without one the stream is waited for. Nor does giving back
// scratch memory: without one the device is waited for. And where waiting for a stream is refused,
// waiting for the device will do.
const std::set<std::string> optional_calls = {
    "cuCtxGetCurrent", "cuCtxPushCurrent",    "cuStreamIsCapturing",
    "cuEventRecord",   "cuEventQuery",        "cuEventSynchronize",
    "cuMemFree",       "cuStreamSynchronize", "cuMemUnmap"};

// A copying buffer that cannot double may still grow by just enough.
const std::set<std::string> optional_when_copying = [] {
  std::set<std::string> all = optional_calls;
  all.insert({"cuMemAlloc", "cuMemcpyDtoD", "cuCtxSynchronize"});
  return all;
}();

}  // namespace

void add_vector_operations(std::vector<operation> &all) {
  struct verb {
    const char *name;
    std::function<status(bench &)> run;
    std::function<void(bench &)> then = [](bench &) {};
    bool compare_after = true;
  };
  const auto pushed = [](bench &w) {
    for (std::uint32_t i = 0; i < 10; ++i) {
      if (!w.v->push_back(i)) throw std::runtime_error("push_back");
    }
  };
  const std::vector<verb> verbs = {
      {"push_back, first", [](bench &w) { return w.v->push_back(42); }},
      {"push_back, batch full",
       [](bench &w) -> status {
         // One element past the half that is staged.
         return w.v->push_back(43);
       },
       [](bench &w) {
         for (std::uint32_t i = 0; i < 512; ++i) {
           if (!w.v->push_back(i)) throw std::runtime_error("push_back");
         }
       }},
      {"flush", [](bench &w) { return w.v->flush(); }, pushed},
      {"append", [](bench &w) { return w.v->append(some()); }},
      {"append, growing",
       [](bench &w) {
         static const std::vector<std::uint32_t> many(1 << 20, 5);
         return w.v->append(many);
       }},
      {"append_async", [](bench &w) { return w.v->append_async(some()); }},
      {"append_from_device",
       [](bench &w) {
         return w.v->append_from_device(
             static_cast<const std::uint32_t *>(w.v->address().pointer()), 500);
       }},
      {"assign", [](bench &w) { return w.v->assign(some()); }, pushed},
      {"insert, in the middle", [](bench &w) { return w.v->insert(100, some()); }},
      {"insert, at the end", [](bench &w) { return w.v->insert(w.v->size(), some()); }},
      {"insert_from_device",
       [](bench &w) {
         return w.v->insert_from_device(100, static_cast<const std::uint32_t *>(w.c.buffer->data()),
                                        300);
       },
       [](bench &w) { w.make(w.c, 4, 1); }},
      {"erase, in the middle", [](bench &w) { return w.v->erase(100, 300); }},
      {"erase, at the end", [](bench &w) { return w.v->erase(w.v->size() - 10, 10); }, pushed},
      {"resize, growing", [](bench &w) { return w.v->resize(700000); }},
      {"resize, shrinking", [](bench &w) { return w.v->resize(10); }, pushed},
      {"resize_uninitialized, shrinking", [](bench &w) { return w.v->resize_uninitialized(20); },
       pushed},
      {"reserve", [](bench &w) { return w.v->reserve(3000000); }},
      {"pop_back", [](bench &w) { return w.v->pop_back(); }, pushed},
      {"clear", [](bench &w) { return w.v->clear(); }, pushed},
      {"set", [](bench &w) { return w.v->set(3, 3); }},
      {"get", [](bench &w) { return outcome(w.v->get(3)); }},
      {"copy_to_host",
       [](bench &w) {
         std::array<std::uint32_t, 50> out;
         return w.v->copy_to_host(out, 5);
       }},
      {"to_host", [](bench &w) { return outcome(w.v->to_host()); }},
      {"shrink_to_fit", [](bench &w) { return w.v->shrink_to_fit(); },
       [](bench &w) {
         if (!w.v->reserve(3000000)) throw std::runtime_error("reserve");
       }},
      {"set_stream", [](bench &w) -> status { return w.v->set_stream(w.v->stream()); }, pushed},
      {"synchronize", [](bench &w) { return w.v->synchronize(); }, pushed},
  };
  const auto called = [](const std::string &name) {
    return "device_vector::" + name.substr(0, name.find(','));
  };
  for (const bool copying : {false, true}) {
    const std::string of = copying ? "copying device_vector " : "device_vector ";
    // On copies it takes no driver call.
    if (!copying) {
      all.push_back({.name = of + "create",
                     .set = [copying](bench &w) { w.copying = copying; },
                     .run =
                         [copying](bench &w) {
                           vector_options options;
                           options.buffer.reserve_bytes = 4 * w.page();
                           options.buffer.force_copying = copying;
                           auto made = vector::create(*w.dev, options);
                           if (made) w.v = std::move(*made);
                           return outcome(made);
                         },
                     .may_survive = {},
                     .vmm = !copying});
    }
    for (const verb &v : verbs) {
      all.push_back({.name = of + v.name,
                     .set =
                         [copying, then = v.then](bench &w) {
                           w.copying = copying;
                           w.make_vector(2000);
                           then(w);
                         },
                     .run = v.run,
                     .may_survive = copying ? optional_when_copying : optional_calls,
                     .vmm = !copying,
                     .compare_after = v.compare_after,
                     .calls = called(v.name)});
    }
  }
}

}  // namespace stillmap::testing

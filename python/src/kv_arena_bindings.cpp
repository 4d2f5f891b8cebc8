// The class KVArena: kv::block_arena.
#include "stillmap/allocators/kv/block_arena.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/src/devices.h"
#include "python/src/kv_arena.h"
#include "python/src/kv_prefix_cache.h"
#include "python/src/streams.h"
#include "stillmap/allocators/kv/cache_offer.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

using block_ids = std::vector<kv::block_id>;
using block_needs = std::vector<std::pair<std::size_t, std::optional<kv::block_id>>>;

class python_block_arena final : public python_arena<kv::block_arena> {
 public:
  python_block_arena(std::unique_ptr<kv::block_arena> arena, int device, std::string tag,
                     const kv_elements &of, std::unique_ptr<kv::cache_offer> offer)
      : python_arena("KVArena", std::move(arena), device, std::move(tag), of),
        offer_(std::move(offer)) {}

  void close() {
    python_arena::close();
    const std::unique_ptr<kv::cache_offer> ends = std::move(offer_);
  }
  std::uint64_t wanted() const {
    return get([&](const kv::block_arena &) { return offer_ ? offer_->wanted() : 0; });
  }
  nb::object give(std::size_t keep_free) const {
    const block_ids evicted = run([&](kv::block_arena &a) {
      return with_host_memory("KVArena.give", [&]() -> result<block_ids> {
        if (offer_) STILLMAP_RETURN_IF_ERROR(offer_->give(a, keep_free, evicted_));
        return evicted_;
      });
    });
    nb::object ids = nb::cast(evicted);
    // Only now nobody can lose them.
    run([&](kv::block_arena &) -> status {
      evicted_.erase(evicted_.begin(),
                     evicted_.begin() + static_cast<std::ptrdiff_t>(evicted.size()));
      return {};
    });
    return ids;
  }

  exported_array describe(const kv_place &place, bool count) override {
    return run([&](kv::block_arena &a) -> result<exported_array> {
      STILLMAP_ASSIGN_OR_RETURN(
          exported_array made,
          describe_kv("KVArena.tensor", a.layout(), elements(), place, a.blocks(), true));
      made.address = a.tensor(place.layer, place.tensor.value_or(0)).value();
      made.device = ordinal();
      if (count) count_export();
      return made;
    });
  }

 private:
  // Both are used under the arena's lock, while it is open.
  std::unique_ptr<kv::cache_offer> offer_;
  mutable block_ids evicted_;  // that Python has not heard of yet
};

void construct_block_arena(python_block_arena *self, std::uint32_t layers, std::uint32_t tensors,
                           std::uint32_t heads, std::uint32_t dim, nb::handle dtype,
                           std::size_t tokens_per_block, std::size_t blocks,
                           std::uint32_t layers_per_range, std::size_t spare_blocks,
                           const std::string &tag, int ordinal, const python_quota *quota) {
  const kv_elements of{heads, dim, element_type_of(dtype)};
  kv::block_arena_options options;
  options.shape = kv_shape_of("KVArena", layers, tensors, of);
  options.tokens_per_block = tokens_per_block;
  options.blocks = blocks;
  options.layers_per_range = layers_per_range;
  options.spare_blocks = spare_blocks;
  options.tag = tag;
  std::shared_ptr<memory_quota> counted;
  if (quota != nullptr) counted = quota->use("KVArena");
  std::unique_ptr<kv::cache_offer> offer;
  auto made = value_of(without_gil([&]() -> result<std::unique_ptr<kv::block_arena>> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    STILLMAP_ASSIGN_OR_RETURN(options.pool, kv_pool(d, counted));
    if (counted) {
      STILLMAP_ASSIGN_OR_RETURN(offer, kv::cache_offer::create(std::move(counted)));
    }
    return kv::block_arena::create(d, std::move(options));
  }));
  new (self) python_block_arena(std::move(made), ordinal, tag, of, std::move(offer));
}

nb::object allocate_blocks(const python_block_arena &self, std::size_t n,
                           std::optional<kv::block_id> after) {
  const block_ids made = self.run([&](kv::block_arena &a) {
    return with_host_memory("KVArena.allocate", [&]() -> result<block_ids> {
      if (n > a.blocks()) {
        return make_error(errc::out_of_memory, "the arena has fewer blocks", n, a.blocks(),
                          error_unit::items);
      }
      block_ids ids(n);
      STILLMAP_RETURN_IF_ERROR(a.allocate(ids, after));
      return ids;
    });
  });
  try {
    return nb::cast(made);
  } catch (...) {  // nobody would know the blocks
    self.run([&](kv::block_arena &a) { return a.release(made); });
    throw;
  }
}

block_ids evict_blocks(const python_block_arena &self, std::size_t n) {
  return self.run([&](kv::block_arena &a) -> result<block_ids> {
    block_ids evicted;
    STILLMAP_RETURN_IF_ERROR(a.evict(n, evicted));
    return evicted;
  });
}

nb::list compact_blocks(const python_block_arena &self, std::size_t most, nb::handle stream) {
  const stream_ref s = stream_of(stream);
  const auto moves = self.run([&](kv::block_arena &a) { return a.compact(most, s); });
  nb::list list;
  for (const kv::block_move &move : moves) list.append(nb::make_tuple(move.from, move.to));
  return list;
}

nb::list occupancy_of(const python_block_arena &self) {
  const auto cells = self.run([](const kv::block_arena &a) {
    return with_host_memory("KVArena.occupancy", [&]() -> result<std::vector<kv::cell_occupancy>> {
      return a.occupancy();
    });
  });
  nb::list list;
  for (const kv::cell_occupancy &cell : cells) {
    nb::dict d;
    d["first"] = cell.first;
    d["blocks"] = cell.blocks;
    d["used"] = cell.used;
    d["cached"] = cell.cached;
    d["has_memory"] = cell.has_memory;
    list.append(std::move(d));
  }
  return list;
}

nb::list committed_ranges_of(const python_block_arena &self) {
  const auto ranges = self.run([](const kv::block_arena &a) {
    return with_host_memory("KVArena.committed_ranges",
                            [&]() -> result<std::vector<std::pair<kv::block_id, std::uint32_t>>> {
                              return a.committed_ranges();
                            });
  });
  nb::list list;
  for (const auto &[first, blocks] : ranges) list.append(nb::make_tuple(first, blocks));
  return list;
}

nb::dict block_stats_of(const python_block_arena &self) {
  const auto s = self.get([](const kv::block_arena &a) { return a.stats(); });
  nb::dict d;
  d["used"] = s.used;
  d["cached"] = s.cached;
  d["free"] = s.free;
  d["mapped_bytes"] = s.mapped_bytes;
  d["steps"] = s.steps;
  d["steps_that_waited"] = s.steps_that_waited;
  d["moved_blocks"] = s.moved_blocks;
  return d;
}

void prepare_sequences(const python_block_arena &self, const block_needs &needs,
                       nb::handle stream) {
  const stream_ref s = stream_of(stream);
  self.run([&](kv::block_arena &a) {
    return with_host_memory("KVArena.prepare", [&]() -> status {
      std::vector<kv::growth> growths;
      for (const auto &[blocks, after] : needs) growths.push_back({blocks, after});
      return a.prepare(growths, s);
    });
  });
}

void bind_steps(nb::class_<python_block_arena> &c) {
  c.def("prepare", &prepare_sequences, nb::arg("sequences"), nb::arg("stream").none() = nb::none(),
        "The next step needs these blocks: a pair for each sequence, of a number and the "
        "sequence's last block,\n"
        "or None where it begins. A thread maps what is missing, and unmaps the page groups that "
        "are free beyond\n"
        "that and beyond spare_blocks, once `stream` has done what is queued on it. Each sequence "
        "gets page\n"
        "groups of its own, so that they are free when it ends. Returns at once: call it while "
        "the step before\n"
        "runs.")
      .def(
          "prepare",
          [](const python_block_arena &self, std::size_t free_blocks, nb::handle stream) {
            const stream_ref s = stream_of(stream);
            self.run([&](kv::block_arena &a) { return a.prepare(free_blocks, s); });
          },
          nb::arg("free_blocks"), nb::arg("stream").none() = nb::none(),
          "The next step needs `free_blocks` blocks at most, wherever they are free: sequences "
          "then "
          "share page\n"
          "groups, and hold them until all of them have ended.")
      .def(
          "begin_step",
          [](const python_block_arena &self) {
            return self.run([](kv::block_arena &a) { return short_bytes(a.begin_step()); });
          },
          "Waits for the thread, if it is not done; what it mapped can be allocated from now on. "
          "Returns the\n"
          "bytes of device memory that were short: 0 where prepare() got all. The step may run "
          "with "
          "the\n"
          "blocks that there are. Raises BusyError (suspended), and what the driver or the host "
          "fails with.");
}

void bind_blocks(nb::class_<python_block_arena> &c) {
  c.def("allocate", &allocate_blocks, nb::arg("n"), nb::arg("after").none() = nb::none(),
        "Ids of `n` free blocks that have memory, each with one reference. `after`: the last block "
        "of the\n"
        "sequence that they continue. Raises OutOfMemoryError where fewer are free: nothing is "
        "allocated.")
      .def(
          "retain",
          [](const python_block_arena &self, const block_ids &blocks) {
            self.run([&](kv::block_arena &a) { return a.retain(blocks); });
          },
          nb::arg("blocks"), "One reference more to each block, which is used or cached.")
      .def(
          "release",
          [](const python_block_arena &self, const block_ids &blocks, bool keep) {
            using contents = kv::block_arena::contents;
            self.run([&](kv::block_arena &a) {
              return a.release(blocks, keep ? contents::keep : contents::drop);
            });
          },
          nb::arg("blocks"), nb::kw_only(), nb::arg("keep") = false,
          "One reference less. A block without references is free, or, with keep, cached.")
      .def(
          "drop",
          [](const python_block_arena &self, const block_ids &blocks) {
            self.run([&](kv::block_arena &a) { return a.drop(blocks); });
          },
          nb::arg("blocks"), "Frees cached blocks.")
      .def(
          "evict", &evict_blocks, nb::arg("n"),
          "Frees cached blocks of whole page groups, those first that were used longest ago, until "
          "`n` are\n"
          "freed or there are no more. Returns them.")
      .def_prop_ro("blocks",
                   [](const python_block_arena &self) {
                     return self.get([](const kv::block_arena &a) { return a.blocks(); });
                   })
      .def_prop_ro(
          "free_blocks",
          [](const python_block_arena &self) {
            return self.get([](const kv::block_arena &a) { return a.stats().free; });
          },
          "That have memory: allocate() gives as many.")
      .def(
          "tensor",
          [](nb::handle self, std::uint32_t layer, std::optional<std::uint32_t> tensor) {
            return kv_tensor_of(nb::borrow(self), nb::cast<python_block_arena &>(self),
                                {layer, tensor, {}});
          },
          nb::arg("layer"), nb::arg("tensor").none() = nb::none(),
          "A view [blocks, tokens_per_block, heads, dim] of one tensor of a layer; without "
          "`tensor`, "
          "[tensors,\n"
          "blocks, tokens_per_block, heads, dim] of all of them. Only allocated blocks may be "
          "touched.");
}

void bind_block_memory(nb::class_<python_block_arena> &c) {
  c.def(
       "missing_for",
       [](const python_block_arena &self, std::size_t blocks) {
         return self.run([&](const kv::block_arena &a) { return a.missing_for(blocks); });
       },
       nb::arg("blocks"),
       "Bytes of device memory that are missing for so many more blocks: 0 where prepare() would "
       "succeed\n"
       "now, under the quota.")
      .def_prop_ro("wanted", &python_block_arena::wanted,
                   "Bytes that others of the quota ask for: give() some. 0 without a quota.")
      .def("give", &python_block_arena::give, nb::arg("keep_free") = 0,
           "Gives others of the quota what they ask for: free memory but `keep_free` free blocks, "
           "then cached\n"
           "blocks, those first that were used longest ago. Returns the evicted blocks: the caller "
           "forgets what\n"
           "they held. Those of a call that raised are returned by the next one. Between "
           "begin_step() and\n"
           "prepare(). Waits for the device's work where somebody asks.")
      .def("compact", &compact_blocks, nb::arg("most"), nb::arg("stream").none() = nb::none(),
           "Moves at most `most` blocks where that frees page groups, by copies on the stream. "
           "Returns pairs\n"
           "(from, to): the caller renames the blocks in its tables.")
      .def("occupancy", &occupancy_of, "A dictionary for each cell, which gets memory as a whole.")
      .def("committed_ranges", &committed_ranges_of,
           "Pairs (first block, blocks) that have memory, in order.")
      .def_prop_ro(
          "settled",
          [](const python_block_arena &self) {
            return self.get([](const kv::block_arena &a) { return a.settled(); });
          },
          "The thread has nothing to do, and begin_step() would change nothing.")
      .def("stats", &block_stats_of);
}

struct block_cache {
  using arena = kv::block_arena;
  using entry = prefix_cache::entry;
  using python_entry = std::pair<kv::block_id, nb::bytes>;
  static constexpr const char *save = "KVArena.save", *load = "KVArena.load";
  static entry entry_of(const python_entry &e) { return {e.first, key_of(e.second)}; }
  static nb::tuple tuple_of(const entry &e) { return nb::make_tuple(e.block, bytes_of_key(e.key)); }
  static status forget(arena &a, const entry &e) { return a.drop({&e.block, 1}); }
};

}  // namespace

void bind_kv_arena(nb::module_ &m) {
  nb::class_<python_block_arena> c(
      m, "KVArena", nb::is_final(), nb::is_weak_referenceable(),
      "Key-value memory in blocks of tokens: one tensor a layer whose addresses never change, of "
      "which only\n"
      "the blocks in use have memory. docs/kv_arena.md\n"
      "Threads: safe; one call at a time, so others wait while begin_step() does.\n"
      "Streams: a released block may be given out at once, so its next use must be ordered after "
      "its last.");
  c.def(
      "__init__", &construct_block_arena, nb::kw_only(), nb::arg("layers"), nb::arg("tensors") = 2,
      nb::arg("heads"), nb::arg("dim"), nb::arg("dtype"), nb::arg("tokens_per_block") = 16,
      nb::arg("blocks"), nb::arg("layers_per_range") = 0, nb::arg("spare_blocks") = 0,
      nb::arg("tag") = "kv cache", nb::arg("device") = 0, nb::arg("quota").none() = nb::none(),
      "blocks: the most there can be, which are addresses and no memory. tensors: of a layer; 1 "
      "for one\n"
      "latent tensor. layers_per_range: 0 for the rule of docs/kv_layout.md. spare_blocks: "
      "blocks\n"
      "with memory that are kept beyond what prepare() asks for. quota: a SharedQuota that counts "
      "the\n"
      "memory. Raises NotSupportedError without virtual memory management.");
  bind_steps(c);
  bind_blocks(c);
  bind_block_memory(c);
  bind_prefix_cache<block_cache>(
      c,
      "Writes an image of these used or cached blocks, with the engine's key of each: pairs "
      "(block, key),\n"
      "those first that load() makes the first to be evicted. Between begin_step() and prepare(); "
      "waits for\n"
      "the device, and nothing may change the blocks until it returns. The options, and what it "
      "returns,\n"
      "are those of snapshot(). Raises InvalidArgumentError (a block that is free, or named twice; "
      "a key over\n"
      "4096 bytes), BusyError (begin_step() is missing), OSError. docs/kv_restart.md",
      "Brings the blocks of an image back under their ids, as cached blocks. Returns the pairs "
      "that were "
      "saved,\n"
      "in their order. The arena has no used or cached block, and shape, blocks and tag of the one "
      "that was\n"
      "saved. Waits for the device. Failure: no block is cached.\n"
      "Raises InvalidArgumentError (another shape or tag, no prefix cache), BusyError (blocks in "
      "use),\n"
      "OutOfMemoryError, CorruptError, OSError.");
  bind_common<kv::block_arena>(c);
  c.def("__repr__", [](const python_block_arena &self) {
    return "<stillmap.KVArena '" + self.tag() + "' on device " + std::to_string(self.ordinal()) +
           ">";
  });
}

}  // namespace stillmap::python

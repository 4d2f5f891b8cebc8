// The class KVSequenceArena: kv::sequence_arena.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "python/src/devices.h"
#include "python/src/kv_arena.h"
#include "python/src/kv_prefix_cache.h"
#include "python/src/streams.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

// An id in Python is a number, which no other sequence of the arena gets.
std::uint64_t number_of_sequence(kv::sequence_id s) {
  return std::uint64_t{s.serial} << 32 | s.slot;
}
kv::sequence_id sequence_of(std::uint64_t number) {
  return {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)};
}

class python_sequence_arena final : public python_arena<kv::sequence_arena> {
 public:
  python_sequence_arena(std::unique_ptr<kv::sequence_arena> arena, int device, std::string tag,
                        const kv_elements &of, std::size_t longest)
      : python_arena("KVSequenceArena", std::move(arena), device, std::move(tag), of),
        longest_(longest) {}

  exported_array describe(const kv_place &place, bool count) override {
    return run([&](kv::sequence_arena &a) -> result<exported_array> {
      const kv::sequence_id s = sequence_of(place.sequence.value_or(0));
      STILLMAP_RETURN_IF_ERROR(check_exists(a, s));
      STILLMAP_ASSIGN_OR_RETURN(
          exported_array made,
          describe_kv("KVSequenceArena.tensor", a.layout(), elements(), place, longest_, false));
      made.address = a.tensor(s, place.layer, place.tensor.value_or(0)).value();
      made.device = ordinal();
      if (count) count_export();
      return made;
    });
  }

  // Without a change: no sequence has less than no token.
  static status check_exists(kv::sequence_arena &a, kv::sequence_id s) { return a.reserve(s, 0); }

  std::size_t longest() const { return longest_; }

 private:
  const std::size_t longest_;
};

void construct_sequence_arena(python_sequence_arena *self, std::uint32_t layers,
                              std::uint32_t tensors, std::uint32_t heads, std::uint32_t dim,
                              nb::handle dtype, std::size_t longest, std::size_t sequences,
                              std::uint32_t layers_per_range, std::size_t spare_bytes,
                              const std::string &tag, int ordinal, const python_quota *quota) {
  const kv_elements of{heads, dim, element_type_of(dtype)};
  kv::sequence_arena_options options;
  options.shape = kv_shape_of("KVSequenceArena", layers, tensors, of);
  options.longest = longest;
  options.sequences = sequences;
  options.layers_per_range = layers_per_range;
  options.spare_bytes = spare_bytes;
  options.tag = tag;
  std::shared_ptr<memory_quota> counted;
  if (quota != nullptr) counted = quota->use("KVSequenceArena");
  auto made = value_of(without_gil([&]() -> result<std::unique_ptr<kv::sequence_arena>> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    STILLMAP_ASSIGN_OR_RETURN(options.pool, kv_pool(d, std::move(counted)));
    return kv::sequence_arena::create(d, std::move(options));
  }));
  new (self) python_sequence_arena(std::move(made), ordinal, tag, of, longest);
}

nb::dict sequence_stats_of(const python_sequence_arena &self) {
  const auto s = self.run([](const kv::sequence_arena &a) {
    return with_host_memory("KVSequenceArena.stats",
                            [&]() -> result<kv::sequence_arena_stats> { return a.stats(); });
  });
  nb::dict d;
  d["sequences"] = s.sequences;
  d["mapped_bytes"] = s.mapped_bytes;
  d["memory_bytes"] = s.memory_bytes;
  d["spare_bytes"] = s.spare_bytes;
  d["steps"] = s.steps;
  d["steps_that_waited"] = s.steps_that_waited;
  d["copied_groups"] = s.copied_groups;
  return d;
}

void bind_sequence_steps(nb::class_<python_sequence_arena> &c) {
  c.def(
       "prepare",
       [](const python_sequence_arena &self, nb::handle stream) {
         const stream_ref s = stream_of(stream);
         self.run([&](kv::sequence_arena &a) { return a.prepare(s); });
       },
       nb::arg("stream").none() = nb::none(),
       "A thread maps what reserve() and fork() asked for, and unmaps what is no longer needed "
       "once "
       "`stream`\n"
       "has done what is queued on it. Returns at once: call it while the step before runs.")
      .def(
          "begin_step",
          [](const python_sequence_arena &self, nb::handle stream) {
            const stream_ref s = stream_of(stream);
            return self.run([&](kv::sequence_arena &a) { return short_bytes(a.begin_step(s)); });
          },
          nb::arg("stream").none() = nb::none(),
          "Waits for the thread, if it is not done, and queues the copies of forks on `stream`. "
          "Returns the\n"
          "bytes of device memory that were short: 0 where every sequence got what it reserved, "
          "else\n"
          "capacity() says what each has got. Raises BusyError (suspended), and what the driver or "
          "the host\n"
          "fails with.");
}

void bind_sequences(nb::class_<python_sequence_arena> &c) {
  c.def(
       "add",
       [](const python_sequence_arena &self) {
         return self.run([](kv::sequence_arena &a) -> result<std::uint64_t> {
           STILLMAP_ASSIGN_OR_RETURN(const kv::sequence_id s, a.add());
           return number_of_sequence(s);
         });
       },
       "The id of a new sequence. Raises Error where there are as many as there can be.")
      .def(
          "reserve",
          [](const python_sequence_arena &self, std::uint64_t sequence, std::size_t tokens) {
            self.run(
                [&](kv::sequence_arena &a) { return a.reserve(sequence_of(sequence), tokens); });
          },
          nb::arg("sequence"), nb::arg("tokens"),
          "The next step needs memory for `tokens` tokens of it; fewer than there are change "
          "nothing. Raises\n"
          "BusyError for a fork that has not got all its tokens: remove it and fork again.")
      .def(
          "capacity",
          [](const python_sequence_arena &self, std::uint64_t sequence) {
            return self.run([&](kv::sequence_arena &a) -> result<std::size_t> {
              const kv::sequence_id s = sequence_of(sequence);
              STILLMAP_RETURN_IF_ERROR(python_sequence_arena::check_exists(a, s));
              return a.capacity(s);
            });
          },
          nb::arg("sequence"), "Tokens that have memory now: a step may read and write them.")
      .def(
          "release_beyond",
          [](const python_sequence_arena &self, std::uint64_t sequence, std::size_t tokens) {
            self.run([&](kv::sequence_arena &a) {
              return a.release_beyond(sequence_of(sequence), tokens);
            });
          },
          nb::arg("sequence"), nb::arg("tokens"),
          "The sequence needs memory for `tokens` tokens only. Raises BusyError where it shares "
          "the "
          "page of\n"
          "the last of them, or has grown since the last step.")
      .def(
          "fork",
          [](const python_sequence_arena &self, std::uint64_t of, std::size_t tokens) {
            return self.run([&](kv::sequence_arena &a) -> result<std::uint64_t> {
              STILLMAP_ASSIGN_OR_RETURN(const kv::sequence_id s, a.fork(sequence_of(of), tokens));
              return number_of_sequence(s);
            });
          },
          nb::arg("of"), nb::arg("tokens"),
          "The id of a sequence with the first `tokens` tokens of another, which neither may write "
          "from now\n"
          "on. Full pages are shared; begin_step() copies the rest.")
      .def(
          "remove",
          [](const python_sequence_arena &self, std::uint64_t sequence) {
            self.run([&](kv::sequence_arena &a) { return a.remove(sequence_of(sequence)); });
          },
          nb::arg("sequence"), "Its id and its views are invalid from now on.")
      .def_prop_ro("longest", &python_sequence_arena::longest, "Tokens of a sequence, at most.")
      .def(
          "tensor",
          [](nb::handle self, std::uint64_t sequence, std::uint32_t layer,
             std::optional<std::uint32_t> tensor) {
            return kv_tensor_of(nb::borrow(self), nb::cast<python_sequence_arena &>(self),
                                {layer, tensor, sequence});
          },
          nb::arg("sequence"), nb::arg("layer"), nb::arg("tensor").none() = nb::none(),
          "A view [longest, heads, dim] of one tensor of a layer; without `tensor`, [tensors, "
          "longest, heads,\n"
          "dim] of all of them. Only the first capacity() tokens may be touched, and none once the "
          "sequence\n"
          "is removed: its memory is another's then.")
      .def(
          "missing_for",
          [](const python_sequence_arena &self, std::size_t tokens) {
            return self.run([&](const kv::sequence_arena &a) { return a.missing_for(tokens); });
          },
          nb::arg("tokens"),
          "Bytes of device memory that are missing for a new sequence of so many tokens: 0 where "
          "it "
          "can be\n"
          "had now, under the quota.")
      .def("stats", &sequence_stats_of);
}

struct sequence_cache {
  using arena = kv::sequence_arena;
  using entry = prefix_cache::sequence_entry;
  using python_entry = std::tuple<std::uint64_t, std::size_t, nb::bytes>;
  static constexpr const char *save = "KVSequenceArena.save", *load = "KVSequenceArena.load";
  static entry entry_of(const python_entry &e) {
    const auto &[sequence, tokens, key] = e;
    return {sequence_of(sequence), tokens, key_of(key)};
  }
  static nb::tuple tuple_of(const entry &e) {
    return nb::make_tuple(number_of_sequence(e.sequence), e.tokens, bytes_of_key(e.key));
  }
  static status forget(arena &a, const entry &e) { return a.remove(e.sequence); }
};

}  // namespace

void bind_kv_sequence_arena(nb::module_ &m) {
  nb::class_<python_sequence_arena> c(
      m, "KVSequenceArena", nb::is_final(), nb::is_weak_referenceable(),
      "Key-value memory in which each sequence is one range of addresses in each tensor, and grows "
      "in place.\n"
      "Sequences with a common beginning have the same pages there. docs/kv_arena.md\n"
      "Threads: safe; one call at a time, so others wait while begin_step() does.\n"
      "Streams: memory of a removed sequence may be another's at once, so that one's first use "
      "must "
      "be\n"
      "ordered after this one's last.");
  c.def("__init__", &construct_sequence_arena, nb::kw_only(), nb::arg("layers"),
        nb::arg("tensors") = 2, nb::arg("heads"), nb::arg("dim"), nb::arg("dtype"),
        nb::arg("longest"), nb::arg("sequences"), nb::arg("layers_per_range") = 0,
        nb::arg("spare_bytes") = 0, nb::arg("tag") = "kv cache", nb::arg("device") = 0,
        nb::arg("quota").none() = nb::none(),
        "longest: tokens of a sequence; sequences: the most at once; both are addresses and no "
        "memory.\n"
        "spare_bytes: memory of removed sequences that is kept for new ones. The others as "
        "KVArena's.");
  bind_sequence_steps(c);
  bind_sequences(c);
  bind_prefix_cache<sequence_cache>(
      c,
      "Writes an image of the first tokens of these sequences, with the engine's key of each: "
      "(sequence, "
      "tokens,\n"
      "key). What they share is in the image once. As KVArena.save(); raises InvalidArgumentError "
      "(no such\n"
      "sequence, or named twice; more tokens than capacity(); tokens that end in a page which "
      "another entry\n"
      "has, too: save a fork; a key over 4096 bytes), BusyError (begin_step() is missing), "
      "OSError.\n"
      "docs/kv_restart.md",
      "Brings the sequences of an image back, which share what they shared. Returns (sequence, "
      "tokens, "
      "key)\n"
      "with new ids: fork them. The arena has no sequence, and shape, sequences, longest and tag "
      "of the one\n"
      "that was saved. Else as KVArena.load(). Failure: there is no sequence.");
  bind_common<kv::sequence_arena>(c);
  c.def("__repr__", [](const python_sequence_arena &self) {
    return "<stillmap.KVSequenceArena '" + self.tag() + "' on device " +
           std::to_string(self.ordinal()) + ">";
  });
}

}  // namespace stillmap::python

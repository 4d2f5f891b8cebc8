#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <map>

#include "python/src/checkpoint.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/exports.h"
#include "python/src/image_options.h"
#include "python/src/paths.h"
#include "python/src/progress.h"
#include "python/src/text.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

using image::manifest;

std::vector<manifest::note> notes_of(nb::handle given) {
  std::vector<manifest::note> notes;
  if (given.is_none()) return notes;
  for (const auto &[name, contents] : nb::cast<nb::dict>(given)) {
    const auto bytes = nb::cast<nb::bytes>(contents);
    const auto *const from = reinterpret_cast<const std::byte *>(bytes.c_str());
    notes.push_back({bytes_of(name), {from, from + bytes.size()}});
  }
  return notes;
}

nb::dict write_snapshot(nb::handle path, nb::handle tags, int ordinal, nb::handle parent,
                        nb::handle compression, nb::handle notes, nb::object on_progress,
                        bool replace, bool force) {
  const std::string file = path_of(path);
  const std::vector<std::string> names = tags_of(tags);
  image_request request =
      image_request_of("stillmap.snapshot", parent, compression, replace, force);
  progress_call progress(std::move(on_progress));
  request.options.cancel = progress.token();
  snapshot::save_options options;
  options.notes = notes_of(notes);
  if (progress.wanted()) {
    request.options.on_progress = [&progress](const image::write_progress &p) {
      if (p.phase == image::write_phase::contents) progress(p.bytes, p.total_bytes);
    };
  }
  auto saved = interruptible(progress, [&]() -> result<image::written> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    STILLMAP_ASSIGN_OR_RETURN(options.image, open_parent(std::move(request)));
    return snapshot::save(d, names, file, options);
  });
  progress.rethrow();
  return image_dict(value_of(std::move(saved)));
}

// Memory that restore() brought back.
class restored_blocks {
 public:
  explicit restored_blocks(snapshot::restored r) : memory_(new snapshot::restored(std::move(r))) {}
  ~restored_blocks() { close(); }
  restored_blocks(const restored_blocks &) = delete;
  restored_blocks &operator=(const restored_blocks &) = delete;

  const snapshot::restored &get() const {
    if (memory_ == nullptr) raise_invalid("Restored", "the memory was released by close()");
    return *memory_;
  }
  bool closed() const { return memory_ == nullptr; }
  std::atomic<int> &exports() { return exports_; }
  // Raises BusyError while tensors or other counted views of the memory live.
  void close_unused() {
    const int views = exports_.load(std::memory_order_acquire);
    if (memory_ != nullptr && views != 0) {
      raise(error{make_error_code(errc::busy), "Restored.close",
                  "views of the restored memory live: delete them first",
                  static_cast<std::uint64_t>(views), 0, error_unit::items});
    }
    close();
  }
  void close() {
    snapshot::restored *const last = std::exchange(memory_, nullptr);
    if (last == nullptr || forked_after_use()) return;  // the parent's is left alone
    const released_gil released;
    delete last;
  }

 private:
  snapshot::restored *memory_;
  std::atomic<int> exports_{0};
};

// Counts a view of the memory, and keeps it, until the result is gone.
nb::object hold_restored(nb::handle self) {
  auto &restored = nb::cast<restored_blocks &>(self);
  (void)restored.get();
  restored.exports().fetch_add(1, std::memory_order_relaxed);
  return nb::cast(new export_hold(nb::borrow(self), restored.exports()),
                  nb::rv_policy::take_ownership);
}

nb::list blocks_of(const restored_blocks &self) {
  const snapshot::restored &r = self.get();
  const auto &blocks = r.memory.layout().blocks;
  nb::list list;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    nb::dict d;
    d["tag"] = str_of(blocks[i].tag);
    d["address"] = blocks[i].range.begin.value();
    d["nbytes"] = blocks[i].range.bytes;
    d["mapped_bytes"] = r.memory.layout().mapped_bytes(blocks[i].range);
    d["original_address"] = i < r.original_ranges.size() ? r.original_ranges[i].begin.value()
                                                         : blocks[i].range.begin.value();
    list.append(d);
  }
  return list;
}

nb::dict notes_dict_of(const restored_blocks &self) {
  nb::dict d;
  for (const manifest::note &note : self.get().notes) {
    d[str_of(note.name)] = nb::bytes(note.bytes.data(), note.bytes.size());
  }
  return d;
}

nb::object restore_snapshot(nb::handle path, nb::handle tags, int ordinal, bool relocate,
                            nb::object on_progress) {
  const std::string file = path_of(path);
  progress_call progress(std::move(on_progress));
  snapshot::restore_options options;
  if (!tags.is_none()) options.tags = tags_of(tags);
  options.relocate = relocate;
  options.cancel = progress.token();
  if (progress.wanted()) {
    options.on_progress = [&progress](const snapshot::restore_progress &p) {
      progress(p.bytes, p.total_bytes);
    };
  }
  auto restored = interruptible(progress, [&]() -> result<snapshot::restored> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    return snapshot::restore(d, file, options);
  });
  progress.rethrow();
  return nb::cast(new restored_blocks(value_of(std::move(restored))),
                  nb::rv_policy::take_ownership);
}

}  // namespace

void bind_snapshot(nb::module_ &m) {
  m.def(
      "snapshot", &write_snapshot, nb::arg("path"), nb::arg("tags"), nb::kw_only(),
      nb::arg("device") = 0, nb::arg("parent").none() = nb::none(),
      nb::arg("compression").none() = nb::none(), nb::arg("notes").none() = nb::none(),
      nb::arg("progress").none() = nb::none(), nb::arg("replace") = false, nb::arg("force") = false,
      "Writes an image of all memory with one of these tags, with checksums: the whole file or "
      "none.\n"
      "Waits for the device; until it returns, nothing may change the memory. parent: an earlier\n"
      "image, of which unchanged chunks are not stored again. compression: 'lz4' or 'zstd'. "
      "notes:\n"
      "data of the application, returned by restore(). progress(done, total) in bytes, from any\n"
      "thread; an exception in it, or Ctrl-C, cancels. replace: an image of this name,\n"
      "unless other images in its folder name it as their parent: with force, these can no longer "
      "be\n"
      "read.\n"
      "Raises InvalidArgumentError (no such tag), BusyError (also: the image is the parent of "
      "others),\n"
      "NotSupportedError, OSError.");
  nb::class_<restored_blocks>(
      m, "Restored", nb::is_final(), nb::is_weak_referenceable(),
      "Memory that restore() brought back; it is released with this object.")
      .def_prop_ro("blocks", &blocks_of, "tag, address, nbytes, mapped_bytes, original_address.")
      .def_prop_ro("notes", &notes_dict_of, "The data that snapshot() was given.")
      .def_prop_ro("closed", &restored_blocks::closed)
      .def("_hold", &hold_restored, "For views: the memory stays until the result is gone.")
      .def("close", &restored_blocks::close_unused,
           "Waits for the device and releases the memory. Raises BusyError while tensors of\n"
           "stillmap.torch.restore() live; users of the addresses are not counted.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](restored_blocks &self, const nb::args &) { self.close_unused(); },
          nb::arg("args").none())
      .def("__repr__", [](const restored_blocks &self) {
        if (self.closed()) return std::string("<stillmap.Restored, closed>");
        return "<stillmap.Restored, " + std::to_string(self.get().memory.layout().blocks.size()) +
               " blocks, " + std::to_string(self.get().memory.bytes()) + " bytes>";
      });
  m.def("restore", &restore_snapshot, nb::arg("path"), nb::kw_only(),
        nb::arg("tags").none() = nb::none(), nb::arg("device") = 0, nb::arg("relocate") = false,
        nb::arg("progress").none() = nb::none(),
        "Brings the memory of an image back at its addresses, in this process or another. Every "
        "byte\n"
        "is checked. tags: only these. relocate: at other addresses where the old ones are taken;\n"
        "pointers inside the memory are not adjusted. Failure: nothing changed.\n"
        "Raises BusyError (an address is in use), InvalidArgumentError (no such tag), "
        "OutOfMemoryError,\n"
        "CorruptError, NotSupportedError, OSError.");
}

}  // namespace stillmap::python

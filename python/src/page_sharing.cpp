#include "python/src/page_sharing.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/exports.h"
#include "python/src/fork_guard.h"
#include "python/src/gil.h"
#include "python/src/text.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/physical_memory.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::python {
namespace {

constexpr const char *sending = "torch.multiprocessing, sending a CUDA tensor";
constexpr const char *receiving = "torch.multiprocessing, receiving a CUDA tensor";

// Whether other processes can map what is mapped here.
status check_shareable(const mapping_record &m, std::size_t page_bytes) {
  const std::uint64_t at = m.range.begin.value();
  if (m.state != mapping_state::mapped) {
    return make_error(errc::busy, "the memory is suspended: resume it first", at, 0,
                      error_unit::address);
  }
  if (!m.backing) {
    return make_error(errc::not_supported,
                      "the device cannot map pages, so other processes cannot map its memory: send "
                      "a copy in host memory, tensor.cpu()",
                      at, 0, error_unit::address);
  }
  if (m.backing->imported()) {
    return make_error(errc::not_supported,
                      "the memory is another process's, and this is another storage than the one "
                      "that was received: send that, or a clone",
                      at, 0, error_unit::address);
  }
  if (m.backing->properties().exportable != handle_type::posix_fd) {
    return make_error(errc::not_supported,
                      "the memory was not created for other processes: call "
                      "stillmap.torch.use(exportable=True), or take stillmap.torch.pool(tag, "
                      "exportable=True), or set STILLMAP_TORCH_EXPORTABLE=1; or send a clone that "
                      "is allocated so",
                      at, 0, error_unit::address);
  }
  if (m.backing->bytes() != page_bytes || m.range.bytes != page_bytes) {
    return make_error(errc::not_supported, "the memory has pages of several sizes: send a clone",
                      m.range.bytes, page_bytes, error_unit::bytes);
  }
  return {};
}

// The wait comes first: work that still uses an address would fault.
status unmap_idle(const device &d, virtual_range range) {
  STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(d));
  return d.space().unmap(range);
}

}  // namespace

result<std::optional<exported_pages>> exported_pages::create(const device &d, virtual_range range) {
  return with_host_memory(sending, [&]() -> result<std::optional<exported_pages>> {
    const std::vector<mapping_record> records = d.space().mappings(range);
    if (records.empty()) return std::nullopt;
    const auto block = d.space().block_at(range.begin);
    std::string tag = block ? block->tag() : std::string();
    STILLMAP_ASSIGN_OR_RETURN(
        auto lease, checkpoint::tag_lease::take(d, {&tag, 1}, checkpoint::lease_kind::shared));
    exported_pages made(d, std::move(tag), std::move(lease));
    device_address next = records.front().range.begin;
    made.offset_ = range.begin - next;
    for (const mapping_record &m : records) {
      STILLMAP_RETURN_IF_ERROR(
          check_shareable(m, made.pages_.empty() ? m.range.bytes : made.page_bytes()));
      if (m.range.begin != next) break;
      next = m.range.end();
      made.pages_.push_back(m.backing);
    }
    if (records.front().range.begin > range.begin || next < range.end()) {
      return make_error(errc::invalid_argument, "a part of the tensor's memory is not mapped",
                        next.value(), 0, error_unit::address);
    }
    return std::optional<exported_pages>(std::move(made));
  });
}

result<std::vector<owned_fd>> exported_pages::export_fds(std::size_t first,
                                                         std::size_t most) const {
  return with_host_memory(sending, [&]() -> result<std::vector<owned_fd>> {
    if (first >= pages_.size() || most == 0) {
      return make_error(errc::invalid_argument, "there is no such page", first, pages_.size(),
                        error_unit::pages);
    }
    const context_guard guard(device_.driver(), device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    std::vector<owned_fd> fds;
    const std::size_t end = first + std::min(most, pages_.size() - first);
    fds.reserve(end - first);
    for (std::size_t i = first; i < end; ++i) {
      const auto fd = device_.driver().export_fd(pages_[i]->handle());
      if (!fd && !fds.empty()) break;
      if (!fd) return tl::unexpected(fd.error());
      fds.emplace_back(*fd);
    }
    return fds;
  });
}

result<std::unique_ptr<imported_pages>> imported_pages::create(const device &d,
                                                               std::size_t page_bytes,
                                                               std::size_t count) {
  return with_host_memory(receiving, [&]() -> result<std::unique_ptr<imported_pages>> {
    if (!d.capabilities().vmm) {
      return make_error(errc::not_supported, "this device cannot map pages of other processes");
    }
    if (page_bytes == 0 || count == 0 || count > SIZE_MAX / page_bytes) {
      return make_error(errc::invalid_argument, "the number of pages is not possible", count,
                        page_bytes == 0 ? 0 : SIZE_MAX / page_bytes, error_unit::pages);
    }
    page_pool_options options;
    options.page_bytes = page_bytes;
    options.keep_free = 0;
    STILLMAP_ASSIGN_OR_RETURN(auto pool, page_pool::create(d, options));
    STILLMAP_ASSIGN_OR_RETURN(reservation r, reservation::create(d, page_bytes * count));
    std::unique_ptr<imported_pages> made(
        new imported_pages(d, std::move(r), std::move(pool), count));
    made->pages_.reserve(count);
    return made;
  });
}

imported_pages::~imported_pages() {
  if (mapped_) report_if_failed(close());
}

status imported_pages::add(int fd) {
  return with_host_memory(receiving, [&]() -> status {
    if (pages_.size() == count_) {
      return make_error(errc::invalid_argument, "there are more pages than was said", count_ + 1,
                        count_, error_unit::pages);
    }
    owned_fd given(fd);
    auto memory = physical_memory::import_fd(device_, given, pool_->page_bytes());
    (void)given.release();  // the caller's
    if (!memory) return tl::unexpected(memory.error());
    STILLMAP_ASSIGN_OR_RETURN(page_ptr page, pool_->adopt(std::move(*memory)));
    pages_.push_back(std::move(page));
    return {};
  });
}

status imported_pages::map() {
  return with_host_memory(receiving, [&]() -> status {
    if (mapped_ || pages_.size() != count_) {
      return make_error(errc::invalid_argument, "pages are missing, or mapped already",
                        pages_.size(), count_, error_unit::pages);
    }
    std::vector<access_grant> access{{on_device(device_.ordinal()), access_mode::read_write}};
    for (const int peer : device_.capabilities().peers) {
      access.push_back({on_device(peer), access_mode::read_write});
    }
    remap_plan plan(std::move(access));
    device_address at = addresses_.range().begin;
    for (const page_ptr &p : pages_) {
      plan.map(at, p);
      at = at + p->bytes();
    }
    STILLMAP_RETURN_IF_ERROR(device_.space().apply(std::move(plan)));
    mapped_ = true;
    return {};
  });
}

status imported_pages::close() {
  const operation_scope scope(receiving);
  if (mapped_) STILLMAP_RETURN_IF_ERROR(unmap_idle(device_, addresses_.range()));
  mapped_ = false;
  pages_.clear();
  [[maybe_unused]] const reservation freed = std::move(addresses_);
  return {};
}

namespace {

// Python's owner. In a forked child the memory is the parent's, and is left alone.
template <class Owned>
class shared_handle {
 public:
  explicit shared_handle(std::unique_ptr<Owned> owned) : owned_(std::move(owned)) {}
  ~shared_handle() { drop(); }
  shared_handle(const shared_handle &) = delete;
  shared_handle &operator=(const shared_handle &) = delete;

  Owned &get() const {
    if (!owned_) raise_invalid("stillmap.torch", "the shared memory was released");
    return *owned_;
  }
  void drop() {
    if (!owned_) return;
    if (forked_after_use()) {
      (void)owned_.release();
      return;
    }
    const released_gil released;
    owned_.reset();
  }

 private:
  std::unique_ptr<Owned> owned_;
};
using exported_handle = shared_handle<exported_pages>;
using imported_handle = shared_handle<imported_pages>;

nb::object export_range(int ordinal, std::uint64_t address, std::size_t bytes) {
  auto made = value_of(without_gil([&]() -> result<std::optional<exported_pages>> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    return exported_pages::create(d, {device_address(address), bytes});
  }));
  if (!made) return nb::none();
  return nb::cast(new exported_handle(std::make_unique<exported_pages>(std::move(*made))),
                  nb::rv_policy::take_ownership);
}

nb::list fds_of(const exported_handle &self, std::size_t first, std::size_t most) {
  const exported_pages &pages = self.get();
  std::vector<owned_fd> fds = value_of(without_gil([&] { return pages.export_fds(first, most); }));
  nb::list out;
  for (const owned_fd &fd : fds) out.append(fd.get());
  for (owned_fd &fd : fds) (void)fd.release();
  return out;
}

nb::bytes ids_of(const exported_handle &self) {
  std::vector<std::uint64_t> ids;
  for (const page_ptr &p : self.get().pages()) ids.push_back(p->id());
  return nb::bytes(ids.data(), ids.size() * sizeof(std::uint64_t));
}

imported_handle *import_range(int ordinal, std::size_t page_bytes, std::size_t count) {
  return new imported_handle(value_of(without_gil([&]() -> result<std::unique_ptr<imported_pages>> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    return imported_pages::create(d, page_bytes, count);
  })));
}

// The ordinal of a device in this process: CUDA_VISIBLE_DEVICES may be another one.
nb::object device_of_uuid(const nb::bytes &uuid) {
  const auto find = [&]() -> result<int> {
    STILLMAP_ASSIGN_OR_RETURN(const driver *const drv, driver::get());
    STILLMAP_ASSIGN_OR_RETURN(const int count, device::count());
    for (int i = 0; i < count; ++i) {
      STILLMAP_ASSIGN_OR_RETURN(const auto known, drv->device_uuid(i));
      if (uuid.size() == known.size() &&
          std::equal(known.begin(), known.end(), static_cast<const unsigned char *>(uuid.data()))) {
        return i;
      }
    }
    return -1;
  };
  const int found = value_of(without_gil(find));
  return found < 0 ? nb::none() : nb::object(nb::int_(found));
}

}  // namespace

void bind_page_sharing(nb::module_ &m) {
  nb::class_<exported_handle>(m, "_ExportedPages", nb::is_final())
      .def_prop_ro("tag", [](const exported_handle &self) { return str_of(self.get().tag()); })
      .def_prop_ro("page_bytes",
                   [](const exported_handle &self) { return self.get().page_bytes(); })
      .def_prop_ro("offset", [](const exported_handle &self) { return self.get().offset(); })
      .def_prop_ro("count", [](const exported_handle &self) { return self.get().pages().size(); })
      .def_prop_ro("ids", &ids_of, "The pages' numbers in this process, eight bytes each.")
      .def_prop_ro("uuid",
                   [](const exported_handle &self) {
                     const auto uuid = self.get().on().uuid();
                     return nb::bytes(uuid.data(), uuid.size());
                   })
      .def("fds", &fds_of, nb::arg("first"), nb::arg("most"),
           "Descriptors of at least one page; the caller closes them.");
  nb::class_<imported_handle>(m, "_ImportedPages", nb::is_final())
      .def_prop_ro("address",
                   [](const imported_handle &self) { return self.get().range().begin.value(); })
      .def(
          "add",
          [](const imported_handle &self, int fd) {
            imported_pages &pages = self.get();
            check(without_gil([&] { return pages.add(fd); }));
          },
          nb::arg("fd"), "Imports the next page; the caller keeps the descriptor.")
      .def("map",
           [](const imported_handle &self) {
             imported_pages &pages = self.get();
             check(without_gil([&] { return pages.map(); }));
           })
      .def(
          "dlpack",
          [](const imported_handle &self, std::size_t offset, std::size_t bytes, nb::object hold) {
            const imported_pages &pages = self.get();
            if (offset > pages.range().bytes || bytes > pages.range().bytes - offset) {
              raise_invalid("stillmap.torch", "the tensor does not lie in the received memory");
            }
            exported_array array;
            array.address = pages.range().begin.value() + offset;
            array.elements = bytes;
            array.device = pages.on().ordinal();
            return dlpack_of(array, std::move(hold), nb::none(), nb::none(), nb::none());
          },
          nb::arg("offset"), nb::arg("nbytes"), nb::arg("hold"),
          "A capsule of bytes, which keeps `hold`.")
      .def(
          "close",
          [](const imported_handle &self) {
            imported_pages &pages = self.get();
            check(without_gil([&] { return pages.close(); }));
          },
          "Waits for the device, and unmaps. Raises BusyError while a stream captures a graph.");
  m.def("_export_pages", &export_range, nb::arg("device"), nb::arg("address"), nb::arg("nbytes"),
        "An _ExportedPages; None where the memory is not Stillmap's.");
  m.def("_import_pages", &import_range, nb::arg("device"), nb::arg("page_bytes"), nb::arg("count"),
        nb::rv_policy::take_ownership);
  m.def("_device_of_uuid", &device_of_uuid, nb::arg("uuid"), "None: this process does not see it.");
  m.def(
      "_wait_idle",
      [](int ordinal) {
        check(without_gil([&]() -> status {
          STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
          return checkpoint::wait_until_idle(d);
        }));
      },
      nb::arg("device"),
      "Waits for all work queued on the device. BusyError: a graph is captured.");
}

}  // namespace stillmap::python

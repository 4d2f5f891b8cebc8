// Device work applied to the model's bytes, and the comparison of contents.
#include <algorithm>
#include <cstring>

#include <hostcuda/hostcuda.h>
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_model.h"

namespace stillmap::testing {
namespace {

constexpr const char *ptx = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry stillmap_model_fill(.param .u64 p_at, .param .u64 p_bytes, .param .u32 p_value)
{
  .reg .pred %p<2>;
  .reg .u32 %r<6>;
  .reg .u64 %rd<7>;
  ld.param.u64 %rd1, [p_at];
  ld.param.u64 %rd2, [p_bytes];
  ld.param.u32 %r1, [p_value];
  cvta.to.global.u64 %rd3, %rd1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  cvt.u64.u32 %rd4, %r5;
  mov.u32 %r2, %nctaid.x;
  mul.lo.u32 %r3, %r2, %r3;
  cvt.u64.u32 %rd5, %r3;
next:
  setp.ge.u64 %p1, %rd4, %rd2;
  @%p1 bra done;
  add.u64 %rd6, %rd3, %rd4;
  st.global.u8 [%rd6], %r1;
  add.u64 %rd4, %rd4, %rd5;
  bra next;
done:
  ret;
}
)";

void fill_kernel(const hostcuda_launch *launch) {
  CUdeviceptr at = 0;
  std::uint64_t bytes = 0;
  std::uint32_t value = 0;
  std::memcpy(&at, launch->params[0], sizeof at);
  std::memcpy(&bytes, launch->params[1], sizeof bytes);
  std::memcpy(&value, launch->params[2], sizeof value);
  // hostcuda's way from a device address to bytes is looked up like the rest of its switches.
  const auto drv = driver::get();
  const auto access =
      reinterpret_cast<decltype(&hostcuda_access)>((*drv)->symbol("hostcuda_access"));
  void *const bytes_there = access(at, bytes, 1);
  if (bytes_there != nullptr) std::memset(bytes_there, static_cast<int>(value), bytes);
}

template <class Function>
Function *symbol(const driver &drv, const char *name) {
  return reinterpret_cast<Function *>(drv.symbol(name));
}

bool all_equal(const unsigned char *at, std::size_t bytes, unsigned char value) {
  return bytes == 0 || (at[0] == value && std::memcmp(at, at + 1, bytes - 1) == 0);
}

}  // namespace

std::optional<unsigned char> &buffer_model::cell(buffer_state &b, std::size_t index) {
  return b.slots.at(index / cells_per_page).page->cells[index % cells_per_page];
}

bool buffer_model::accessible(const buffer_state &b, std::size_t first, std::size_t count,
                              bool writes) const {
  for (std::size_t s = first / cells_per_page; s <= (first + count - 1) / cells_per_page; ++s) {
    const auto it = b.slots.find(s);
    if (it == b.slots.end() || (writes && it->second.forked)) return false;
  }
  return true;
}

// `stream` waits for what other streams do to the page, as the user of several streams has to see
// to; afterwards work on `stream` is after all of it.
void buffer_model::order(std::size_t stream, buffer_state &b, std::size_t slot) {
  slot_model &s = b.slots.at(slot);
  stream_set others = s.page->users;
  others.insert(s.users.begin(), s.users.end());
  others.erase(stream);
  if (!others.empty()) {
    const fence before = fence_over(others);
    demand(before.make_wait(*device_, streams_[stream - 1]).has_value(), "make_wait failed");
  }
  s.page->users = s.users = {stream};
}

unsigned char *buffer_model::staging(std::size_t bytes) {
  constexpr std::size_t all = std::size_t{8} << 20;
  if (pinned_used_ + bytes > all) synchronize();
  unsigned char *const at = pinned_ + pinned_used_;
  pinned_used_ += bytes;
  return at;
}

void buffer_model::synchronize() {
  const context_guard guard(device_->driver(), device_->context());
  const status idle = device_->driver().synchronize_context();
  demand(idle.has_value(), "the device failed: " + (idle ? "" : idle.error().message()));
  for (const pending_read &r : reads_) {
    const std::size_t cell_bytes = device_->capabilities().page_bytes / cells_per_page;
    for (std::size_t i = 0; i < r.cells.size(); ++i) {
      if (!r.cells[i]) continue;
      demand(all_equal(r.at + i * cell_bytes, cell_bytes, *r.cells[i]),
             r.what + ": cell " + std::to_string(r.cell + i) + " was read as " +
                 std::to_string(r.at[i * cell_bytes]) + ", not " + std::to_string(*r.cells[i]));
    }
  }
  reads_.clear();
  pinned_used_ = 0;
  for (buffer_state &b : buffers_) {
    for (auto &[s, slot] : b.slots) {
      slot.users.clear();
      slot.page->users.clear();
    }
  }
}

// fill, upload, kernel B CELL N VALUE STREAM
void buffer_model::write(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64;
  const auto value = static_cast<unsigned char>(o.arg(3));
  const std::size_t stream = o.arg(4) % stream_count + 1;
  if (n == 0 || !accessible(*b, first, n, true)) return;
  const std::size_t cell_bytes = b->page / cells_per_page;
  const device_address at = b->address + first * cell_bytes;
  const std::size_t bytes = n * cell_bytes;
  unsigned char *const from = o.name == "upload" ? staging(bytes) : nullptr;
  for (std::size_t s = first / cells_per_page; s <= (first + n - 1) / cells_per_page; ++s) {
    order(stream, *b, s);
  }
  const context_guard guard(device_->driver(), device_->context());
  const stream_ref on = streams_[stream - 1];
  status s;
  if (o.name == "fill") {
    s = device_->driver().set_bytes_async(at, value, bytes, on.get());
  } else if (o.name == "upload") {
    std::memset(from, value, bytes);
    s = device_->driver().copy_to_device_async(at, from, bytes, on.get());
  } else {
    launch_fill(at, bytes, value, on);
  }
  demand(s.has_value(), o.name + " failed: " + (s ? "" : s.error().message()));
  for (std::size_t c = first; c < first + n; ++c) cell(*b, c) = value;
  ++tallies_[o.name].done;
}

void buffer_model::launch_fill(device_address at, std::size_t bytes, unsigned char value,
                               stream_ref s) {
  const driver &drv = device_->driver();
  if (fill_ == nullptr) {
    const std::size_t sizes[] = {8, 8, 4};
    const auto offer = symbol<decltype(hostcuda_register_kernel)>(drv, "hostcuda_register_kernel");
    demand(offer == nullptr || offer("stillmap_model_fill", fill_kernel, 3, sizes) == CUDA_SUCCESS,
           "no kernel");
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    demand(
        symbol<decltype(cuModuleLoadData)>(drv, "cuModuleLoadData")(&module, ptx) == CUDA_SUCCESS,
        "no module");
    module_ = module;
    demand(symbol<decltype(cuModuleGetFunction)>(drv, "cuModuleGetFunction")(
               &function, module, "stillmap_model_fill") == CUDA_SUCCESS,
           "no function");
    fill_ = function;
  }
  CUdeviceptr to = at.value();
  std::uint64_t count = bytes;
  std::uint32_t v = value;
  void *params[] = {&to, &count, &v};
  const auto declare = symbol<decltype(hostcuda_declare)>(drv, "hostcuda_declare");
  demand(declare == nullptr || declare(s.get(), to, bytes, 1) == CUDA_SUCCESS,
         "the kernel's range was refused");
  // A host kernel is called once and does all of it, however many it stands for.
  demand(symbol<decltype(cuLaunchKernel)>(drv, "cuLaunchKernel")(static_cast<CUfunction>(fill_), 32,
                                                                 1, 1, 128, 1, 1, 0, s.get(),
                                                                 params, nullptr) == CUDA_SUCCESS,
         "the kernel was refused");
}

// copy B CELL N TO TO_CELL STREAM
void buffer_model::copy(const op &o) {
  buffer_state *const b = live(o);
  buffer_state *const to = live(o, 3);
  if (b == nullptr || to == nullptr) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64, target = o.arg(4) % 4096;
  const std::size_t stream = o.arg(5) % stream_count + 1;
  if (n == 0 || !accessible(*b, first, n, false) || !accessible(*to, target, n, true)) return;
  for (std::size_t s = first / cells_per_page; s <= (first + n - 1) / cells_per_page; ++s) {
    for (std::size_t t = target / cells_per_page; t <= (target + n - 1) / cells_per_page; ++t) {
      if (b->slots.at(s).page == to->slots.at(t).page) return;  // copies must not overlap
    }
  }
  for (std::size_t s = first / cells_per_page; s <= (first + n - 1) / cells_per_page; ++s) {
    order(stream, *b, s);
  }
  for (std::size_t t = target / cells_per_page; t <= (target + n - 1) / cells_per_page; ++t) {
    order(stream, *to, t);
  }
  const std::size_t cell_bytes = b->page / cells_per_page;
  const context_guard guard(device_->driver(), device_->context());
  const status s = device_->driver().copy_on_device_async(
      to->address + target * cell_bytes, b->address + first * cell_bytes, n * cell_bytes,
      streams_[stream - 1].get());
  demand(s.has_value(), "copy failed: " + (s ? "" : s.error().message()));
  for (std::size_t i = 0; i < n; ++i) cell(*to, target + i) = cell(*b, first + i);
  ++tallies_[o.name].done;
}

// read B CELL N STREAM: queued now, compared when somebody waits.
void buffer_model::read(const op &o) {
  buffer_state *const b = live(o);
  if (b == nullptr) return;
  const std::size_t first = o.arg(1) % 4096, n = o.arg(2) % 64;
  const std::size_t stream = o.arg(3) % stream_count + 1;
  if (n == 0 || !accessible(*b, first, n, false)) return;
  const std::size_t cell_bytes = b->page / cells_per_page;
  unsigned char *const into = staging(n * cell_bytes);
  for (std::size_t s = first / cells_per_page; s <= (first + n - 1) / cells_per_page; ++s) {
    order(stream, *b, s);
  }
  const context_guard guard(device_->driver(), device_->context());
  const status s = device_->driver().copy_to_host_async(into, b->address + first * cell_bytes,
                                                        n * cell_bytes, streams_[stream - 1].get());
  demand(s.has_value(), "read failed: " + (s ? "" : s.error().message()));
  pending_read r{into, {}, first, to_text({o})};
  for (std::size_t c = first; c < first + n; ++c) r.cells.push_back(cell(*b, c));
  reads_.push_back(std::move(r));
  ++tallies_[o.name].done;
}

void buffer_model::check_contents() {
  synchronize();
  const context_guard guard(device_->driver(), device_->context());
  std::vector<unsigned char> page;
  for (std::size_t i = 0; i < max_buffers; ++i) {
    buffer_state &b = buffers_[i];
    const std::size_t cell_bytes = b.page / cells_per_page;
    page.resize(cell_bytes);
    for (const auto &[s, slot] : b.slots) {
      for (std::size_t c = 0; c < cells_per_page; ++c) {
        if (!slot.page->cells[c]) continue;
        const status got = device_->driver().copy_to_host(
            page.data(), b.address + s * b.page + c * cell_bytes, cell_bytes);
        const std::string where =
            "buffer " + std::to_string(i) + ", cell " + std::to_string(s * cells_per_page + c);
        demand(got.has_value(), where + ": " + (got ? "" : got.error().message()));
        demand(all_equal(page.data(), cell_bytes, *slot.page->cells[c]),
               where + " holds " + std::to_string(page[0]) + ", not " +
                   std::to_string(*slot.page->cells[c]));
      }
    }
  }
}

void buffer_model::corrupt_a_byte() {
  synchronize();
  const context_guard guard(device_->driver(), device_->context());
  for (buffer_state &b : buffers_) {
    for (const auto &[s, slot] : b.slots) {
      for (std::size_t c = 0; c < cells_per_page && !slot.forked; ++c) {
        if (!slot.page->cells[c]) continue;
        const auto wrong = static_cast<unsigned char>(*slot.page->cells[c] ^ 0x40);
        const device_address at = b.address + s * b.page + c * (b.page / cells_per_page) + 77;
        demand(device_->driver().copy_to_device(at, &wrong, 1).has_value(), "planting failed");
        return;
      }
    }
  }
}

}  // namespace stillmap::testing

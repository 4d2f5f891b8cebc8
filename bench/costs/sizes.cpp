// Each call against the size of the memory.
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "bench/costs/life.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {
namespace {

using namespace stillmap::literals;
using once = std::function<status(const machine &, std::size_t bytes, call_times &)>;

template <class T>
tl::unexpected<error> failed(const T &r) {
  return tl::unexpected(r.error());
}

status share_once(const machine &m, std::size_t bytes, call_times &into) {
  const driver &drv = m.drv();
  auto pages =
      into.time("cuMemCreate (shareable)", [&] { return m.create(bytes, handle_type::posix_fd); });
  if (!pages) return failed(pages);
  const auto fd =
      into.time("cuMemExportToShareableHandle", [&] { return drv.export_fd(pages->get()); });
  if (!fd) return failed(fd);
  const auto imported =
      into.time("cuMemImportFromShareableHandle", [&] { return drv.import_fd(*fd); });
  ::close(*fd);
  if (!imported) return failed(imported);
  physical twin(drv, *imported);
  if (const status s = twin.give_back(); !s) return s;
  return into.time("cuMemRelease (shareable)", [&] { return pages->give_back(); });
}

status plain_once(const machine &m, std::size_t bytes, call_times &into) {
  const driver &drv = m.drv();
  const auto at = into.time("cuMemAlloc", [&] { return drv.allocate(bytes); });
  if (!at) return failed(at);
  plain_memory owner(drv, *at);
  return into.time("cuMemFree", [&] { return owner.give_back(); });
}

// On a stream of its own: the legacy one would have everything else wait.
status ordered_once(const machine &m, std::size_t bytes, call_times &into) {
  const driver &drv = m.drv();
  const auto made = drv.create_stream(true);
  if (!made) return failed(made);
  const own_stream stream(drv, *made);
  // What is freed is kept until somebody waits: the second is what the pool is for.
  for (const char *const name : {"cuMemAllocAsync (empty pool)", "cuMemAllocAsync"}) {
    const auto at = into.time(name, [&] { return drv.allocate_async(bytes, stream.get()); });
    if (!at) return failed(at);
    const status freed =
        into.time("cuMemFreeAsync", [&] { return drv.free_async(*at, stream.get()); });
    if (!freed) {
      (void)drv.free(*at);
      return freed;
    }
  }
  return into.time("cuStreamSynchronize (empties the pool)",
                   [&] { return drv.synchronize_stream(stream.get()); });
}

status pinned_once(const machine &m, std::size_t bytes, call_times &into) {
  const driver &drv = m.drv();
  const auto at = into.time("cuMemHostAlloc", [&] { return drv.allocate_host(bytes); });
  if (!at) return failed(at);
  pinned_memory owner(drv, *at);
  return into.time("cuMemFreeHost", [&] { return owner.give_back(); });
}

// Every size until one is refused.
void against_size(const machine &m, time_left left, std::size_t largest, const once &act,
                  table &out) {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 2_MiB; n < 1_GiB; n *= 4) sizes.push_back(n);
  sizes.push_back(1_GiB);
  std::erase_if(sizes, [&](std::size_t n) { return n > largest; });
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const time_left now = left.share(1.0 / static_cast<double>(sizes.size() - i));
    call_times times, first;
    const std::size_t bytes = round_up(sizes[i], m.page());
    status done = act(m, bytes, first);  // not counted: what is set up once is no cost of the call
    for (std::size_t n = 0; done && now.more(n); ++n) done = act(m, bytes, times);
    out.add(times, against::size, static_cast<double>(bytes));
    if (!done) return out.refused(done.error(), against::size, static_cast<double>(bytes));
  }
}

}  // namespace

void measure_sizes(const machine &m, time_left left, bool quick, table &out) {
  const std::size_t most = std::min(m.allowance(), quick ? 32_MiB : 1_GiB);
  if (m.vmm()) {
    against_size(m, left.share(0.3), most, live_once, out);
    against_size(m, left.share(0.3), most, share_once, out);
  }
  against_size(m, left.share(0.3), most, plain_once, out);
  against_size(m, left.share(0.5), most, ordered_once, out);
  // Pinning is slow, and what is looked for is only its order.
  against_size(m, left.at_most(30), std::min(machine::pinned_allowance(), quick ? 8_MiB : 1_GiB),
               pinned_once, out);
}

}  // namespace stillmap::costs

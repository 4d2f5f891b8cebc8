// One function for each task with a growable_buffer or a device_vector. docs/buffers.md quotes the regions
// between `// [name]` and `// [/name]`.
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "examples/example.h"
#include "stillmap/vmm/device_vector.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

// [grow]
// Makes room for more work on the stream. A kernel that has the address keeps it; the host waits for nothing.
status grow(growable_buffer &buffer, std::size_t bytes, stream_ref stream) {
  if (status done = buffer.resize(bytes, stream); !done) {
    std::fprintf(stderr, "%s\n",
                 done.error().message().c_str());  // the operation, the bytes, the limit
    return done;                                   // the buffer is as it was
  }
  return {};
}
// [/grow]

// [shrink]
// Gives the pages beyond `bytes` back once the work queued on the stream has passed; nothing waits now.
status shrink(growable_buffer &buffer, std::size_t bytes, stream_ref stream) {
  if (status done = buffer.resize(bytes); !done) return done;
  auto idle = fence::after(buffer.device(), stream);
  if (!idle) return tl::unexpected(idle.error());
  return buffer.shrink_to_fit(*idle);
}
// [/shrink]

// [sparse]
// A table of 64 GiB of addresses, of which two pages have memory.
result<growable_buffer> sparse_table(const device &gpu) {
  auto table = growable_buffer::create(gpu, {.reserve_bytes = 64 * 1024 * mib, .tag = "table"});
  if (!table) return table;
  const std::size_t page = table->page_bytes();
  if (status done = table->commit(0, page); !done) return tl::unexpected(done.error());
  if (status done = table->commit(1000 * page, page); !done) return tl::unexpected(done.error());
  return table;
}
// [/sparse]

// [ahead]
// A background thread keeps 16 MiB mapped beyond size(), so that small growths make no driver call.
result<growable_buffer> mapped_ahead(const device &gpu) {
  return growable_buffer::create(gpu, {.map_ahead_bytes = 16 * mib});
}
// [/ahead]

// [fork]
// A copy that takes no memory until one of the two writes: make_writable copies the pages that are written.
result<growable_buffer> try_out(growable_buffer &buffer, stream_ref stream) {
  auto copy = buffer.fork();
  if (!copy) return copy;
  if (status done = copy->make_writable(0, copy->page_bytes(), stream); !done) {
    return tl::unexpected(done.error());
  }
  return copy;  // its first page may be written now, the others may be read
}
// [/fork]

// [vector]
// Appends on the vector's stream, and hands a view to code that takes a span.
result<device_span<const float>> collect(device_vector<float> &values,
                                         std::span<const float> batch) {
  if (status done = values.append(batch); !done) return tl::unexpected(done.error());
  if (status done = values.push_back(1.5F); !done) return tl::unexpected(done.error());  // staged
  if (status done = values.flush(); !done) return tl::unexpected(done.error());          // sent
  return device_span<const float>(values.data(), values.size());
}
// [/vector]

}  // namespace

int main() {
  const device gpu = example::open_mapping_device("growing in place");
  const stream work = example::must(stream::create(gpu));

  growable_buffer buffer = example::must(growable_buffer::create(gpu));
  example::must(grow(buffer, 4 * mib, work));
  const device_address before = buffer.address();
  const std::vector<unsigned char> bytes(4 * mib, 7);
  example::must(buffer.copy_from_host(0, bytes.data(), bytes.size(), work));
  example::must(grow(buffer, 64 * mib, work));
  example::check(buffer.address() == before, "growing changed no address");
  example::must(shrink(buffer, 4 * mib, work));
  example::check(buffer.mapped_bytes() == 4 * mib, "shrinking gave the pages back");

  growable_buffer copy = example::must(try_out(buffer, work));
  std::vector<unsigned char> read(4 * mib);
  example::must(copy.copy_to_host(read.data(), 0, read.size(), work));
  example::check(read == bytes, "a fork has the contents");
  example::must(copy.copy_from_host(0, &read[0], 1, work));

  const growable_buffer table = example::must(sparse_table(gpu));
  example::check(table.mapped_bytes() == 2 * table.page_bytes(), "a sparse table has two pages");

  growable_buffer ahead = example::must(mapped_ahead(gpu));
  example::must(ahead.resize(mib, work));
  example::check(ahead.in_place(), "a buffer may map ahead");

  auto values = example::must(device_vector<float>::create(gpu));
  const auto view = example::must(collect(values, std::vector<float>(1000, 2.5F)));
  example::check(view.size() == 1001 && example::must(values.to_host()).back() == 1.5F,
                 "a vector appends");
  return 0;
}

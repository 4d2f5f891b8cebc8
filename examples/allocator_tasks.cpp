// One function for each task with a caching_allocator. docs/allocator.md quotes the regions between `// [name]`
// and `// [/name]`.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "examples/example.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/report/heap_picture.h"

using namespace stillmap;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

// [create]
// At most 2 GiB of the device, by a name that suspend and snapshots take.
result<std::unique_ptr<caching_allocator>> create(const device &gpu) {
  return caching_allocator::create(gpu, {.limit = 2048 * mib, .tag = "model"});
}
// [/create]

// [allocate]
// Memory for work on one stream: freed there, it is reused there at once, and no driver call is made.
status use(caching_allocator &heap, stream_ref stream) {
  auto block = heap.allocate(24 * mib, stream);
  if (!block) return tl::unexpected(block.error());
  // ... launch kernels on `stream` ...
  return heap.free(*block);
}
// [/allocate]

// [two_streams]
// A block of one stream that another one reads: it is reused once what is queued there now has completed.
status read_elsewhere(caching_allocator &heap, void *block, stream_ref reader) {
  // ... `reader` waits for the producer's event, then reads ...
  if (status done = heap.record_use(block, reader); !done) return done;
  return heap.free(block);
}
// [/two_streams]

// [stream_end]
// Before a stream is destroyed: its free memory then serves other streams.
status end(caching_allocator &heap, stream done_with) {
  return heap.forget_stream(done_with);
}
// [/stream_end]

// [release]
// Gives free pages to other programs, and says what stayed and why.
status release(caching_allocator &heap) {
  auto report = heap.empty_cache();
  if (!report) return tl::unexpected(report.error());
  std::printf("released %zu bytes; %zu are in pages with live blocks\n", report->released,
              report->page_edges);
  return {};
}
// [/release]

// [graph]
// Memory for the capture of a CUDA graph: its blocks keep their pages as long as the pool exists.
result<void *> within_graph(caching_allocator &heap, private_pool pool, stream_ref stream) {
  if (status done = heap.begin_allocate_to_pool(pool, stream); !done)
    return tl::unexpected(done.error());
  // ... begin the capture ...
  auto block = heap.allocate(8 * mib, stream);
  // ... launch, end the capture ...
  if (status done = heap.end_allocate_to_pool(pool, stream); !done)
    return tl::unexpected(done.error());
  return block;
}
// [/graph]

// [look]
// The heap as an SVG picture: what is live, free, mapped twice.
result<std::string> look(const caching_allocator &heap) {
  auto map = heap.map();
  if (!map) return tl::unexpected(map.error());
  return to_svg(heap_picture{.title = "my heap",
                             .subtitle = "",
                             .columns = {{.title = "model", .note = "now", .map = *map}}});
}
// [/look]

}  // namespace

int main() {
  const device gpu = example::must(device::open());
  const auto heap = example::must(create(gpu));
  stream work = example::must(stream::create(gpu));
  const stream reader = example::must(stream::create(gpu));

  example::must(use(*heap, work));
  example::must(use(*heap, work));
  example::check(heap->stats().growths == 1, "the second block is the first one again");
  example::must(read_elsewhere(*heap, example::must(heap->allocate(mib, work)), reader));

  const private_pool pool = example::must(heap->create_pool());
  void *const kept = example::must(within_graph(*heap, pool, work));
  example::check(heap->owns(kept), "a graph's block is the pool's");
  example::check(example::must(look(*heap)).find("<svg") != std::string::npos,
                 "the heap has a picture");
  example::must(heap->free(kept));
  example::must(heap->release_pool(pool));

  example::must(work.synchronize());
  example::must(reader.synchronize());
  example::must(end(*heap, std::move(work)));
  example::must(release(*heap));
  example::check(heap->stats().total.committed == 0, "all memory was given back");
  return 0;
}

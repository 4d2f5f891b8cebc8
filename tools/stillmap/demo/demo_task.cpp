#include "tools/stillmap/demo/demo_task.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::tool {
namespace {

constexpr std::size_t cell_bytes = 64 << 10;
constexpr std::size_t cell_words = cell_bytes / 8;
constexpr std::uint64_t blocks_begin_at = task_begins_at + 0x10'0000'0000;
constexpr std::size_t block_count = 64;
constexpr std::uint64_t first_cells = 1024;

// The header of a cell or a block.
struct header {
  std::uint64_t here;     // its own address
  std::uint64_t version;  // number of writes
  std::uint64_t next;     // of a block: the next one; of the first cell: the first block
  std::uint64_t count;    // of a block: its bytes; of the first cell: the number of cells
};
constexpr std::size_t header_words = sizeof(header) / 8;

std::uint64_t word_at(std::uint64_t address, std::uint64_t version) {
  std::uint64_t z = address * 0x9e3779b97f4a7c15ull + version;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 31);
}

std::vector<std::uint64_t> contents(const header &l, std::size_t words) {
  std::vector<std::uint64_t> out{l.here, l.version, l.next, l.count};
  out.resize(words);
  for (std::size_t i = header_words; i < words; ++i) out[i] = word_at(l.here + 8 * i, l.version);
  return out;
}

outcome<std::vector<std::uint64_t>> read(const device &d, std::uint64_t at, std::size_t bytes) {
  const context_guard guard(d.driver(), d.context());
  std::vector<std::uint64_t> out(bytes / 8);
  STILLMAP_RETURN_IF_ERROR(d.driver().copy_to_host(out.data(), device_address(at), bytes));
  return out;
}

outcome<header> check_piece(const device &d, std::uint64_t at, std::size_t bytes) {
  STILLMAP_ASSIGN_OR_RETURN(const auto words, read(d, at, bytes));
  const header l{words[0], words[1], words[2], words[3]};
  if (words != contents({at, l.version, l.next, l.count}, words.size())) {
    return fail(exit_differs, fmt::format("the memory at {:#x} is not what the task wrote", at));
  }
  return l;
}

}  // namespace

outcome<demo_task> demo_task::create(const device &d) {
  page_pool_options pool;
  pool.exportable = handle_type::posix_fd;
  STILLMAP_ASSIGN_OR_RETURN(auto pages, page_pool::create(d, pool));
  vector_options options;
  options.buffer.tag = task_tags[0];
  options.buffer.reserve_bytes = std::size_t{16} << 30;
  options.buffer.hint = device_address(task_begins_at);
  options.buffer.pools = {pages};
  STILLMAP_ASSIGN_OR_RETURN(auto cells, device_vector<std::uint64_t>::create(d, options));
  caching_allocator_options heap;
  heap.tag = task_tags[1];
  heap.hint = device_address(blocks_begin_at);
  heap.exportable = handle_type::posix_fd;
  STILLMAP_ASSIGN_OR_RETURN(auto made, caching_allocator::create(d, heap));
  demo_task out(d, std::move(cells), std::move(made));
  STILLMAP_RETURN_IF_ERROR(out.make_blocks());
  return out;
}

// A chain through all blocks, from the first cell on.
outcome<void> demo_task::make_blocks() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < block_count; ++i) {
    const std::size_t bytes = (std::size_t{96} << 10) * (1 + i * i % 37);
    STILLMAP_ASSIGN_OR_RETURN(const auto block, heap_->allocate(bytes));
    blocks_.push_back(block);
    sizes.push_back(bytes);
  }
  const context_guard guard(device_.driver(), device_.context());
  for (std::size_t i = 0; i < block_count; ++i) {
    const auto at = reinterpret_cast<std::uint64_t>(blocks_[i]);
    const std::uint64_t next =
        i + 1 < block_count ? reinterpret_cast<std::uint64_t>(blocks_[i + 1]) : 0;
    const auto words = contents({at, 1, next, sizes[i]}, sizes[i] / 8);
    STILLMAP_RETURN_IF_ERROR(
        device_.driver().copy_to_device(device_address(at), words.data(), sizes[i]));
  }
  STILLMAP_RETURN_IF_ERROR(grow(first_cells));
  first_head_ = head();
  return {};
}

outcome<void> demo_task::grow(std::size_t more) {
  const std::uint64_t had = cells_.size() / cell_words;
  for (std::uint64_t i = had; i < had + more; ++i) {
    // The address is known before the cell exists: it does not change.
    const std::uint64_t base = cells_.buffer().address().value();
    const auto words = contents({base + i * cell_bytes, 1, 0, 0}, cell_words);
    STILLMAP_RETURN_IF_ERROR(cells_.append(words));
  }
  // The first cell holds the number of cells and the address of the first block.
  const std::uint64_t base = head().value();
  const auto first =
      contents({base, 1, reinterpret_cast<std::uint64_t>(blocks_.front()), had + more}, cell_words);
  STILLMAP_RETURN_IF_ERROR(cells_.flush());
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(device_.driver().synchronize_context());
  STILLMAP_RETURN_IF_ERROR(
      device_.driver().copy_to_device(device_address(base), first.data(), cell_bytes));
  return {};
}

outcome<task_check> check_task(const device &d, device_address head) {
  task_check out;
  STILLMAP_ASSIGN_OR_RETURN(const auto first, check_piece(d, head.value(), cell_bytes));
  for (std::uint64_t i = 0; i < first.count; ++i) {
    STILLMAP_ASSIGN_OR_RETURN(const auto cell,
                              check_piece(d, head.value() + i * cell_bytes, cell_bytes));
    out.writes += cell.version;
    out.bytes += cell_bytes;
    ++out.cells;
  }
  for (std::uint64_t at = first.next; at != 0;) {
    STILLMAP_ASSIGN_OR_RETURN(const auto start, read(d, at, sizeof(header)));
    const std::uint64_t bytes = start[3];
    if (bytes < sizeof(header) || bytes > (std::uint64_t{64} << 20) || out.blocks == block_count) {
      return fail(exit_differs, fmt::format("the pointer to {:#x} is not to a block", at));
    }
    STILLMAP_ASSIGN_OR_RETURN(const auto block, check_piece(d, at, bytes));
    out.bytes += bytes;
    ++out.blocks;
    at = block.next;
  }
  return out;
}

outcome<std::unique_ptr<running_task>> running_task::start(const device &d, device_address head,
                                                           std::uint64_t cells) {
  std::unique_ptr<running_task> task(new running_task(d, head));
  for (std::uint64_t i = 0; i < cells; ++i) {
    STILLMAP_ASSIGN_OR_RETURN(const auto first,
                              read(d, head.value() + i * cell_bytes, sizeof(header)));
    task->versions_.push_back(first[1]);
  }
  task->thread_ = std::jthread(std::bind_front(&running_task::run, task.get()));
  return task;
}

void running_task::run(const std::stop_token &stopped) {
  const context_guard guard(device_.driver(), device_.context());
  const std::uint64_t cells = versions_.size();
  for (std::uint64_t i = 1; !stopped.stop_requested(); i = i + 1 < cells ? i + 1 : 1) {
    const device_address at = head_ + i * cell_bytes;
    const auto words = contents({at.value(), ++versions_[i], 0, 0}, cell_words);
    written_ = device_.driver().copy_to_device(at, words.data(), cell_bytes);
    if (!written_) return;
    ++writes_;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

outcome<std::uint64_t> running_task::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  STILLMAP_RETURN_IF_ERROR(written_);
  return writes_;
}

}  // namespace stillmap::tool

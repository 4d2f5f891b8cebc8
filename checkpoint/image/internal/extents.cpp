#include "stillmap/checkpoint/image/internal/extents.h"

#include <cstring>
#include <unordered_map>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/parallel_for.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

constexpr std::size_t none = SIZE_MAX;

}  // namespace

// The work of one thread.
class extent_writer::worker {
 public:
  explicit worker(extent_writer &all)
      : all_(all), queue_(all.file_, std::max(1u, all.options_.queue_depth)) {}

  status prepare() {
    std::size_t largest = 0;
    for (const chunk_record &r : all_.table_) largest = std::max<std::size_t>(largest, r.bytes);
    const bool changes = all_.options_.compress != codec::none || all_.encrypt_with_ != nullptr;
    rooms_.resize(std::max(1u, all_.options_.queue_depth));
    for (slot &s : rooms_) {
      STILLMAP_RETURN_IF_ERROR(s.read.grow(largest));
      if (changes) STILLMAP_RETURN_IF_ERROR(s.changed.grow(to_block(largest + tag_bytes)));
    }
    return {};
  }

  status work() {
    for (;;) {
      const std::size_t i = all_.next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= all_.table_.size() || all_.stop_.load(std::memory_order_relaxed)) break;
      STILLMAP_RETURN_IF_ERROR(one(i));
      all_.report(all_.table_[i]);
      if (all_.options_.cancel.stop_requested()) {
        return make_error(errc::operation_canceled, "stop requested");
      }
    }
    return queue_.finish();
  }

 private:
  struct slot {
    checkpoint::aligned_memory read, changed;
  };

  status one(std::size_t i) {
    chunk_record &r = all_.table_[i];
    const std::size_t in_parent = all_.in_parent_.empty() ? none : all_.in_parent_[i];
    bool changed = in_parent == none;  // known to differ from the parent
    if (!changed) {
      if (const auto known = all_.from_.digest_of(r.at, r.bytes)) {
        STILLMAP_ASSIGN_OR_RETURN(const digest zeros, digest_of_zeros(all_.key_, r.bytes));
        if (*known == zeros) return {};
        r.contents = *known;
        if (is_parents(r, in_parent)) return {};
        changed = true;
      }
    }
    STILLMAP_ASSIGN_OR_RETURN(const auto free, queue_.free_slot());
    slot &s = rooms_[free];
    const auto room = s.read.bytes().first(r.bytes);
    STILLMAP_ASSIGN_OR_RETURN(const auto got, all_.from_.chunk(r.at, room));
    const bytes_view contents = got;
    if (contents.size() != r.bytes) {
      return checkpoint::file_error(errc::invalid_argument,
                                    "the source returned a chunk of the wrong size", part::extents,
                                    0, std::to_string(contents.size()), std::to_string(r.bytes));
    }
    if (all_zero(contents)) {
      r.contents = {};
      return {};
    }
    const bool unmodified = all_.options_.compress == codec::none && all_.encrypt_with_ == nullptr;
    both_digests sums;
    if (unmodified && changed) {
      STILLMAP_ASSIGN_OR_RETURN(sums, digests_of(all_.key_, contents));
    } else {
      STILLMAP_ASSIGN_OR_RETURN(sums.contents, digest_of_contents(all_.key_, contents));
    }
    r.contents = sums.contents;
    if (!changed) {
      if (is_parents(r, in_parent)) return {};
      if (unmodified) sums.stored = digest_of(contents);
    }
    if (all_.options_.share) {
      if (const std::size_t first = all_.first_equal(r.contents, r.bytes, i); first != i) {
        r.kind = chunk_kind::same;
        r.where = first;
        return {};
      }
    }
    return store(i, free, contents, sums.stored);
  }

  // Refers to the parent's record if that has the same contents, which are not zeros.
  bool is_parents(chunk_record &r, std::size_t in_parent) const {
    const digest &theirs = all_.options_.parent->chunks()[in_parent].contents;
    if (theirs.is_zero() || theirs != r.contents) return false;
    r.kind = chunk_kind::parent;
    r.where = in_parent;
    return true;
  }

  // Compresses, encrypts and writes contents that are stored nowhere yet.
  status store(std::size_t i, unsigned slot_number, bytes_view contents, const digest &unmodified) {
    chunk_record &r = all_.table_[i];
    slot &s = rooms_[slot_number];
    r.kind = chunk_kind::raw;
    bytes_view stored = contents;
    if (all_.options_.compress != codec::none) {
      const std::size_t n = packer_.compress(all_.options_.compress, contents, s.changed.bytes());
      if (n != 0) {
        r.kind = all_.options_.compress == codec::lz4 ? chunk_kind::lz4 : chunk_kind::zstd;
        stored = s.changed.bytes().first(n);
      }
    }
    if (all_.encrypt_with_ != nullptr) {
      const auto to = s.changed.bytes().first(stored.size() + tag_bytes);
      STILLMAP_RETURN_IF_ERROR(all_.encrypt_with_->encrypt({i, 0}, stored, to));
      stored = to;
    }
    const bool changed = stored.data() != contents.data();
    r.stored = static_cast<std::uint32_t>(stored.size());
    r.stored_bytes =
        changed || all_.options_.compress != codec::none ? digest_of(stored) : unmodified;
    if (!all_.seals_.empty()) all_.seals_[i] = sha256_of(stored);
    const std::uint64_t room = to_block(r.stored);
    r.where = all_.next_offset_.fetch_add(room, std::memory_order_relaxed);
    bytes_view blocks = stored;
    if (changed) {
      const auto padded = s.changed.bytes().first(room);
      std::memset(padded.data() + r.stored, 0, padded.size() - r.stored);
      blocks = padded;
    } else if (all_.file_.direct() && !checkpoint::is_aligned(stored.data())) {
      std::memcpy(s.read.bytes().data(), stored.data(), stored.size());
      blocks = s.read.bytes().first(stored.size());
    }
    return queue_.write(slot_number, blocks, r.where);
  }

  extent_writer &all_;
  std::vector<slot> rooms_;
  compressor packer_;
  write_queue queue_;  // destroyed before the buffers that it writes from
};

extent_writer::extent_writer(checkpoint::block_file &file, std::vector<chunk_record> &table,
                             contents_source &from, const write_options &options,
                             const manifest &what, const digest_key &key,
                             const cipher *encrypt_with)
    : file_(file),
      table_(table),
      from_(from),
      options_(options),
      key_(key),
      encrypt_with_(encrypt_with) {
  for (const chunk_record &r : table) progress_.total_bytes += r.bytes;
  if (options.sign_with) seals_.resize(table.size());
  if (options.parent) find_parents(what);
}

void extent_writer::find_parents(const manifest &what) {
  in_parent_.assign(table_.size(), none);
  const reader &parent = *options_.parent;
  const auto theirs = parent.manifest().lowest_addresses();
  const auto ours = what.lowest_addresses();
  std::unordered_map<std::uint64_t, std::size_t> first;  // chunk of the page at that address
  const auto chunks = parent.chunks();
  std::size_t c = 0;
  for (std::size_t p = 0; p < theirs.size(); ++p) {
    first[theirs[p]] = c;
    for (std::uint64_t in = 0; in < parent.manifest().pages[p].bytes; ++c) in += chunks[c].bytes;
  }
  c = 0;
  for (std::size_t p = 0; p < ours.size(); ++p) {
    const auto there = first.find(ours[p]);
    std::uint64_t in = 0;
    for (std::size_t k = 0; in < what.pages[p].bytes; ++k, ++c) {
      in += table_[c].bytes;
      if (there == first.end()) continue;
      const std::size_t n = there->second + k;
      // After the end of a shorter page, `n` is a chunk of the next page. It is a candidate as well:
      // the digest decides, and only the size must match.
      if (n < chunks.size() && chunks[n].bytes == table_[c].bytes) in_parent_[c] = n;
    }
  }
}

std::size_t extent_writer::first_equal(const digest &d, std::uint32_t bytes, std::size_t number) {
  const lock_guard lock(mutex_);
  const auto [at, is_new] = known_.try_emplace({d, bytes}, number);
  if (is_new || at->second < number) return at->second;
  // A later record was registered first, but references must go to earlier ones: store this too.
  at->second = number;
  return number;
}

void extent_writer::report(const chunk_record &r) {
  const lock_guard lock(mutex_);
  progress_.bytes += r.bytes;
  progress_.stored += r.stored;
  if (options_.on_progress) options_.on_progress(progress_);
}

void extent_writer::stop(status result) {
  const lock_guard lock(mutex_);
  stop_ = true;
  if (result_) result_ = std::move(result);
}

status extent_writer::run() {
  checkpoint::parallel_for(checkpoint::threads_for(options_.threads, table_.size()),
                           [this]() noexcept {
                             auto ok = with_host_memory([this]() -> status {
                               worker w(*this);
                               STILLMAP_RETURN_IF_ERROR(w.prepare());
                               return w.work();
                             });
                             if (!ok) stop(std::move(ok));
                           });
  const lock_guard lock(mutex_);
  return result_;
}

}  // namespace stillmap::image

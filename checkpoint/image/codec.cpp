#include "stillmap/checkpoint/image/codec.h"

#include <lz4.h>
#include <zstd.h>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::image {
namespace {

// Fast, and still saves most of what higher levels save.
constexpr int zstd_level = 1;

tl::unexpected<error> wrong(const char *reason, std::string found, std::size_t expected) {
  return checkpoint::file_error(errc::corrupt, reason, part::extents, 0, std::move(found),
                                std::to_string(expected));
}

}  // namespace

struct compressor::state {
  std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx *)> compress{nullptr, ZSTD_freeCCtx};
  std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx *)> decompress{nullptr, ZSTD_freeDCtx};
};

compressor::compressor() : state_(std::make_unique<state>()) {}
compressor::~compressor() = default;
compressor::compressor(compressor &&) noexcept = default;
compressor &compressor::operator=(compressor &&) noexcept = default;

std::size_t compressor::compress(codec kind, bytes_view from, std::span<std::byte> room) {
  room = room.first(worth_storing(from.size()));
  if (kind == codec::lz4) {
    const int n = LZ4_compress_default(
        reinterpret_cast<const char *>(from.data()), reinterpret_cast<char *>(room.data()),
        static_cast<int>(from.size()), static_cast<int>(room.size()));
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  if (kind == codec::zstd) {
    if (!state_->compress) state_->compress.reset(ZSTD_createCCtx());
    if (!state_->compress) return 0;
    const std::size_t n = ZSTD_compressCCtx(state_->compress.get(), room.data(), room.size(),
                                            from.data(), from.size(), zstd_level);
    return ZSTD_isError(n) ? 0 : n;
  }
  return 0;
}

status compressor::decompress(chunk_kind kind, bytes_view from, std::span<std::byte> to) {
  return with_host_memory("image::decompress", [&]() -> status {
    if (kind == chunk_kind::lz4) {
      const int n = LZ4_decompress_safe(reinterpret_cast<const char *>(from.data()),
                                        reinterpret_cast<char *>(to.data()),
                                        static_cast<int>(from.size()), static_cast<int>(to.size()));
      if (n < 0 || static_cast<std::size_t>(n) != to.size()) {
        return wrong("not an lz4 block of the chunk's size", n < 0 ? "none" : std::to_string(n),
                     to.size());
      }
      return {};
    }
    // One frame with its content size; libzstd never writes past `to`.
    const unsigned long long says = ZSTD_getFrameContentSize(from.data(), from.size());
    if (says != to.size()) {
      return wrong("not a zstd frame of the chunk's size",
                   says == ZSTD_CONTENTSIZE_ERROR     ? "none"
                   : says == ZSTD_CONTENTSIZE_UNKNOWN ? "a frame without its size"
                                                      : std::to_string(says),
                   to.size());
    }
    if (const std::size_t frame = ZSTD_findFrameCompressedSize(from.data(), from.size());
        ZSTD_isError(frame) || frame != from.size()) {
      return wrong("the zstd frame does not fill the extent",
                   ZSTD_isError(frame) ? "none" : std::to_string(frame), from.size());
    }
    if (!state_->decompress) state_->decompress.reset(ZSTD_createDCtx());
    if (!state_->decompress) {
      return checkpoint::file_error(errc::out_of_memory, "no host memory to decompress",
                                    part::extents, 0);
    }
    const std::size_t n = ZSTD_decompressDCtx(state_->decompress.get(), to.data(), to.size(),
                                              from.data(), from.size());
    if (ZSTD_isError(n) || n != to.size()) {
      return wrong("a damaged zstd frame",
                   ZSTD_isError(n) ? ZSTD_getErrorName(n) : std::to_string(n), to.size());
    }
    return {};
  });
}

}  // namespace stillmap::image

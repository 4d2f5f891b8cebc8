#include "stillmap/allocators/replay/trace_file.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include "stillmap/allocators/replay/import_trace.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/source.h"

namespace stillmap::tool {
namespace {

constexpr std::string_view zstd_begins = "\x28\xb5\x2f\xfd";

std::string name_of(const std::string &file) {
  return file == "-" ? "standard input" : file;
}

outcome<std::string> decompress(const std::string &file, const std::string &packed) {
  const auto damaged = [&](const char *why) {
    return fail(exit_usage, fmt::format("cannot read {}: zstd says: {}", file, why));
  };
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream *)> stream(ZSTD_createDStream(),
                                                                              ZSTD_freeDStream);
  if (!stream) return fail(exit_failed, "out of host memory");
  std::string text;
  std::vector<char> piece(ZSTD_DStreamOutSize());
  ZSTD_inBuffer in = {packed.data(), packed.size(), 0};
  std::size_t left = 1;
  // Once more after the last byte went in: what is inside may still have to come out.
  for (bool full = true; in.pos < in.size || full;) {
    ZSTD_outBuffer out = {piece.data(), piece.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left)) return damaged(ZSTD_getErrorName(left));
    text.append(piece.data(), out.pos);
    full = out.pos == out.size;
    if (text.size() > most_trace_text) {
      return fail(exit_usage,
                  fmt::format("{} holds over {} of text", file, human(most_trace_text)));
    }
  }
  if (left != 0) return damaged("the file is truncated");
  return text;
}

}  // namespace

outcome<std::string> read_text(const std::string &file) {
  auto source = byte_source::open(file);
  if (!source) return tl::unexpected(source.error());
  std::string text;
  for (std::size_t step = std::size_t{1} << 20;; step *= 2) {
    const std::size_t had = text.size();
    text.resize(had + step);
    const auto n = source->read(std::as_writable_bytes(std::span(text).subspan(had)));
    if (!n) return tl::unexpected(n.error());
    text.resize(had + *n);
    if (*n < step) break;
    if (text.size() > most_trace_text) {
      return fail(exit_usage, fmt::format("{} is over {}", file, human(most_trace_text)));
    }
  }
  return text.starts_with(zstd_begins) ? decompress(file, text) : std::move(text);
}

outcome<std::string> load_trace_text(const std::string &file) {
  auto text = read_text(file);
  if (!text) return text;
  switch (kind_of(*text)) {
    case record_kind::torch_snapshot:
      return import_torch_snapshot(name_of(file), *text);
    case record_kind::rmm_log:
      return import_rmm_log(name_of(file), *text);
    default:
      return text;
  }
}

outcome<trace> load_trace(const std::string &file) {
  const auto text = load_trace_text(file);
  if (!text) return tl::unexpected(text.error());
  auto read = read_trace(*text);
  if (!read) return fail(exit_usage, read.error().message(name_of(file)));
  return std::move(*read);
}

outcome<void> save_text(const std::string &file, const std::string &text) {
  std::string packed;
  const bool compress = file.ends_with(".zst");
  if (compress) {
    packed.resize(ZSTD_compressBound(text.size()));
    const std::size_t n = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 19);
    if (ZSTD_isError(n)) {
      return fail(exit_failed, fmt::format("cannot compress {}: {}", file, ZSTD_getErrorName(n)));
    }
    packed.resize(n);
  }
  const std::string &bytes = compress ? packed : text;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) {
    const int why = errno;
    std::remove(file.c_str());
    return fail(exit_failed,
                fmt::format("cannot write {}: {}", file, std::generic_category().message(why)));
  }
  return {};
}

}  // namespace stillmap::tool

#include "bench/replay/trace_file.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

#include "bench/replay/internal/failure.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::replay {
namespace {

constexpr std::string_view zstd_begins = "\x28\xb5\x2f\xfd";

std::string name_of(const std::string &file) {
  return file == "-" ? "standard input" : file;
}

result<std::string> decompress(const std::string &file, const std::string &packed) {
  const auto damaged = [&](const char *why) {
    return fail(errc::invalid_argument, fmt::format("cannot read {}: zstd says: {}", file, why));
  };
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream *)> stream(ZSTD_createDStream(),
                                                                              ZSTD_freeDStream);
  if (!stream) return fail(errc::out_of_memory, "out of host memory");
  const std::uint64_t most =
      std::min(most_trace_text, std::max(free_expansion_bytes, most_expansion * packed.size()));
  std::string text;
  std::vector<char> piece(ZSTD_DStreamOutSize());
  ZSTD_inBuffer in = {packed.data(), packed.size(), 0};
  std::size_t left = 1;
  // The loop ends when the input is consumed and the output was not full: then none is left inside.
  for (bool full = true; in.pos < in.size || full;) {
    ZSTD_outBuffer out = {piece.data(), piece.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left)) return damaged(ZSTD_getErrorName(left));
    text.append(piece.data(), out.pos);
    full = out.pos == out.size;
    if (text.size() > most) {
      return fail(errc::invalid_argument,
                  fmt::format("{} holds over {} of text{}", file, format_bytes(most),
                              most == most_trace_text
                                  ? ""
                                  : ", more than 1,000 times its size: decompress it first"));
    }
  }
  if (left != 0) return damaged("the file is truncated");
  return text;
}

}  // namespace

result<std::string> read_text(const std::string &file) {
  std::FILE *const in = file == "-" ? stdin : std::fopen(file.c_str(), "rb");
  if (in == nullptr) return fail_system(errno, file, "cannot read the file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE *)> closer(
      in == stdin ? nullptr : in, [](std::FILE *f) { return std::fclose(f); });
  std::string text;
  for (std::size_t step = std::size_t{1} << 20;; step *= 2) {
    const std::size_t had = text.size();
    text.resize(had + step);
    errno = 0;
    const std::size_t n = std::fread(text.data() + had, 1, step, in);
    text.resize(had + n);
    if (std::ferror(in) != 0) return fail_system(errno, name_of(file), "cannot read the file");
    if (n < step) break;
    if (text.size() > most_trace_text) {
      return fail(errc::invalid_argument,
                  fmt::format("{} is over {}", file, format_bytes(most_trace_text)));
    }
  }
  return text.starts_with(zstd_begins) ? decompress(file, text) : std::move(text);
}

result<std::vector<trace_text>> load_trace_texts(const std::string &file) {
  STILLMAP_ASSIGN_OR_RETURN(std::string text, read_text(file));
  const record_kind kind = kind_of(text);
  if (kind == record_kind::torch_snapshot) return import_torch_snapshot(name_of(file), text);
  if (kind == record_kind::rmm_log) {
    STILLMAP_ASSIGN_OR_RETURN(text, import_rmm_log(name_of(file), text));
  }
  return std::vector<trace_text>{{std::nullopt, std::move(text)}};
}

result<std::vector<device_trace>> load_traces(const std::string &file) {
  STILLMAP_ASSIGN_OR_RETURN(const auto texts, load_trace_texts(file));
  std::vector<device_trace> out;
  for (const trace_text &t : texts) {
    auto read = read_trace(t.text);
    if (!read) return tl::unexpected(read.error().about(name_of(file)));
    out.push_back({t.device, std::move(*read)});
  }
  return out;
}

result<device_trace> pick_trace(const std::string &file, std::vector<device_trace> all,
                                std::optional<std::size_t> device) {
  const auto peak = [](const device_trace &t) { return t.recorded.totals.peak_live_bytes; };
  if (!device) {
    return std::move(*std::max_element(
        all.begin(), all.end(), [&](const auto &a, const auto &b) { return peak(a) < peak(b); }));
  }
  std::string known;
  for (device_trace &t : all) {
    if (!t.device || *t.device == *device) return std::move(t);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", *t.device);
  }
  return fail(errc::invalid_argument, fmt::format("{} has no history of device {}; it has of {}",
                                                  name_of(file), *device, known));
}

result<trace> load_trace(const std::string &file) {
  STILLMAP_ASSIGN_OR_RETURN(auto all, load_traces(file));
  STILLMAP_ASSIGN_OR_RETURN(auto one, pick_trace(file, std::move(all)));
  return std::move(one.recorded);
}

status save_text(const std::string &file, const std::string &text) {
  std::string packed;
  const bool compress = file.ends_with(".zst");
  if (compress) {
    packed.resize(ZSTD_compressBound(text.size()));
    const std::size_t n = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 19);
    if (ZSTD_isError(n)) {
      return fail(errc::corrupt, fmt::format("cannot compress {}: {}", file, ZSTD_getErrorName(n)));
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
    return fail_system(why, file, "cannot write the file");
  }
  return {};
}

}  // namespace stillmap::replay

#include "python/src/image_options.h"

#include <nanobind/stl/string.h>

#include <utility>

#include "python/src/errors.h"
#include "python/src/paths.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

image::codec codec_of(const char *operation, nb::handle name) {
  if (name.is_none()) return image::codec::none;
  const auto text = nb::cast<std::string>(name);
  if (text == "none") return image::codec::none;
  if (text == "lz4") return image::codec::lz4;
  if (text == "zstd") return image::codec::zstd;
  raise(error{make_error_code(errc::invalid_argument), operation,
              "the compression is none of none, lz4 and zstd"}
            .about(text));
}

}  // namespace

image_request image_request_of(const char *operation, nb::handle parent, nb::handle compression,
                               bool replace, bool force) {
  image_request r;
  if (!parent.is_none()) r.parent = path_of(parent);
  r.options.compress = codec_of(operation, compression);
  r.options.replace = replace;
  r.options.force = force;
  return r;
}

result<image::write_options> open_parent(image_request request) {
  if (!request.parent.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(request.options.parent, image::reader::open(request.parent));
  }
  return std::move(request.options);
}

nb::dict image_dict(const image::written &w) {
  nb::dict d;
  d["file_bytes"] = w.file_bytes;
  d["contents_bytes"] = w.contents_bytes;
  d["stored_bytes"] = w.stored_bytes;
  d["chunks"] = w.chunks;
  d["zero_chunks"] = w.zero_chunks;
  d["same_chunks"] = w.same_chunks;
  d["parent_chunks"] = w.parent_chunks;
  d["compressed_chunks"] = w.compressed_chunks;
  d["direct_io"] = w.direct_io;
  return d;
}

}  // namespace stillmap::python

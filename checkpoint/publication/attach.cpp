#include <algorithm>
#include <map>
#include <utility>

#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/internal/reader.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {

result<attached_memory> attach(const device &d, const std::string &address, const std::string &name,
                               const attach_options &options) {
  return with_host_memory("publication::attach", [&]() -> result<attached_memory> {
    STILLMAP_ASSIGN_OR_RETURN(auto attached, reader(d, options).run(address, name, false));
    return std::get<attached_memory>(std::move(attached));
  });
}

result<std::vector<attached_memory>> attach(
    const device &d, const std::string &address,
    std::span<const checkpoint::published_reference> references, const attach_options &options) {
  return with_host_memory("publication::attach", [&]() -> result<std::vector<attached_memory>> {
    std::map<std::pair<std::string, image::sha256>, std::vector<device_address>> publications;
    for (const checkpoint::published_reference &r : references) {
      image::sha256 id;
      id.bytes = r.id.bytes;
      auto &blocks = publications[{r.name, id}];
      if (r.block >= image::max_blocks) {
        return make_error(errc::invalid_argument, "the publication has no such block", r.block);
      }
      blocks.resize(std::max<std::size_t>(blocks.size(), r.block + 1));
      blocks[r.block] = r.range.begin;
    }
    std::vector<attached_memory> out;
    for (auto &[publication, addresses] : publications) {
      attach_options one = options;
      one.generation = 0;
      one.id = publication.second;
      one.addresses = std::move(addresses);
      STILLMAP_ASSIGN_OR_RETURN(auto attached,
                                reader(d, one).run(address, publication.first, false));
      out.push_back(std::get<attached_memory>(std::move(attached)));
    }
    return out;
  });
}

result<std::variant<attached_memory, claim>> attach_or_claim(const device &d,
                                                             const std::string &address,
                                                             const std::string &name,
                                                             const attach_options &options) {
  return with_host_memory("publication::attach_or_claim",
                          [&] { return reader(d, options).run(address, name, true); });
}

}  // namespace stillmap::publication

#include "stillmap/checkpoint/mpi/internal/collective.h"
#include "stillmap/checkpoint/snapshot/internal/restoring.h"

namespace stillmap::mpi {
namespace {

constexpr const char *op = "mpi::restore";

image::outcome<image::image_set> read(const meeting &all, const std::string &folder,
                                      const snapshot::restore_options &how) {
  auto set = image::read_set(folder, how.image.calls);
  if (!set || set->images.size() == static_cast<std::size_t>(all.size())) return set;
  return image::in_file<image::image_set>(
      image::fail(errc::invalid_argument, op,
                  "the set is of another number of ranks than it is to go to", image::part::set, 12,
                  std::to_string(set->images.size()), std::to_string(all.size())),
      folder);
}

image::outcome<image::reader> open_mine(const meeting &all, const std::string &folder,
                                        const image::image_set &set, const image::image_id &of_all,
                                        const snapshot::restore_options &how) {
  if (set.set != of_all) {
    return image::in_file<image::reader>(
        image::fail(errc::busy, op, "another set than rank 0 sees: replaced just now?",
                    image::part::set, 16, set.set.text(), of_all.text()),
        folder);
  }
  return image::open_in_set(folder, set, static_cast<std::uint32_t>(all.rank()), how.image);
}

}  // namespace

outcome<snapshot::restored> restore(MPI_Comm ranks, const device &d, const std::string &folder,
                                    const snapshot::restore_options &how) {
  const auto all = meeting::create(ranks);
  if (!all) return tl::unexpected(all.error());
  const auto set = attempt([&] { return read(*all, folder, how); });
  if (const auto ok = all->agree(without_value(set)); !ok) return tl::unexpected(ok.error());
  image::image_id of_all = set->set;
  if (const auto ok = all->tell(of_all); !ok) return tl::unexpected(ok.error());
  const auto image = attempt([&] { return open_mine(*all, folder, *set, of_all, how); });
  if (const auto ok = all->agree(without_value(image)); !ok) return tl::unexpected(ok.error());

  const std::string &path = image->path();
  auto memory = attempt([&] { return snapshot::restoring::create(d, *image, how.tags, how); });
  const auto wanted = image::in_file(without_value(memory), path);
  if (const auto ok = all->agree(wanted); !ok) return tl::unexpected(ok.error());
  const auto reserved = attempt([&] { return image::in_file(memory->reserve(), path); });
  if (const auto ok = all->agree(reserved); !ok) return tl::unexpected(ok.error());
  const auto fetched = attempt([&] { return image::in_file(memory->fetch(how), path); });
  if (const auto ok = all->agree(fetched); !ok) return tl::unexpected(ok.error());
  auto mapped = attempt([&] { return image::in_file(std::move(*memory).finish(), path); });
  if (const auto ok = all->agree(without_value(mapped)); !ok) return tl::unexpected(ok.error());
  return std::move(*mapped);
}

}  // namespace stillmap::mpi

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/checkpoint/mpi/internal/collective.h"
#include "stillmap/checkpoint/snapshot/restore_operation.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap::mpi {
namespace {

result<image::image_set> read_set(const collective &all, const std::string &folder,
                                  const snapshot::restore_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(auto set, image::read_set(folder, *options.image.files));
  if (set.images.size() == static_cast<std::size_t>(all.size())) return set;
  return checkpoint::in_file(
      checkpoint::file_error(
          errc::invalid_argument, "the number of images in the set is not the number of ranks",
          image::part::set, 12, std::to_string(set.images.size()), std::to_string(all.size())),
      folder);
}

result<image::reader> open_mine(const collective &all, const std::string &folder,
                                const image::image_set &set, const image::image_id &set_of_rank_0,
                                const snapshot::restore_options &options) {
  if (set.set != set_of_rank_0) {
    return checkpoint::in_file(
        checkpoint::file_error(errc::busy,
                               "the set differs from that of rank 0; it may have been replaced",
                               image::part::set, 16, set.set.text(), set_of_rank_0.text()),
        folder);
  }
  return image::open_in_set(folder, set, static_cast<std::uint32_t>(all.rank()), options.image);
}

}  // namespace

result<snapshot::restored> restore(MPI_Comm ranks, const device &d, const std::string &folder,
                                   const snapshot::restore_options &options) {
  const operation_scope scope("mpi::restore");
  STILLMAP_ASSIGN_OR_RETURN(const auto all, collective::create(ranks));
  STILLMAP_ASSIGN_OR_RETURN(const auto set,
                            all.agree([&] { return read_set(all, folder, options); }));
  image::image_id set_of_rank_0 = set.set;
  STILLMAP_RETURN_IF_ERROR(all.broadcast(set_of_rank_0));
  STILLMAP_ASSIGN_OR_RETURN(const auto image, all.agree([&] {
    return open_mine(all, folder, set, set_of_rank_0, options);
  }));

  const std::string &path = image.path();
  STILLMAP_ASSIGN_OR_RETURN(auto memory, all.agree([&] {
    return checkpoint::in_file(snapshot::restore_operation::create(d, image, options.tags, options),
                               path);
  }));
  STILLMAP_RETURN_IF_ERROR(all.agree([&] { return checkpoint::in_file(memory.reserve(), path); }));
  STILLMAP_RETURN_IF_ERROR(
      all.agree([&] { return checkpoint::in_file(memory.fetch(options), path); }));
  return all.agree([&] { return checkpoint::in_file(std::move(memory).finish(), path); });
}

}  // namespace stillmap::mpi

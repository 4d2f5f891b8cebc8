#include <fcntl.h>

#include <memory>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/checkpoint/image/read_superblock.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/checkpoint/mpi/internal/collective.h"
#include "stillmap/checkpoint/snapshot/save_operation.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap::mpi {
namespace {

// The steps of one save on one rank. Each returns this rank's own result.
class rank_of_save {
 public:
  rank_of_save(const collective &all, const device &d, const std::string &folder,
               const save_options &options)
      : all_(all),
        device_(d),
        folder_(folder),
        options_(options.snapshot.image),
        idle_(options.snapshot.idle) {
    while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  }

  // Rank 0 creates and locks the folder.
  status open() {
    if (all_.rank() != 0) return {};
    STILLMAP_ASSIGN_OR_RETURN(
        auto set, image::set_writer::create(folder_, static_cast<std::uint32_t>(all_.size()),
                                            {options_.replace, options_.force, options_.files}));
    set_ = std::make_unique<image::set_writer>(std::move(set));
    id_ = set_->set();
    return {};
  }

  status prepare(std::span<const std::string> tags,
                 const std::vector<image::manifest::note> &notes) {
    options_.set = id_;
    options_.set_images = static_cast<std::uint32_t>(all_.size());
    options_.set_index = static_cast<std::uint32_t>(all_.rank());
    options_.replace = false;
    path_ = path_of(all_.rank());
    if (options_.parent) STILLMAP_RETURN_IF_ERROR(check_parent());
    STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(device_, idle_));
    STILLMAP_ASSIGN_OR_RETURN(auto memory, snapshot::save_operation::create(device_, tags, notes));
    memory_ = std::make_unique<snapshot::save_operation>(std::move(memory));
    return {};
  }

  status write() {
    STILLMAP_ASSIGN_OR_RETURN(mine_, memory_->write(path_, options_));
    written_ = true;
    return {};
  }

  // Rank 0 checks that it finds all images: that the folder is shared.
  status check_images(const std::vector<image::set_member> &members) const {
    for (int i = 1; set_ && i < all_.size(); ++i) {
      STILLMAP_RETURN_IF_ERROR(check_image(i, members[static_cast<std::size_t>(i)]));
    }
    return {};
  }

  status commit(const std::vector<image::set_member> &members) {
    return set_ ? set_->commit(members) : status();
  }

  // Before a commit was tried. Each rank removes its image; rank 0 removes all.
  void undo() {
    if (written_ && !set_) {
      (void)options_.files->unlink_at(AT_FDCWD, path_.c_str());
    }
    close();
  }
  // Rank 0 unlocks the folder and, without a commit, removes all images of the set.
  void close() { set_.reset(); }

  image::image_id &id() { return id_; }
  const image::written &mine() const { return mine_; }
  image::set_member member() const { return {mine_.image, mine_.file_bytes, mine_.root}; }

 private:
  std::string path_of(int rank) const {
    return folder_ + "/" + image::name_in_set(static_cast<std::uint32_t>(rank), id_);
  }

  status check_parent() const {
    const auto current = image::read_set(folder_, *options_.files);
    if (!current && current.error().is(errc::out_of_memory)) {
      return tl::unexpected(current.error());
    }
    if (!current || !image::depends_on(*options_.parent, *current)) return {};
    return checkpoint::in_file(
        checkpoint::file_error(errc::invalid_argument,
                               "a set cannot replace a set that its parents depend on; save it in "
                               "another folder",
                               image::part::set, 0, options_.parent->path()),
        folder_);
  }

  // Checks that the image of another rank is readable from this one, and is the one it wrote.
  status check_image(int rank, const image::set_member &m) const {
    const std::string path = path_of(rank);
    const auto checked = [&]() -> status {
      STILLMAP_ASSIGN_OR_RETURN(const auto head,
                                image::read_superblock(*options_.files, AT_FDCWD, path));
      if (head.image == m.image && head.root == m.root) return {};
      return checkpoint::file_error(errc::corrupt, "not the image that the rank wrote",
                                    image::part::set, 0, head.root.text(), m.root.text());
    }();
    if (checked) return {};
    return tl::unexpected(
        make_error(errc::corrupt,
                   "rank 0 cannot read the image of another rank; check that the folder is shared")
            .value()
            .with({.subject = path, .cause = checked.error().message()}));
  }

  const collective &all_;
  device device_;
  std::string folder_, path_;  // path_: of this rank's image, once the set has an id
  image::write_options options_;
  std::optional<fence> idle_;
  std::unique_ptr<image::set_writer> set_;  // on rank 0
  std::unique_ptr<snapshot::save_operation> memory_;
  image::image_id id_;
  image::written mine_;
  bool written_ = false;
};

// All steps before the commit.
result<std::vector<image::set_member>> write_all(const collective &all, rank_of_save &mine,
                                                 std::span<const std::string> tags,
                                                 const save_options &options) {
  using members_of_set = std::vector<image::set_member>;
  STILLMAP_ASSIGN_OR_RETURN(members_of_set members, all.agree([&]() -> result<members_of_set> {
    return members_of_set(static_cast<std::size_t>(all.size()));
  }));
  STILLMAP_RETURN_IF_ERROR(all.agree([&] { return mine.open(); }));
  STILLMAP_RETURN_IF_ERROR(all.broadcast(mine.id()));
  STILLMAP_RETURN_IF_ERROR(all.agree([&] { return mine.prepare(tags, options.snapshot.notes); }));
  STILLMAP_RETURN_IF_ERROR(all.agree([&] { return mine.write(); }));
  STILLMAP_RETURN_IF_ERROR(all.gather(mine.member(), std::span(members)));
  STILLMAP_RETURN_IF_ERROR(all.agree([&] { return mine.check_images(members); }));
  return members;
}

}  // namespace

result<saved_set> save(MPI_Comm ranks, const device &d, std::span<const std::string> tags,
                       const std::string &folder, const save_options &options) {
  const operation_scope scope("mpi::save");
  STILLMAP_ASSIGN_OR_RETURN(const auto all, collective::create(ranks));
  std::optional<rank_of_save> begun;
  STILLMAP_RETURN_IF_ERROR(all.agree([&]() -> status {
    begun.emplace(all, d, folder, options);
    return {};
  }));
  rank_of_save &mine = *begun;
  auto members = write_all(all, mine, tags, options);
  if (!members) {
    mine.undo();
    // No rank returns before all have removed their files. The first error is returned.
    (void)all.all_agree({});
    return tl::unexpected(members.error());
  }
  const status committed = attempt([&] { return mine.commit(*members); });
  mine.close();
  STILLMAP_RETURN_IF_ERROR(all.all_agree(committed));
  return saved_set{mine.id(), std::move(*members), mine.mine()};
}

}  // namespace stillmap::mpi

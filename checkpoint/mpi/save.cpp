#include <fcntl.h>

#include <memory>

#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/checkpoint/image/internal/image_file.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/checkpoint/mpi/internal/collective.h"
#include "stillmap/checkpoint/snapshot/internal/failures.h"
#include "stillmap/checkpoint/snapshot/internal/saving.h"

namespace stillmap::mpi {
namespace {

constexpr const char *op = "mpi::save";

// Of one save on one rank, a step at a time. Steps return this rank's own outcome.
class rank_of_save {
 public:
  rank_of_save(const meeting &all, const device &d, const std::string &folder,
               const save_options &how)
      : all_(all), device_(d), folder_(folder), how_(how.snapshot.image), idle_(how.snapshot.idle) {
    while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
    how_.calls = calls_of(how_);
  }

  // Rank 0 keeps the folder.
  image::done open() {
    if (all_.rank() != 0) return {};
    auto set = image::set_writer::create(folder_, static_cast<std::uint32_t>(all_.size()),
                                         {how_.replace, how_.calls});
    if (!set) return tl::unexpected(set.error());
    set_ = std::make_unique<image::set_writer>(std::move(*set));
    id_ = set_->set();
    return {};
  }

  image::done prepare(std::span<const std::string> tags,
                      const std::vector<image::manifest::note> &notes) {
    how_.set = id_;
    how_.set_images = static_cast<std::uint32_t>(all_.size());
    how_.set_index = static_cast<std::uint32_t>(all_.rank());
    how_.replace = false;
    if (how_.parent) {
      if (const auto ok = check_parent(); !ok) return ok;
    }
    if (status s = checkpoint::wait_until_idle(device_, idle_); !s) {
      return snapshot::pass_on(s.error());
    }
    auto memory = snapshot::saving::create(device_, tags, notes);
    if (!memory) return tl::unexpected(memory.error());
    memory_ = std::make_unique<snapshot::saving>(std::move(*memory));
    return {};
  }

  image::done write() {
    auto w = memory_->write(path_of(all_.rank()), how_);
    if (!w) return tl::unexpected(w.error());
    mine_ = *w;
    written_ = true;
    return {};
  }

  // Rank 0 finds them all: the folder is shared.
  image::done look(const std::vector<image::set_member> &members) const {
    for (int i = 1; set_ && i < all_.size(); ++i) {
      if (const auto ok = is_there(i, members[static_cast<std::size_t>(i)]); !ok) return ok;
    }
    return {};
  }

  image::done commit(const std::vector<image::set_member> &members) {
    return set_ ? set_->commit(members) : image::done();
  }

  // Before a commit was tried. Rank 0 removes what all wrote, by its names.
  void undo() {
    if (written_ && !set_) {
      static_cast<void>(how_.calls->unlink_at(AT_FDCWD, path_of(all_.rank()).c_str()));
    }
    close();
  }
  // Rank 0 lets the next writer in, and removes all images that are of no set.
  void close() { set_.reset(); }

  image::image_id &id() { return id_; }
  const image::written &mine() const { return mine_; }
  image::set_member member() const { return {mine_.image, mine_.file_bytes, mine_.root}; }

 private:
  static image::file_calls *calls_of(const image::write_options &how) {
    return how.calls != nullptr ? how.calls : &image::file_calls::system();
  }
  std::string path_of(int rank) const {
    return folder_ + "/" + image::name_in_set(static_cast<std::uint32_t>(rank), id_);
  }

  image::done check_parent() const {
    const auto there = image::read_set(folder_, how_.calls);
    if (!there || !image::needs(*how_.parent, *there)) return {};
    return image::in_file(
        image::done(image::fail(errc::invalid_argument, op,
                                "a set cannot replace what its own parents need: save it elsewhere",
                                image::part::set, 0, how_.parent->path())),
        folder_);
  }

  // What another rank wrote is where this one reads, and is that.
  image::done is_there(int rank, const image::set_member &m) const {
    const std::string path = path_of(rank);
    const auto looked = [&]() -> image::done {
      auto f = image::image_file::open_to_read(*how_.calls, AT_FDCWD, path, false);
      if (!f) return tl::unexpected(f.error());
      const auto block = image::aligned_memory::create(image::block_bytes);
      if (!block) return tl::unexpected(block.error());
      if (const auto ok = f->read(block->bytes(), 0); !ok) return ok;
      const auto head = image::decode_superblock(block->bytes());
      if (!head) return tl::unexpected(head.error());
      if (head->image == m.image && head->root == m.root) return {};
      return image::fail(errc::corrupt, op, "another image than the rank wrote",
                         image::part::set, 0, head->root.text(), m.root.text());
    }();
    if (looked) return {};
    return image::in_file(
        image::done(image::fail(errc::corrupt, op,
                                "rank 0 cannot read what another rank wrote: is the folder shared?",
                                image::part::set, 0, looked.error().message())),
        path);
  }

  const meeting &all_;
  device device_;
  std::string folder_;
  image::write_options how_;
  std::optional<fence> idle_;
  std::unique_ptr<image::set_writer> set_;  // on rank 0
  std::unique_ptr<snapshot::saving> memory_;
  image::image_id id_;
  image::written mine_;
  bool written_ = false;
};

// All of it up to the commit.
outcome<std::vector<image::set_member>> write_all(const meeting &all, rank_of_save &mine,
                                                  std::span<const std::string> tags,
                                                  const save_options &how) {
  const auto opened = all.agree(attempt([&] { return mine.open(); }));
  if (!opened) return tl::unexpected(opened.error());
  if (const auto ok = all.tell(mine.id()); !ok) return tl::unexpected(ok.error());
  const auto prepared = all.agree(attempt([&] { return mine.prepare(tags, how.snapshot.notes); }));
  if (!prepared) return tl::unexpected(prepared.error());
  const auto written = all.agree(attempt([&] { return mine.write(); }));
  if (!written) return tl::unexpected(written.error());
  auto members = all.gather(mine.member());
  if (!members) return members;
  const auto found = all.agree(attempt([&] { return mine.look(*members); }));
  if (!found) return tl::unexpected(found.error());
  return members;
}

}  // namespace

outcome<saved_set> save(MPI_Comm ranks, const device &d, std::span<const std::string> tags,
                        const std::string &folder, const save_options &how) {
  const auto all = meeting::create(ranks);
  if (!all) return tl::unexpected(all.error());
  rank_of_save mine(*all, d, folder, how);
  auto members = write_all(*all, mine, tags, how);
  if (!members) {
    mine.undo();
    // Nobody says that nothing is left before that is so.
    static_cast<void>(all->agree({}));
    return tl::unexpected(members.error());
  }
  const image::done committed = attempt([&] { return mine.commit(*members); });
  mine.close();
  if (const auto ok = all->agree(committed); !ok) return tl::unexpected(ok.error());
  return saved_set{mine.id(), std::move(*members), mine.mine()};
}

}  // namespace stillmap::mpi

#include "stillmap/checkpoint/image/set_writer.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "stillmap/checkpoint/image/internal/atomic_file.h"

namespace stillmap::image {
namespace {

constexpr const char *op = "image::set_writer";

tl::unexpected<failure> pass_on(failure f) {
  return tl::unexpected<failure>(std::move(f));
}

std::string without_end(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

}  // namespace

set_writer::set_writer(std::string folder, std::uint32_t images, const set_options &how)
    : folder_(std::move(folder)),
      images_(images),
      replace_(how.replace),
      calls_(how.calls != nullptr ? how.calls : &file_calls::system()) {}

set_writer::set_writer(set_writer &&o) noexcept
    : folder_(std::move(o.folder_)),
      images_(o.images_),
      replace_(o.replace_),
      calls_(o.calls_),
      directory_(std::exchange(o.directory_, -1)),
      made_folder_(std::exchange(o.made_folder_, false)),
      locked_(o.locked_),
      keep_(o.keep_),
      set_(o.set_),
      old_(std::move(o.old_)) {}

set_writer::~set_writer() {
  if (directory_ >= 0 && !keep_ && !set_.is_zero()) {
    remove_images({set_, std::vector<set_member>(images_)});
  }
  // Before others may write: it may be their folder afterwards.
  if (made_folder_ && !keep_)
    static_cast<void>(calls_->remove_folder_at(AT_FDCWD, folder_.c_str()));
  if (directory_ >= 0) calls_->close(directory_);
}

outcome<set_writer> set_writer::create(const std::string &folder, std::uint32_t images,
                                       const set_options &how) {
  set_writer w(without_end(folder), images, how);
  if (images == 0 || images > most_images_in_set) {
    return in_file<set_writer>(
        fail(errc::invalid_argument, op, "a set of no images, or too many", part::set, 12,
             std::to_string(images), "1 to " + std::to_string(most_images_in_set)),
        folder);
  }
  if (auto ok = w.open(); !ok) return in_file<set_writer>(pass_on(ok.error()), folder);
  if (auto ok = w.look(); !ok) return in_file<set_writer>(pass_on(ok.error()), folder);
  const auto id = make_id();
  if (!id) return in_file<set_writer>(pass_on(id.error()), folder);
  w.set_ = *id;
  return w;
}

done set_writer::open() {
  constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  directory_ = calls_->open_at(AT_FDCWD, folder_.c_str(), flags, 0);
  if (directory_ == -ENOENT) {
    const auto at = target_name::create(*calls_, folder_);
    if (!at) return pass_on(at.error());
    const int made = calls_->make_folder_at(at->directory(), at->name().c_str(), 0700);
    if (made < 0 && made != -EEXIST) return fail_system(-made, op, "cannot make the folder");
    made_folder_ = made >= 0;
    if (const int r = calls_->sync(at->directory()); made_folder_ && r < 0) {
      return fail_system(-r, op, "cannot make sure of the folder");
    }
    directory_ = calls_->open_at(at->directory(), at->name().c_str(), flags, 0);
  }
  if (directory_ < 0) return fail_system(-directory_, op, "cannot open the folder");
  const int r = calls_->lock(directory_);
  locked_ = r >= 0;
  if (r == -EWOULDBLOCK) {
    made_folder_ = false;  // it is the other one's now
    return fail(errc::busy, op, "somebody else is writing a set into this folder", part::set);
  }
  // Network file systems lock no folders. Then nobody clears up after the dead: they may be alive.
  const bool cannot = r == -EOPNOTSUPP || r == -ENOLCK || r == -EINVAL || r == -EBADF;
  if (!locked_ && !cannot) return fail_system(-r, op, "cannot lock the folder");
  return {};
}

done set_writer::look() {
  auto there = read_set(folder_, calls_);
  if (!there && there.error().why.code != std::errc::no_such_file_or_directory) {
    return pass_on(there.error());
  }
  if (there && !replace_) return fail_system(EEXIST, op, "there is a set in this folder already");
  if (there) old_ = std::move(*there);
  if (locked_) remove_left_overs();
  return {};
}

void set_writer::remove_left_overs() const {
  for (const std::string &name : calls_->names_in(directory_)) {
    const std::string_view temporary_of = meant_for(name);
    if (temporary_of == "set" || place_of(temporary_of)) {
      remove_if_dead(*calls_, directory_, name);
      continue;
    }
    const auto place = place_of(name);
    if (!place || (old_ && old_->set == place->set)) continue;
    static_cast<void>(calls_->unlink_at(directory_, name.c_str()));
  }
}

void set_writer::remove_images(const image_set &of) const {
  for (std::uint32_t i = 0; i < of.images.size(); ++i) {
    static_cast<void>(calls_->unlink_at(directory_, name_in_set(i, of.set).c_str()));
  }
}

std::string set_writer::path(std::uint32_t index) const {
  return folder_ + "/" + name_in_set(index, set_);
}

void set_writer::place(std::uint32_t index, write_options &image) const {
  image.set = set_;
  image.set_images = images_;
  image.set_index = index;
  image.replace = false;
}

done set_writer::commit(std::vector<set_member> images) {
  if (images.size() != images_) {
    return in_file(
        done(fail(errc::invalid_argument, op, "another number of images than was said",
                  part::set, 12, std::to_string(images.size()), std::to_string(images_))),
        folder_);
  }
  auto ok = write_set(folder_, {set_, std::move(images)}, replace_, calls_);
  if (!ok) {
    // What could not be undone, or what nobody can tell, is not to be without its images.
    const auto there = read_set(folder_, calls_);
    keep_ =
        there ? there->set == set_ : there.error().why.code != std::errc::no_such_file_or_directory;
    return ok;
  }
  keep_ = true;
  if (old_) remove_images(*old_);
  return {};
}

}  // namespace stillmap::image

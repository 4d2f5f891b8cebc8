// Images and sets on a disk that loses what was not synced.
#include "stillmap/checkpoint/image/set_writer.h"
#include "tests/checkpoint/image/disk_check.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

const std::string disk_path = "/disk/a.smi", disk_set = "/disk/a.stillmap";

bool is_whole(reader &r, const sample &s) {
  std::vector<std::byte> back(s.contents.size());
  return r.manifest() == s.what && r.superblock().contents_bytes == s.contents.size() &&
         r.verify() && r.read(0, back) && back == s.contents;
}

class disks : public image_test {
 protected:
  bool put(checkpoint::simulated_disk &disk, const std::string &at, const sample &s,
           write_options options) {
    options.files = &disk;
    contents_in_memory from(s.contents);
    return write(at, s.what, from, options).has_value();
  }
  bool put_image(checkpoint::simulated_disk &disk, const sample &s) {
    write_options options = small();
    options.replace = true;
    return put(disk, disk_path, s, options);
  }
  bool put_set(checkpoint::simulated_disk &disk, const std::vector<const sample *> &images) {
    auto w = set_writer::create(disk_set, static_cast<std::uint32_t>(images.size()),
                                {.replace = true, .files = &disk});
    if (!w) return false;
    std::vector<set_member> members;
    for (std::uint32_t i = 0; i < images.size(); ++i) {
      write_options options = small();
      options.files = &disk;
      w->set_membership(i, options);
      contents_in_memory from(images[i]->contents);
      const auto one = write(w->path(i), images[i]->what, from, options);
      if (!one) return false;
      members.push_back({one->image, one->file_bytes, one->root});
    }
    return w->commit(std::move(members)).has_value();
  }

  // Nothing is the old state where nothing was there.
  disk_scenario image(const char *what, bool replaces) {
    return {what,
            [this, replaces](checkpoint::simulated_disk &disk) {
              disk.make_directories("/disk");
              if (replaces) {
                ASSERT_TRUE(put_image(disk, before_));
              }
            },
            [this](checkpoint::simulated_disk &disk) { return put_image(disk, after_); },
            [this, replaces](checkpoint::simulated_disk &disk) {
              open_options options;
              options.files = &disk;
              auto r = reader::open(disk_path, options);
              if (!r) {
                const bool missing = r.error().code == std::errc::no_such_file_or_directory;
                return missing && !replaces ? disk_state::old_one : disk_state::mixture;
              }
              return is_whole(*r, after_)                ? disk_state::new_one
                     : replaces && is_whole(*r, before_) ? disk_state::old_one
                                                         : disk_state::mixture;
            }};
  }

  disk_scenario set(const char *what, bool replaces) {
    return {what,
            [this, replaces](checkpoint::simulated_disk &disk) {
              disk.make_directories("/disk");
              if (replaces) {
                ASSERT_TRUE(put_set(disk, {&before_}));
              }
            },
            [this](checkpoint::simulated_disk &disk) {
              return put_set(disk, {&after_, &before_});
            },
            [this, replaces](checkpoint::simulated_disk &disk) {
              open_options options;
              options.files = &disk;
              auto there = open_set(disk_set, options);
              if (!there) {
                const bool missing = there.error().code == std::errc::no_such_file_or_directory;
                return missing && !replaces ? disk_state::old_one : disk_state::mixture;
              }
              if (there->size() == 1) {
                return replaces && is_whole((*there)[0], before_) ? disk_state::old_one
                                                                  : disk_state::mixture;
              }
              const bool whole = there->size() == 2 && is_whole((*there)[0], after_) &&
                                 is_whole((*there)[1], before_);
              return whole ? disk_state::new_one : disk_state::mixture;
            },
            // The set's sync of the directory serves for the names of the images, too.
            2};
  }

  const sample before_ = make_sample({1, 4, 20}), after_ = make_sample({2, 5, 30});
};

TEST_F(disks, an_image_is_old_or_new) {
  check_on_disk(image("a new image", false));
  check_on_disk(image("an image that replaces one", true));
}

// Regression: where the sync of a commit failed, the new images were removed before the old set was
// durable again, so a crash could leave a set without its images.
TEST_F(disks, a_set_is_old_or_new) {
  check_on_disk(set("a new set", false));
  check_on_disk(set("a set that replaces one", true));
}

}  // namespace
}  // namespace stillmap::image

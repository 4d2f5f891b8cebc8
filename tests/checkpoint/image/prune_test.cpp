// Retention: the newest images stay, and all that they build on.
#include "stillmap/checkpoint/image/prune.h"

#include <algorithm>
#include <filesystem>

#include "stillmap/checkpoint/image/set_writer.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

namespace fs = std::filesystem;
using name_list = std::vector<std::string>;

name_list names_of(const std::vector<pruned_image> &list) {
  name_list out;
  for (const pruned_image &i : list) out.push_back(i.name);
  return out;
}

class image_pruning : public image_test {
 protected:
  // The n-th image in time, with these contents, which builds on `parent` if one is given.
  void put_at(const std::string &name, std::uint64_t time, const std::string &parent = "") {
    write_options how = small();
    how.time = time;
    if (!parent.empty()) how.parent = reader::open(path(parent)).value();
    put(name, base_, how);
  }
  void put_set(const std::string &name, std::uint64_t time, const std::string &parent = "") {
    auto set = set_writer::create(path(name), 1);
    ASSERT_TRUE(set);
    write_options how = small();
    how.time = time;
    if (!parent.empty()) how.parent = open_set(path(parent)).value()[0];
    set->set_membership(0, how);
    contents_in_memory from(base_.contents);
    const auto w = write(set->path(0), base_.what, from, how);
    ASSERT_TRUE(w) << w.error().message();
    ASSERT_TRUE(set->commit({{w->image, w->file_bytes, w->root}}));
  }
  pruned prune(std::uint64_t keep, bool dry_run = false) {
    prune_options options;
    options.keep = keep;
    options.dry_run = dry_run;
    auto done = prune_folder(folder(), options);
    EXPECT_TRUE(done) << done.error().message();
    return done ? *done : pruned();
  }

  const sample base_ = make_sample({1, 2, 5});
};

TEST_F(image_pruning, the_newest_stay_and_what_they_build_on) {
  put_at("1-base.smi", 1);
  put_at("2-child.smi", 2, "1-base.smi");
  put_at("3-alone.smi", 3);
  put_at("4-base.smi", 4);
  put_at("5-child.smi", 5, "4-base.smi");
  put_at("6-newest.smi", 6, "5-child.smi");
  const auto before = names_in(folder());
  const pruned dry = prune(1, true);
  EXPECT_EQ(names_of(dry.kept), (name_list{"6-newest.smi"}));
  EXPECT_EQ(names_of(dry.needed), (name_list{"5-child.smi", "4-base.smi"}));
  // The child goes before its parent.
  EXPECT_EQ(names_of(dry.removed), (name_list{"3-alone.smi", "2-child.smi", "1-base.smi"}));
  EXPECT_EQ(names_in(folder()), before);
  std::uint64_t bytes = 0;
  for (const char *name : {"1-base.smi", "2-child.smi", "3-alone.smi"}) {
    bytes += fs::file_size(path(name));
  }
  const pruned done = prune(1);
  EXPECT_EQ(names_of(done.removed), names_of(dry.removed));
  std::uint64_t freed = 0;
  for (const pruned_image &i : done.removed) freed += i.file_bytes;
  EXPECT_EQ(freed, bytes);
  EXPECT_EQ(names_in(folder()), (name_list{"4-base.smi", "5-child.smi", "6-newest.smi"}));
  expect_holds("6-newest.smi", base_);
  EXPECT_TRUE(prune(1).removed.empty());
}

TEST_F(image_pruning, what_is_no_image_or_lies_elsewhere_stays) {
  fs::create_directory(path("other"));
  put_at("other/elsewhere.smi", 1);
  put_at("a.smi", 2);
  put_at("b.smi", 3, "a.smi");
  put_at("linked.smi", 4);
  put_at("old.smi", 5);
  put_at("damaged.smi", 6);
  put_at("new.smi", 7);
  fs::create_symlink("linked.smi", path("latest.smi"));
  auto bytes = bytes_of_file(path("damaged.smi"));
  bytes[100] ^= std::byte{1};
  put_file(path("damaged.smi"), bytes);
  put_file(path("text.smi"), {std::byte{'x'}});
  put_file(path("notes"), {std::byte{'x'}});
  // In another folder, an image that needs one of this folder.
  write_options how = small();
  how.parent = reader::open(path("b.smi")).value();
  put("other/child.smi", base_, how);
  const pruned done = prune(1);
  EXPECT_EQ(names_of(done.kept), (name_list{"new.smi"}));
  EXPECT_EQ(names_of(done.removed), (name_list{"old.smi"}));
  EXPECT_EQ(done.unreadable.size(), 2u);
  EXPECT_EQ(names_in(folder()), (name_list{"a.smi", "b.smi", "damaged.smi", "latest.smi",
                                           "linked.smi", "new.smi", "notes", "other", "text.smi"}));
  open_options opening;
  opening.parents = {folder()};
  expect_holds("other/child.smi", base_, opening);
}

TEST_F(image_pruning, sets_are_kept_or_removed_as_a_whole) {
  put_set("step-1", 1);
  put_set("step-2", 2, "step-1");
  put_set("step-3", 3);
  put_set("step-4", 4);
  put_file(path("step-3/mine"), {std::byte{'x'}});
  {
    // A writer that replaces a set has its folder locked.
    const auto writer = set_writer::create(path("step-4"), 1, {.replace = true});
    ASSERT_TRUE(writer);
    put_set("step-5", 5);
    prune_options options;
    options.keep = 1;
    const auto busy = prune_folder(folder(), options);
    ASSERT_FALSE(busy);
    EXPECT_TRUE(busy.error().is(errc::busy)) << busy.error().message();
    EXPECT_NE(busy.error().message().find("step-4"), std::string::npos) << busy.error().message();
  }
  EXPECT_TRUE(open_set(path("step-4")));
  const pruned done = prune(2);
  EXPECT_EQ(names_of(done.kept), (name_list{"step-5", "step-4"}));
  EXPECT_EQ(names_of(done.removed), (name_list{"step-3", "step-2", "step-1"}));
  // What is not ours stays, and so does its folder.
  EXPECT_EQ(names_in(folder()), (name_list{"step-3", "step-4", "step-5"}));
  EXPECT_EQ(names_in(path("step-3")), (name_list{"mine"}));
  EXPECT_TRUE(open_set(path("step-5")));
  // A set's own folder: its images belong to it.
  put_file(path("step-4/x.smi"),
           bytes_of_file(path("step-4/" + name_in_set(0, read_set(path("step-4"))->set))));
  prune_options options;
  const auto own = prune_folder(path("step-4"), options);
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_TRUE(open_set(path("step-4")));
}

TEST_F(image_pruning, what_cannot_be_done_is_an_error) {
  prune_options none;
  none.keep = 0;
  EXPECT_TRUE(prune_folder(folder(), none).error().is(errc::invalid_argument));
  const auto nowhere = prune_folder(path("nowhere"), {});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, std::errc::no_such_file_or_directory);
  EXPECT_NE(nowhere.error().message().find("nowhere"), std::string::npos);
}

}  // namespace
}  // namespace stillmap::image

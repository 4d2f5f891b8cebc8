// Images that others build on are not replaced: a single image, an ancestor, a set, and what a set's
// writer takes for left-overs.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/folder.h"
#include "stillmap/checkpoint/image/set_writer.h"
#include "tests/checkpoint/image/sample.h"

namespace stillmap::image {
namespace {

namespace fs = std::filesystem;

class image_children : public image_test {
 protected:
  // Writes `name`, of which `parent` is the parent if one is given.
  void put_child(const std::string &name, const std::string &parent, const sample &s,
                 const open_options &opening = {}) {
    write_options how = small();
    how.key = opening.key;
    auto opened = reader::open(path(parent), opening);
    ASSERT_TRUE(opened) << opened.error().message();
    how.parent = std::move(*opened);
    put(name, s, how);
  }
  result<written> replace(const std::string &name, const sample &s) {
    contents_in_memory from(s.contents);
    write_options how = small();
    how.replace = true;
    return write(path(name), s.what, from, how);
  }
  // A set of one image each, in this folder below the test's.
  status save_set(const std::string &folder, const sample &s, const set_options &options = {},
                  const std::vector<std::string> &parent_sets = {}) {
    auto set = set_writer::create(path(folder), 1, options);
    if (!set) return tl::unexpected(set.error());
    write_options how = small();
    if (!parent_sets.empty()) {
      open_options opening;
      for (const std::string &p : parent_sets) opening.parents.push_back(path(p));
      auto parent = open_set(path(parent_sets.back()), opening);
      if (!parent) return tl::unexpected(parent.error());
      how.parent = (*parent)[0];
    }
    set->set_membership(0, how);
    contents_in_memory from(s.contents);
    const auto w = write(set->path(0), s.what, from, how);
    if (!w) return tl::unexpected(w.error());
    return set->commit({{w->image, w->file_bytes, w->root}});
  }

  const sample base_ = make_sample(), second_ = changed(base_, 2), third_ = changed(base_, 3);
};

// Regression: a job that wrote its images to the same names in turn destroyed the parent of others.
TEST_F(image_children, a_parent_of_others_is_not_replaced) {
  put("a.smi", base_);
  put_child("b.smi", "a.smi", second_);
  const auto w = replace("a.smi", third_);
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::busy)) << w.error().message();
  for (const char *says : {"a.smi", "b.smi", "flatten"}) {
    EXPECT_NE(w.error().message().find(says), std::string::npos) << w.error().message();
  }
  expect_holds("a.smi", base_);
  expect_holds("b.smi", second_);
  EXPECT_EQ(names_in(folder()), (std::vector<std::string>{"a.smi", "b.smi"}));
  // Nobody builds on the child.
  ASSERT_TRUE(replace("b.smi", third_));
  ASSERT_TRUE(replace("a.smi", third_));
}

TEST_F(image_children, a_parent_is_replaced_by_force) {
  put("a.smi", base_);
  put_child("b.smi", "a.smi", second_);
  write_options how = small();
  how.replace = how.force = true;
  put("a.smi", third_, how);
  const auto b = reader::open(path("b.smi"));
  ASSERT_FALSE(b);
  EXPECT_TRUE(b.error().detail().where.starts_with("parent")) << b.error().message();
  // Not its own parent, and not what an image that is flattened builds on.
  put("c.smi", base_);
  how.parent = reader::open(path("c.smi")).value();
  contents_in_memory from(second_.contents);
  EXPECT_TRUE(write(path("c.smi"), second_.what, from, how).error().is(errc::invalid_argument));
  expect_holds("c.smi", base_);
}

// Whoever looks for children sees all of them, or refuses: a list that is cut short is none.
TEST_F(image_children, a_folder_that_cannot_be_listed_is_not_taken_for_one_without_children) {
  class unlisted final : public checkpoint::file_system {
    int names_in(int, std::vector<std::string> &) override { return -EACCES; }
  } calls;
  put("a.smi", base_);
  write_options how = small();
  how.replace = true;
  how.files = &calls;
  contents_in_memory from(second_.contents);
  const auto w = write(path("a.smi"), second_.what, from, how);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::permission_denied) << w.error().message();
  expect_holds("a.smi", base_);
  how.force = true;
  ASSERT_TRUE(write(path("a.smi"), second_.what, from, how));
}

// As above: a file that cannot be read at the moment may be a child.
TEST_F(image_children, a_neighbour_that_cannot_be_read_may_be_a_child) {
  class unreadable final : public checkpoint::file_system {
    int open_at(int directory, const char *name, int flags, unsigned mode) override {
      if (std::string_view(name) == "b.smi") return -EMFILE;
      return checkpoint::file_system::open_at(directory, name, flags, mode);
    }
  } calls;
  put("a.smi", base_);
  put_child("b.smi", "a.smi", second_);
  write_options how = small();
  how.replace = true;
  how.files = &calls;
  contents_in_memory from(third_.contents);
  const auto w = write(path("a.smi"), third_.what, from, how);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, std::errc::too_many_files_open) << w.error().message();
  EXPECT_NE(w.error().message().find("b.smi"), std::string::npos) << w.error().message();
  expect_holds("b.smi", second_);
}

// Regression: where other programs made and removed folders beside the image, as in /tmp, it could not be replaced.
TEST_F(image_children, a_folder_that_goes_meanwhile_does_not_block) {
  struct going final : checkpoint::file_system {
    fs::path folder;
    bool when_listed = false;  // or when opened
    int open_at(int directory, const char *name, int flags, unsigned mode) override {
      if (std::string_view(name) != "neighbour") {
        return checkpoint::file_system::open_at(directory, name, flags, mode);
      }
      if (!when_listed) fs::remove(folder);
      const int fd = checkpoint::file_system::open_at(directory, name, flags, mode);
      fs::remove(folder);
      return fd;
    }
  } calls;
  calls.folder = path("neighbour");
  put("a.smi", base_);
  for (const bool when_listed : {false, true}) {
    calls.when_listed = when_listed;
    fs::create_directory(calls.folder);
    write_options how = small();
    how.replace = true;
    how.files = &calls;
    contents_in_memory from(second_.contents);
    const auto w = write(path("a.smi"), second_.what, from, how);
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_FALSE(fs::exists(calls.folder));
  }
}

// They depend on nothing that could be read, so they stand in nobody's way.
TEST_F(image_children, neighbours_that_are_damaged_or_no_images_do_not_block) {
  put("a.smi", base_);
  put_child("b.smi", "a.smi", second_);
  auto bytes = bytes_of_file(path("b.smi"));
  bytes[100] ^= std::byte{1};
  put_file(path("b.smi"), bytes);
  put_file(path("text.smi"), {std::byte{'x'}});
  fs::create_directory(path("folder.smi"));
  fs::create_symlink("nowhere", path("dangling.smi"));
  fs::create_symlink("loop.smi", path("loop.smi"));
  ASSERT_EQ(::mkfifo(path("fifo.smi").c_str(), 0600), 0);
  ASSERT_TRUE(replace("a.smi", third_));
  const auto all = list_folder(folder());
  ASSERT_TRUE(all) << all.error().message();
  ASSERT_EQ(all->images.size(), 1u);
  EXPECT_EQ(all->images[0].name, "a.smi");
  std::vector<std::string> unreadable;
  for (const unreadable_name &u : all->unreadable) unreadable.push_back(u.name);
  std::sort(unreadable.begin(), unreadable.end());
  EXPECT_EQ(unreadable,
            (std::vector<std::string>{"b.smi", "fifo.smi", "folder.smi", "loop.smi", "text.smi"}));
}

// The child has a parent when it gets its name, or it gets none.
TEST_F(image_children, a_child_whose_parent_goes_while_it_is_written_is_not_published) {
  for (const bool replaced : {false, true}) {
    put("a.smi", base_);
    write_options how = small();
    how.parent = reader::open(path("a.smi")).value();
    how.on_progress = [&](const write_progress &) {
      if (replaced) {
        (void)replace("a.smi", third_);
      } else {
        fs::remove(path("a.smi"));
      }
    };
    contents_in_memory from(second_.contents);
    const auto w = write(path("b.smi"), second_.what, from, how);
    ASSERT_FALSE(w);
    EXPECT_EQ(w.error().code, std::errc::no_such_file_or_directory) << w.error().message();
    EXPECT_NE(w.error().message().find("a.smi"), std::string::npos) << w.error().message();
    EXPECT_FALSE(fs::exists(path("b.smi")));
  }
}

// The other way round: the child appears while the parent's replacement is written.
TEST_F(image_children, a_parent_whose_child_appears_while_it_is_replaced_stays) {
  put("a.smi", base_);
  write_options how = small();
  how.replace = true;
  bool first = true;
  how.on_progress = [&](const write_progress &) {
    if (std::exchange(first, false)) put_child("b.smi", "a.smi", second_);
  };
  contents_in_memory from(third_.contents);
  const auto w = write(path("a.smi"), third_.what, from, how);
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::busy)) << w.error().message();
  expect_holds("b.smi", second_);
}

// One image of a set alone is not replaced: the set names it.
TEST_F(image_children, an_image_of_a_set_is_not_replaced_alone) {
  ASSERT_TRUE(save_set("s", base_));
  const std::string name = "s/" + name_in_set(0, read_set(path("s"))->set);
  const auto w = replace(name, second_);
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::busy)) << w.error().message();
  EXPECT_TRUE(open_set(path("s")));
}

// Regression: the parent is in the file's first block, which needs no key.
TEST_F(image_children, a_parent_of_encrypted_images_is_not_replaced) {
  open_options opening;
  opening.key = make_secret_key().value();
  write_options how = small();
  how.key = opening.key;
  put("a.smi", base_, how);
  put_child("b.smi", "a.smi", second_, opening);
  const auto w = replace("a.smi", third_);
  ASSERT_FALSE(w);
  EXPECT_NE(w.error().message().find("b.smi"), std::string::npos) << w.error().message();
  expect_holds("b.smi", second_, opening);
}

// Regression: the input's ancestor was overwritten, so that the input could not be read any more.
TEST_F(image_children, flattening_does_not_replace_an_ancestor_of_its_input) {
  fs::create_directory(path("elsewhere"));
  put("a.smi", base_);
  put_child("b.smi", "a.smi", second_);
  open_options opening;
  opening.parents = {folder()};
  put_child("elsewhere/c.smi", "b.smi", third_);
  const auto c = reader::open(path("elsewhere/c.smi"), opening);
  ASSERT_TRUE(c);
  write_options how = small();
  how.replace = true;
  for (const char *ancestor : {"b.smi", "a.smi"}) {
    const auto w = flatten(*c, path(ancestor), how);
    ASSERT_FALSE(w) << ancestor;
    EXPECT_TRUE(w.error().is(errc::invalid_argument)) << w.error().message();
    EXPECT_NE(w.error().message().find(ancestor), std::string::npos) << w.error().message();
  }
  expect_holds("elsewhere/c.smi", third_, opening);
  // In its own place, an image loses nothing but its parent.
  ASSERT_TRUE(flatten(*c, path("elsewhere/c.smi"), how));
  expect_holds("elsewhere/c.smi", third_);
}

// Regression: the parents of the sets beside it went with the set that was replaced.
TEST_F(image_children, a_set_that_others_build_on_is_not_replaced) {
  ASSERT_TRUE(save_set("step-1", base_));
  ASSERT_TRUE(save_set("step-2", second_, {}, {"step-1"}));
  const auto again = save_set("step-1", third_, {.replace = true});
  ASSERT_FALSE(again);
  EXPECT_TRUE(again.error().is(errc::busy)) << again.error().message();
  for (const char *says : {"step-1", "step-2/device-0."}) {
    EXPECT_NE(again.error().message().find(says), std::string::npos) << again.error().message();
  }
  open_options opening;
  opening.parents = {path("step-1")};
  EXPECT_TRUE(open_set(path("step-2"), opening));
  // A single image that lies beside the set.
  ASSERT_TRUE(save_set("step-2", third_, {.replace = true}));
  open_options in_set;
  const auto parent = open_set(path("step-1"));
  ASSERT_TRUE(parent);
  write_options how = small();
  how.parent = (*parent)[0];
  put("single.smi", second_, how);
  const auto still = save_set("step-1", third_, {.replace = true});
  ASSERT_FALSE(still);
  EXPECT_NE(still.error().message().find("single.smi"), std::string::npos)
      << still.error().message();
  fs::remove(path("single.smi"));
  EXPECT_TRUE(save_set("step-1", third_, {.replace = true}));
  ASSERT_TRUE(save_set("step-2", second_, {.replace = true}, {"step-1"}));
  EXPECT_TRUE(save_set("step-1", base_, {.replace = true, .force = true}));
}

// Regression: a set's writer removed the parents that were copied into its folder, whose names are
// those of another set, as what a dead writer had left.
TEST_F(image_children, a_parent_in_the_folder_of_a_set_is_no_left_over) {
  ASSERT_TRUE(save_set("old", base_));
  ASSERT_TRUE(save_set("new", second_, {}, {"old"}));
  const std::string name = name_in_set(0, read_set(path("old"))->set);
  fs::copy(path("old/" + name), path("new/" + name));
  const auto child = open_set(path("new"));
  ASSERT_TRUE(child) << child.error().message();
  // Beside the set, an image that needs the parent too.
  write_options how = small();
  how.parent = reader::open(path("new/" + name)).value();
  put("new/more.smi", third_, how);
  ASSERT_TRUE(save_set("new", third_, {.replace = true}));
  EXPECT_TRUE(fs::exists(path("new/" + name)));
  expect_holds("new/more.smi", third_);
}

}  // namespace
}  // namespace stillmap::image

// stillmap image inspect, verify, diff and flatten, on small images.
#include <fstream>
#include <random>

#include "stillmap/checkpoint/image/set_writer.h"
#include "stillmap/checkpoint/image/writer.h"
#include "tests/tool/command_test.h"
#include "tools/stillmap/image/image_diff.h"

namespace stillmap::testing {
namespace {

using image::manifest;
using tool::difference;
using tool::differing_range;

constexpr std::uint64_t page = 256 << 10, base = 0x7f0000000000;

struct memory {
  manifest what;
  std::vector<std::byte> contents;
};

// Two tags of two and three pages; the last page is zero.
memory small() {
  memory m;
  m.what.device.name = "a device";
  m.what.device.granularity = page;
  m.what.tags = {"weights", "cache"};
  m.what.blocks = {{base, 4 * page, 1, 0}, {base + 8 * page, 4 * page, 1, 1}};
  m.what.access_lists = {{{on_device(0), access_mode::read_write}}};
  for (std::uint32_t i = 0; i < 5; ++i) {
    m.what.pages.push_back({page, on_device(0), handle_type::none, false});
    m.what.places.push_back({base + (i < 2 ? i : i + 6) * page, i, 0});
  }
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < 4 * page / 8; ++i) {
    const std::uint64_t word = random();
    for (int k = 0; k < 8; ++k) m.contents.push_back(static_cast<std::byte>(word >> (8 * k)));
  }
  m.contents.resize(5 * page);
  return m;
}

class image_commands : public command_test {
 protected:
  std::string put(const char *name, const memory &m, const image::write_options &how = {}) const {
    const std::string path = folder_ / name;
    image::contents_in_memory from(m.contents);
    const auto w = image::write(path, m.what, from, how);
    EXPECT_TRUE(w) << w.error().message();
    return path;
  }
  static image::reader open(const std::string &path) {
    auto r = image::reader::open(path);
    EXPECT_TRUE(r) << r.error().message();
    return *r;
  }
};

// Regression: a terminal obeyed what an image's tags told it.
TEST_F(image_commands, no_control_character_of_an_image_reaches_the_terminal) {
  memory m = small(), other = small();
  for (memory *const each : {&m, &other}) {
    each->what.device.name = "a \x1b]0;device\a";
    each->what.tags[0] = "wei\x1b[31mghts";
    each->what.tags[1] =
        "ca\xc2\x9b"
        "2Jche";
    each->what.notes = {{"no\rte", {}}};
  }
  other.contents[0] ^= std::byte{1};
  other.contents[3 * page] ^= std::byte{1};
  const std::string a = put("a.smi", m), b = put("b.smi", other);
  for (const std::string &line : {"image inspect --tree " + a, "image diff " + a + ' ' + b}) {
    const ran r = run(line);
    for (const char *const control : {"\x1b", "\a", "\r", "\x9b"}) {
      EXPECT_EQ(r.out.find(control), std::string::npos) << line;
      EXPECT_EQ(r.err.find(control), std::string::npos) << line;
    }
    EXPECT_NE(r.out.find("wei?[31mghts"), std::string::npos) << r.out;
    EXPECT_NE(r.out.find("ca?2Jche"), std::string::npos) << r.out;
  }
}

TEST_F(image_commands, inspect_shows_what_is_where) {
  const std::string path = put("a.smi", small());
  const ran table = run("image inspect '" + path + "'");
  EXPECT_EQ(table.status, 0) << table.err;
  for (const char *says : {"a device", "1.25 MiB (1,310,720 bytes) in 5 pages; 1 MiB stored",
                           "4 uncompressed, 1 zero", "weights", "cache"}) {
    EXPECT_NE(table.out.find(says), std::string::npos) << says << "\n" << table.out;
  }
  const ran tree = run("image inspect --tree '" + path + "'");
  EXPECT_NE(tree.out.find("0x7f0000000000 512 KiB, 2 pages from 0, device 0 rw"), std::string::npos)
      << tree.out;
  const ran json = run("image inspect --json '" + path + "'");
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_NE(json.out.find("\"contents_bytes\": 1310720"), std::string::npos) << json.out;
}

TEST_F(image_commands, verify_finds_one_bit) {
  const std::string path = put("a.smi", small());
  const ran good = run("image verify '" + path + "'");
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_NE(good.last_line().find("is intact: 4 stored chunks, 1 MiB"), std::string::npos)
      << good.out;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(page));
  const char was = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(page));
  file.put(static_cast<char>(was ^ 1));
  file.close();
  const ran bad = run("image verify '" + path + "'");
  EXPECT_EQ(bad.status, 6);
  EXPECT_NE(bad.err.find("a.smi"), std::string::npos) << bad.err;
  EXPECT_NE(bad.err.find("corrupt"), std::string::npos) << bad.err;
  for (const std::uintmax_t left :
       {std::filesystem::file_size(path) - 1, std::uintmax_t{1}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(path, left);
    EXPECT_EQ(run("image verify '" + path + "'").status, 6) << left << " bytes of it";
  }
}

TEST_F(image_commands, a_set_is_inspected_and_verified_as_one) {
  const std::string folder = folder_ / "a.stillmap";
  std::string second;
  {
    auto set = image::set_writer::create(folder, 2);
    ASSERT_TRUE(set) << set.error().message();
    std::vector<image::set_member> members;
    for (std::uint32_t i = 0; i < 2; ++i) {
      const memory m = small();
      image::write_options how;
      set->set_membership(i, how);
      image::contents_in_memory from(m.contents);
      const auto w = image::write(set->path(i), m.what, from, how);
      ASSERT_TRUE(w) << w.error().message();
      members.push_back({w->image, w->file_bytes, w->root});
    }
    ASSERT_TRUE(set->commit(std::move(members)));
    second = set->path(1);
  }
  const ran table = run("image inspect '" + folder + "'");
  EXPECT_EQ(table.status, 0) << table.err;
  for (const char *says : {"2 images, id ", "image 1 of 2", "image 2 of 2"}) {
    EXPECT_NE(table.out.find(says), std::string::npos) << says << "\n" << table.out;
  }
  const ran json = run("image inspect --json '" + folder + "'");
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_NE(json.out.find("\"images\": [\n"), std::string::npos) << json.out;
  const ran good = run("image verify '" + folder + "'");
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_NE(good.last_line().find("8 stored chunks, 2 MiB"), std::string::npos) << good.out;
  EXPECT_NE(good.last_line().find("in 2 images"), std::string::npos) << good.out;
  std::fstream file(second, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(page));
  const char was = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(page));
  file.put(static_cast<char>(was ^ 1));
  file.close();
  const ran bad = run("image verify '" + folder + "'");
  EXPECT_EQ(bad.status, 6);
  EXPECT_NE(bad.err.find(second), std::string::npos) << bad.err;
  EXPECT_EQ(run("image verify '" + folder_.string() + "'").status, 3) << "a folder without a set";
}

TEST_F(image_commands, what_is_no_image_is_said_to_be_none) {
  const std::string path = folder_ / "text";
  std::ofstream(path) << "no image";
  for (const char *command : {"image inspect", "image verify"}) {
    const ran r = run(std::string(command) + " '" + path + "'");
    // To verify, a file that is no image is one that is damaged.
    EXPECT_EQ(r.status, command == std::string("image verify") ? 6 : 1);
    EXPECT_NE(r.err.find("text"), std::string::npos) << r.err;
    const ran missing = run(std::string(command) + " /nowhere.smi");
    EXPECT_EQ(missing.status, 3);
    EXPECT_NE(missing.err.find("/nowhere.smi"), std::string::npos) << missing.err;
  }
  const std::string image = put("a.smi", small());
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  expect_usage("image inspect --key '" + path + "' '" + image + "'", "64 hexadecimal digits");
}

TEST_F(image_commands, diff_names_the_pages_that_changed) {
  memory m = small();
  const std::string a = put("a.smi", m);
  const ran same = run("image diff '" + a + "' '" + a + "'");
  EXPECT_EQ(same.status, 0) << same.err;
  m.contents[3 * page + 5] ^= std::byte{1};
  const std::string b = put("b.smi", m);
  const ran changed = run("image diff '" + a + "' '" + b + "'");
  EXPECT_EQ(changed.status, 6);
  EXPECT_EQ(changed.out.rfind("0x7f0000240000      4 KiB  cache  changed\n", 0), 0u) << changed.out;
  EXPECT_EQ(changed.last_line(),
            "stillmap: 1.25 MiB the same, 4 KiB changed, 0 B only in the first, 0 B only in the "
            "second");
  // In a chain digests are comparable, and nothing is read.
  image::write_options child;
  child.parent = open(a);
  const auto in_chain = tool::compare(open(a), open(put("c.smi", m, child)));
  ASSERT_TRUE(in_chain);
  EXPECT_EQ(in_chain->changed, page);
  EXPECT_EQ(in_chain->same, 4 * page);
  EXPECT_EQ(in_chain->bytes_read, 0u);
}

TEST_F(image_commands, differences_do_not_depend_on_how_it_is_stored) {
  memory m = small();
  const image::reader a = open(put("a.smi", m));
  // The same with smaller chunks, one page gone, another new, and one block of bytes different.
  image::write_options finer;
  finer.chunk_bytes = image::min_chunk_bytes;
  finer.compress = image::codec::lz4;
  const auto same = tool::compare(a, open(put("fine.smi", m, finer)));
  ASSERT_TRUE(same);
  EXPECT_TRUE(same->ranges.empty());
  EXPECT_EQ(same->same, 5 * page);
  EXPECT_EQ(same->bytes_read, 4 * page + page);

  m.contents[page + 3 * 4096] ^= std::byte{1};
  m.what.places[4].address += page;
  const auto moved = tool::compare(a, open(put("moved.smi", m, finer)));
  ASSERT_TRUE(moved);
  const std::vector<differing_range> expected = {
      {{device_address(base + page + 3 * 4096), 4096}, difference::contents, "weights"},
      {{device_address(base + 10 * page), page}, difference::only_in_first, "cache"},
      {{device_address(base + 11 * page), page}, difference::only_in_second, "cache"}};
  EXPECT_EQ(moved->ranges, expected);
  EXPECT_EQ(moved->changed, 4096u);
}

TEST_F(image_commands, flatten_needs_no_parent) {
  memory m = small();
  const std::string a = put("a.smi", m);
  m.contents[9] ^= std::byte{1};
  image::write_options how;
  how.parent = open(a);
  const std::string b = put("b.smi", m, how);
  const std::string flat = folder_ / "flat.smi";
  const ran r = run("image flatten --compress zstd '" + b + "' '" + flat + "'");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(run("image flatten '" + b + "' '" + flat + "'").status, 5) << "not without --replace";
  std::filesystem::remove(a);
  EXPECT_EQ(run("image verify '" + b + "'").status, 3) << "its parent is gone";
  const ran whole = run("image verify '" + flat + "'");
  EXPECT_EQ(whole.status, 0) << whole.err;
  std::vector<std::byte> read(m.contents.size());
  ASSERT_TRUE(open(flat).read(0, read));
  EXPECT_EQ(read, m.contents);
}

// Regression: flatten --replace overwrote an ancestor of its input, and with it the parent of others.
TEST_F(image_commands, a_parent_is_replaced_by_force_only) {
  memory m = small();
  const std::string a = put("a.smi", m);
  image::write_options how;
  how.parent = open(a);
  m.contents[9] ^= std::byte{1};
  const std::string b = put("b.smi", m, how);
  how.parent = open(b);
  const std::string c = put("c.smi", m, how);
  expect_failure("image flatten --replace '" + c + "' '" + a + "'", 2, "a.smi");
  expect_failure("image flatten --replace --force '" + c + "' '" + a + "'", 2, "a.smi");
  expect_failure("image flatten --replace '" + b + "' '" + b + "'", 4, "c.smi");
  const ran children = run("image list --children '" + a + "'");
  EXPECT_EQ(children.status, 0) << children.err;
  for (const char *says : {"b.smi", "c.smi", "2 images"}) {
    EXPECT_NE(children.out.find(says), std::string::npos) << children.out;
  }
  const ran json = run("image list --json '" + folder_.string() + "'");
  EXPECT_EQ(json.status, 0) << json.err;
  for (const char *says : {"\"name\": \"c.smi\"", "\"parent\": \"b.smi\"", "\"parent\": null"}) {
    EXPECT_NE(json.out.find(says), std::string::npos) << json.out;
  }
  // Children first, in their places: then nothing depends on the parents.
  EXPECT_EQ(run("image flatten --replace '" + c + "' '" + c + "'").status, 0);
  EXPECT_EQ(run("image flatten --replace '" + b + "' '" + b + "'").status, 0);
  EXPECT_EQ(run("image flatten --replace '" + c + "' '" + a + "'").status, 0);
  EXPECT_EQ(run("image verify '" + b + "'").status, 0);
  EXPECT_EQ(run("image list --children '" + a + "' '" + folder_.string() + "'").last_line(),
            "0 images, 0 B");
}

TEST_F(image_commands, prune_keeps_what_is_needed) {
  memory m = small();
  image::write_options how;
  how.time = 1;
  put("old.smi", m, how);
  how.time = 2;
  const std::string parent = put("base.smi", m, how);
  how.time = 3;
  how.parent = open(parent);
  put("new.smi", m, how);
  const std::string line = "image prune '" + folder_.string() + "' --keep 1";
  const ran dry = run(line + " --dry-run");
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_NE(dry.last_line().find("1 would be removed"), std::string::npos) << dry.out;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "old.smi"));
  const ran done = run(line + " --json");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.out.find("\"needed\": [\n    {\n      \"name\": \"base.smi\""), std::string::npos)
      << done.out;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "old.smi"));
  EXPECT_EQ(run("image verify '" + (folder_ / "new.smi").string() + "'").status, 0);
  expect_usage("image prune '" + folder_.string() + "' --keep 0", "--keep");
  expect_usage("image prune '" + folder_.string() + "'", "--keep");
  EXPECT_EQ(run("image prune --keep 1 '" + folder_.string() + "/none'").status, 3);
}

}  // namespace
}  // namespace stillmap::testing

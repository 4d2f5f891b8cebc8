// Names that a task or an image chose: what they may do to a terminal and to a JSON document.
#include <iconv.h>

#include "tests/tool/task_test.h"

namespace stillmap::testing {
namespace {

// As the C library decodes it.
bool is_utf8(std::string text) {
  const iconv_t decoder = ::iconv_open("UTF-32LE", "UTF-8");
  std::string out(4 * text.size() + 16, '\0');
  char *from = text.data(), *to = out.data();
  std::size_t left = text.size(), room = out.size();
  const bool whole = ::iconv(decoder, &from, &left, &to, &room) != static_cast<std::size_t>(-1);
  ::iconv_close(decoder);
  return whole && left == 0;
}

class foreign_text : public task_test {
 protected:
  void SetUp() override {
    task_test::SetUp();
    if (IsSkipped()) return;
    where_ += ".control";
    control::server_options options;
    options.task.quiesce = [this](auto, auto) -> status {
      if (stops_) return {};
      return tl::unexpected(
          make_error(errc::busy, "it does not stop").value().about("right\xe2\x80\xaeto left"));
    };
    start_task(std::move(options));
    for (const char *tag : {
             "invalid\xff\xc0\x80\xed\xa0\x80 in UTF-8\xe2\x82",
             "right\xe2\x80\xaeto left",    // U+202E
             "isolate\xe2\x81\xa6 d",       // U+2066
             "escape\x1b[31m",              // ESC
             "control\xc2\x9b 31m",         // U+009B
             "line\xe2\x80\xa8 separator",  // U+2028
             "gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x9a\x80",
         }) {
      add_addresses(tag);
    }
  }
  std::string image() const { return "'" + file("a.smi") + "'"; }
  static void expect_harmless(const std::string &text, const std::string &line) {
    EXPECT_TRUE(is_utf8(text)) << line;
    for (const char *const bad :
         {"\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x80\xa8", "\x1b", "\xc2\x9b"}) {
      EXPECT_EQ(text.find(bad), std::string::npos) << line << ":\n" << text;
    }
  }

  bool stops_ = true;
};

// Regression: a tag with invalid UTF-8 made --json invalid, and U+202E reached the terminal.
TEST_F(foreign_text, what_is_printed_is_utf8_and_controls_no_terminal) {
  const std::string tags = "task snapshot " + where_ + " --all -o ";
  const std::string lines[] = {"task status " + where_,
                               "task status --json " + where_,
                               "task list",
                               "task list --json",
                               tags + image(),
                               "image inspect --tree " + image(),
                               "image inspect --json " + image(),
                               "image restore --relocate " + image(),
                               "image restore --relocate --json " + image()};
  for (const std::string &line : lines) {
    const ran r = run(line);
    EXPECT_EQ(r.status, 0) << line << "\n" << r.err;
    expect_harmless(r.out, line);
    expect_harmless(r.err, line);
    if (line.find("task status") == 0 || line.find("inspect") != std::string::npos) {
      EXPECT_NE(r.out.find("gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x9a\x80"), std::string::npos)
          << line << "\n"
          << r.out;
    }
  }
  stops_ = false;
  for (const std::string &line : {tags + "x.smi", tags + "x.smi --json",
                                  "task suspend " + where_ + " 'no\xff\xe2\x80\xaesuch tag'"}) {
    const ran r = run(line);
    EXPECT_NE(r.status, 0) << line;
    expect_harmless(r.out + r.err, line);
  }
}

// Regression: root was told that this user may not control the process.
TEST_F(foreign_text, a_receiver_that_waits_says_so) {
  const std::string at = control::testing::new_place();
  start_process("receiver", "task handoff receive '" + at + "'");
  const ran asked = run("task status --timeout 60 '" + at + ".control'");
  EXPECT_EQ(asked.status, 4) << asked.err;
  EXPECT_NE(asked.err.find("has not arrived"), std::string::npos) << asked.err;
  EXPECT_EQ(asked.err.find("may not"), std::string::npos) << asked.err;
}

}  // namespace
}  // namespace stillmap::testing

// Text that others chose: decoded, repaired, and made fit for a terminal.
#include "stillmap/vmm/base/utf8.h"

#include <gtest/gtest.h>

namespace stillmap {
namespace {

TEST(utf8, every_character_is_decoded_as_it_was_encoded) {
  for (char32_t point = 0; point <= 0x10ffff; ++point) {
    if (point == 0xd800) point = 0xe000;
    std::string text;
    utf8::append(text, point);
    text += 'x';
    const utf8::character c = utf8::first_of(text);
    ASSERT_EQ(c.point, point);
    ASSERT_EQ(c.bytes, text.size() - 1) << static_cast<unsigned>(point);
  }
}

TEST(utf8, what_is_no_character_is_replaced_byte_by_byte) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(valid_utf8("gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x9a\x80"),
            "gr\xc3\xbc\xc3\x9f \xe4\xb8\xad \xf0\x9f\x9a\x80");
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a" + r + "b");
  EXPECT_EQ(valid_utf8("\x80"), r);                          // no lead byte
  EXPECT_EQ(valid_utf8("\xc0\xaf"), r + r);                  // too long a form of '/'
  EXPECT_EQ(valid_utf8("\xe0\x9f\xbf"), r + r + r);          // of U+07FF
  EXPECT_EQ(valid_utf8("\xf0\x8f\xbf\xbf"), r + r + r + r);  // of U+FFFF
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(valid_utf8("\xe2\x82"), r + r);                  // cut short
  EXPECT_EQ(valid_utf8("\xe2(\xa1"), r + "(" + r);
  EXPECT_EQ(valid_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(utf8, nothing_printable_controls_a_terminal) {
  EXPECT_EQ(printable("a\x1b[31m\n\tb\x7f"), "a?[31m??b?");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "?2J");  // U+009B
  EXPECT_EQ(printable("gpj\xe2\x80\xae"
                      "cod"),
            "gpj?cod");                                             // U+202E
  EXPECT_EQ(printable("\xe2\x81\xa6x\xe2\x81\xa9"), "?x?");         // U+2066, U+2069
  EXPECT_EQ(printable("\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c"), "???");  // U+200E, U+200F, U+061C
  EXPECT_EQ(printable("\xe2\x80\xa8\xe2\x80\xa9"), "??");           // U+2028, U+2029
  EXPECT_EQ(printable("\xd7\xa9\xc3\xa9\xc2\xa0"), "\xd7\xa9\xc3\xa9\xc2\xa0");
  EXPECT_EQ(printable("\xff"), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace stillmap

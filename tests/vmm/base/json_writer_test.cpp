// JSON: one form, whatever the texts and numbers are.
#include "stillmap/vmm/base/json_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace stillmap {
namespace {

// A value alone, as its document has it.
template <class T>
std::string json_value(const T &value) {
  json_writer json;
  return json.field({}, value).text();
}

TEST(JsonWriter, WritesALineForEachMember) {
  json_writer json;
  json.begin_object().field("text", "a \"b\" \\ \n").field("yes", true).field("n", 5);
  json.begin_array("list").begin_object().end().begin_object().nothing("none").end().end();
  json.field("half", 0.5).field("not a number", 0.0 / 0.0);
  json.begin_object("empty").end().end();
  EXPECT_EQ(json.text(),
            "{\n  \"text\": \"a \\\"b\\\" \\\\ \\u000a\",\n  \"yes\": true,\n  \"n\": 5,\n"
            "  \"list\": [\n    {},\n    {\n      \"none\": null\n    }\n  ],\n"
            "  \"half\": 0.5,\n  \"not a number\": null,\n  \"empty\": {}\n}\n");
}

TEST(JsonWriter, WritesRecordsOnOneLine) {
  json_writer json;
  json.begin_object().begin_array("rows");
  json.begin_record().field("a", 1).begin_array("b").element(2).element("c").end().end();
  json.begin_record().end().end().field("after", 3).end();
  EXPECT_EQ(
      json.text(),
      "{\n  \"rows\": [\n    {\"a\": 1, \"b\": [2, \"c\"]},\n    {}\n  ],\n  \"after\": 3\n}\n");
  json_writer alone;
  EXPECT_EQ(alone.begin_record().field("a", 1).end().text(), "{\"a\": 1}");
}

TEST(JsonWriter, NamesMayBeNoUtf8AndMayControlATerminal) {
  EXPECT_EQ(json_value("\xffx\x7f\xe2\x80\xae"), "\"\xef\xbf\xbdx\\u007f\\u202e\"");
  EXPECT_EQ(json_value(std::string("\0\x1f\xc2\x9f", 4)), "\"\\u0000\\u001f\\u009f\"");
  json_writer json;
  EXPECT_EQ(json.begin_record().field("\"\n", 1).end().text(), "{\"\\\"\\u000a\": 1}");
}

TEST(JsonWriter, WholeNumbersAreExactAndFractionsHaveNineDigits) {
  EXPECT_EQ(json_value(UINT64_MAX), "18446744073709551615");
  EXPECT_EQ(json_value(INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(json_value(0.0), "0");
  EXPECT_EQ(json_value(1099511627777.0), "1099511627777");
  EXPECT_EQ(json_value(-3.0), "-3");
  EXPECT_EQ(json_value(1.0 / 3), "0.333333333");
  EXPECT_EQ(json_value(97.5), "97.5");
  EXPECT_EQ(json_value(1e300), "1e+300");
  EXPECT_EQ(json_value(1.5e-9), "1.5e-09");
  for (const double none :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(json_value(none), "null");
  }
  EXPECT_EQ(json_value(std::optional<int>()), "null");
  EXPECT_EQ(json_value(std::optional<int>(7)), "7");
}

}  // namespace
}  // namespace stillmap

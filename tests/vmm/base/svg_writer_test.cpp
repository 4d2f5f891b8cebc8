// SVG: escaped texts, and coordinates with a point.
#include "stillmap/vmm/base/svg_writer.h"

#include <gtest/gtest.h>

#include <string>

namespace stillmap {
namespace {

TEST(SvgWriter, TextsAreEscapedAndValid) {
  EXPECT_EQ(xml_escaped("<\xff\x01\xef\xbf\xbf>"), "&lt;\xef\xbf\xbd  &gt;");
  EXPECT_EQ(xml_escaped("\"a\" & b\n"), "&quot;a&quot; &amp; b\n");
  svg_writer svg;
  svg.write(1, 2, "<text>", "soft", "end");
  svg.write_heading(1, 2, "<name>", "<facts>");
  svg.begin_group("<group>", "p1");
  svg.box(0.125, 0.25, 10, 20.04);
  svg.end_group();
  EXPECT_EQ(svg.document("<title>", 99.6, 10, "<head/>\n").substr(0, 33),
            "<svg xmlns=\"http://www.w3.org/200");
  const std::string document = svg.document("<title>", 99.6, 10, "<head/>\n");
  for (const char *part :
       {"viewBox=\"0 0 100 10\" width=\"100\" height=\"10\" role=\"img\" "
        "aria-label=\"&lt;title&gt;\">\n<style>",
        "</style>\n<head/>\n<rect width=\"100\" height=\"10\" class=\"page\"/>\n<text ",
        "<text x=\"1.0\" y=\"2.0\" class=\"soft\" text-anchor=\"end\">&lt;text&gt;</text>\n",
        "<tspan class=\"name\">&lt;name&gt;</tspan><tspan class=\"soft\" dx=\"12\">&lt;facts&gt;",
        "<g class=\"p1\"><title>&lt;group&gt;</title>\n"
        "<rect x=\"0.12\" y=\"0.2\" width=\"10.00\" height=\"20.0\"/>\n</g>\n</svg>\n"}) {
    EXPECT_NE(document.find(part), std::string::npos) << part << "\n" << document;
  }
}

TEST(SvgWriter, AnOutlineHasItsCommandsInOrder) {
  svg_path outline(1);
  outline.add("M", {1, 2.25}).add(" H", {3}).add("Z");
  EXPECT_EQ(outline.commands(), "M1.0 2.2 H3.0Z");
  svg_writer svg;
  svg.path(outline, "curve");
  svg.line(0, 1, 2, 3, "grid");
  const std::string document = svg.document("", 1, 1, "");
  EXPECT_NE(
      document.find("<path class=\"curve\" d=\"M1.0 2.2 H3.0Z\"/>\n<line x1=\"0.0\" y1=\"1.0\" "
                    "x2=\"2.0\" y2=\"3.0\" class=\"grid\"/>\n</svg>\n"),
      std::string::npos)
      << document;
}

}  // namespace
}  // namespace stillmap

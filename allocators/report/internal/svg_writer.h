// The parts of an SVG document that pictures of memory share. Internal.
#pragma once

#include <string>
#include <string_view>

namespace stillmap {

class svg_writer {
 public:
  // `y` is that of the baseline.
  void write(double x, double y, std::string_view plain, const char *css = "",
             const char *anchor = "start");
  void box(double x, double y, double width, double height, const char *css);
  // A group of boxes that show `title` where the pointer is on them.
  void begin_group(std::string_view title);
  void end_group() { body += "</g>\n"; }
  // The whole document. `head`: styles and definitions besides those of text and page.
  std::string document(std::string_view title, double width, double height, const char *head) const;

  std::string body;
};

}  // namespace stillmap

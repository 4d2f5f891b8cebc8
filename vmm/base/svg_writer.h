// The one writer of SVG. Internal. Allocates host memory: may throw std::bad_alloc.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace stillmap {

// The text as XML, for elements and attributes: escaped, valid UTF-8 with U+FFFD for each byte that
// belongs to no character, and a space for each character that XML does not allow.
std::string xml_escaped(std::string_view plain);

// The outline of a shape: SVG's commands, each with its coordinates.
class svg_path {
 public:
  explicit svg_path(int decimals) : decimals_(decimals) {}
  svg_path &add(std::string_view command, std::initializer_list<double> coordinates = {});
  const std::string &commands() const { return commands_; }

 private:
  int decimals_;
  std::string commands_;
};

// The parts of a document that pictures of memory share. `css` names classes.
class svg_writer {
 public:
  // `y` is that of the baseline.
  void write(double x, double y, std::string_view plain, std::string_view css = "",
             std::string_view anchor = "start");
  void write_heading(double x, double y, std::string_view name, std::string_view facts);
  // Without `css` it looks as its group.
  void box(double x, double y, double width, double height, std::string_view css = {});
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void path(const svg_path &outline, std::string_view css);
  // A group of shapes that show `title` where the pointer is on them.
  void begin_group(std::string_view title, std::string_view css = {});
  void end_group() { body_ += "</g>\n"; }
  // The whole document. `head`: styles and definitions besides those of text and page.
  std::string document(std::string_view title, double width, double height,
                       std::string_view head) const;

 private:
  std::string body_;
};

}  // namespace stillmap

#include "stillmap/allocators/report/internal/svg_writer.h"

#include "stillmap/allocators/report/internal/text_out.h"

namespace stillmap {

using text::print;
using text::xml;

void svg_writer::write(double x, double y, std::string_view plain, const char *css,
                       const char *anchor) {
  print(body, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, css, anchor);
  body += xml(plain) + "</text>\n";
}

void svg_writer::box(double x, double y, double width, double height, const char *css) {
  print(body, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"%s\"/>\n", x, y,
        width, height, css);
}

void svg_writer::begin_group(std::string_view title) {
  body += "<g><title>" + xml(title) + "</title>\n";
}

std::string svg_writer::document(std::string_view title, double width, double height,
                                 const char *head) const {
  std::string out;
  print(out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" role=\"img\" aria-label=\"",
        width, height, width, height);
  out += xml(title) + "\">\n" + head;
  print(out, "<rect width=\"%.0f\" height=\"%.0f\" class=\"page\"/>\n", width, height);
  return out + body + "</svg>\n";
}

}  // namespace stillmap

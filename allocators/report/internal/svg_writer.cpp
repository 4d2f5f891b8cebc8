#include "stillmap/allocators/report/internal/svg_writer.h"

#include "stillmap/allocators/report/internal/text_out.h"

namespace stillmap {

using text::print;
using text::xml;

namespace {

constexpr const char *common_style = R"(<style>
  text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 13px; fill: #1f2328; }
  .title { font-size: 22px; font-weight: 600; }
  .name { font-size: 17px; font-weight: 600; }
  .soft { fill: #59636e; }
  .bad { fill: #c21f2b; font-weight: 600; }
  .page { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .soft { fill: #9198a1; }
    .bad { fill: #ff7b72; }
    .page { fill: #0d1117; }
  }
</style>
)";

}  // namespace

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
  out += xml(title) + "\">\n" + common_style + head;
  print(out, "<rect width=\"%.0f\" height=\"%.0f\" class=\"page\"/>\n", width, height);
  return out + body + "</svg>\n";
}

}  // namespace stillmap

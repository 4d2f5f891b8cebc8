#include "stillmap/vmm/base/svg_writer.h"

#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/utf8.h"

namespace stillmap {
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

// ` name="value"`. The value is escaped already.
void add_attribute(std::string &to, std::string_view name, std::string_view value) {
  to.append(" ").append(name).append("=\"").append(value).append("\"");
}
void add_attribute(std::string &to, std::string_view name, double value, int decimals) {
  add_attribute(to, name, format_fixed(value, decimals));
}
void add_class(std::string &to, std::string_view css) {
  if (!css.empty()) add_attribute(to, "class", css);
}

}  // namespace

std::string xml_escaped(std::string_view plain) {
  std::string out;
  for (utf8::character c; !plain.empty(); plain.remove_prefix(c.bytes)) {
    c = utf8::first_of(plain);
    if (c.point == '&') {
      out += "&amp;";
    } else if (c.point == '<') {
      out += "&lt;";
    } else if (c.point == '>') {
      out += "&gt;";
    } else if (c.point == '"') {
      out += "&quot;";
    } else {
      // XML does not allow these.
      const bool allowed =
          (c.point >= 0x20 || c.point == '\n') && c.point != 0xfffe && c.point != 0xffff;
      utf8::append(out, allowed ? c.point : U' ');
    }
  }
  return out;
}

svg_path &svg_path::add(std::string_view command, std::initializer_list<double> coordinates) {
  commands_ += command;
  bool first = true;
  for (const double coordinate : coordinates) {
    if (!first) commands_ += ' ';
    first = false;
    commands_ += format_fixed(coordinate, decimals_);
  }
  return *this;
}

void svg_writer::write(double x, double y, std::string_view plain, std::string_view css,
                       std::string_view anchor) {
  body_ += "<text";
  add_attribute(body_, "x", x, 1);
  add_attribute(body_, "y", y, 1);
  add_attribute(body_, "class", css);
  add_attribute(body_, "text-anchor", anchor);
  body_ += '>' + xml_escaped(plain) + "</text>\n";
}

void svg_writer::write_heading(double x, double y, std::string_view name, std::string_view facts) {
  body_ += "<text";
  add_attribute(body_, "x", x, 1);
  add_attribute(body_, "y", y, 1);
  body_ += "><tspan class=\"name\">" + xml_escaped(name) +
           "</tspan><tspan class=\"soft\" dx=\"12\">" + xml_escaped(facts) + "</tspan></text>\n";
}

void svg_writer::box(double x, double y, double width, double height, std::string_view css) {
  body_ += "<rect";
  add_attribute(body_, "x", x, 2);
  add_attribute(body_, "y", y, 1);
  add_attribute(body_, "width", width, 2);
  add_attribute(body_, "height", height, 1);
  add_class(body_, css);
  body_ += "/>\n";
}

void svg_writer::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ += "<line";
  add_attribute(body_, "x1", x1, 1);
  add_attribute(body_, "y1", y1, 1);
  add_attribute(body_, "x2", x2, 1);
  add_attribute(body_, "y2", y2, 1);
  add_class(body_, css);
  body_ += "/>\n";
}

void svg_writer::path(const svg_path &outline, std::string_view css) {
  body_ += "<path";
  add_class(body_, css);
  add_attribute(body_, "d", outline.commands());
  body_ += "/>\n";
}

void svg_writer::begin_group(std::string_view title, std::string_view css) {
  body_ += "<g";
  add_class(body_, css);
  body_ += "><title>" + xml_escaped(title) + "</title>\n";
}

std::string svg_writer::document(std::string_view title, double width, double height,
                                 std::string_view head) const {
  const std::string wide = format_fixed(width, 0), high = format_fixed(height, 0);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\"";
  add_attribute(out, "viewBox", "0 0 " + wide + ' ' + high);
  add_attribute(out, "width", wide);
  add_attribute(out, "height", high);
  add_attribute(out, "role", "img");
  add_attribute(out, "aria-label", xml_escaped(title));
  out.append(">\n").append(common_style).append(head);
  out += "<rect width=\"" + wide + "\" height=\"" + high + "\" class=\"page\"/>\n";
  return out + body_ + "</svg>\n";
}

}  // namespace stillmap

// hostcuda_printf: printf of device code, whose arguments lie in a buffer.
#include <hostcuda/hostcuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace hostcuda {
namespace {

class argument_buffer {
 public:
  explicit argument_buffer(const void *begin) : at_(reinterpret_cast<std::uintptr_t>(begin)) {}

  template <class T>
  T next() {
    at_ = (at_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T out;
    std::memcpy(&out, reinterpret_cast<const void *>(at_), sizeof out);
    at_ += sizeof out;
    return out;
  }

 private:
  std::uintptr_t at_;
};

// `specification` is one conversion of printf's, complete.
template <class T>
std::string formatted(const std::string &specification, T value) {
  const int length = std::snprintf(nullptr, 0, specification.c_str(), value);
  if (length <= 0) return {};
  std::string out(static_cast<std::size_t>(length) + 1, '\0');
  std::snprintf(out.data(), out.size(), specification.c_str(), value);
  out.pop_back();
  return out;
}

int print(std::string_view format, argument_buffer arguments) {
  constexpr std::string_view flags = "-+ #0123456789.";
  std::string out;
  int printed = 0;
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t percent = std::min(format.find('%', at), format.size());
    out += format.substr(at, percent - at);
    at = percent;
    if (at == format.size()) break;
    const std::size_t flags_end = std::min(format.find_first_not_of(flags, at + 1), format.size());
    const std::string head(format.substr(at, flags_end - at));
    const std::size_t end = std::min(format.find_first_not_of("lh", flags_end), format.size());
    const bool is_long = format.substr(flags_end, end - flags_end).find('l') != format.npos;
    const char kind = end < format.size() ? format[end] : '\0';
    const std::string_view whole = format.substr(at, end + 1 - at);
    at = std::min(end + 1, format.size());
    ++printed;
    if (kind != '\0' && std::strchr("diouxX", kind) != nullptr) {
      out += is_long ? formatted(head + "ll" + kind, arguments.next<long long>())
                     : formatted(head + kind, arguments.next<int>());
    } else if (kind == 'c') {
      out += formatted(head + kind, arguments.next<int>());
    } else if (kind != '\0' && std::strchr("aAeEfFgG", kind) != nullptr) {
      out += formatted(head + kind, arguments.next<double>());
    } else if (kind == 's') {
      out += formatted(head + kind, arguments.next<const char *>());
    } else if (kind == 'p') {
      out += formatted(head + kind, arguments.next<const void *>());
    } else {
      out += whole == "%%" ? std::string_view("%") : whole;
      --printed;
    }
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
  return printed;
}

}  // namespace
}  // namespace hostcuda

extern "C" __attribute__((visibility("default"))) int hostcuda_printf(const char *format,
                                                                      const void *arguments) {
  return hostcuda::print(format, hostcuda::argument_buffer(arguments));
}

#include "bench/replay/pickle_reader.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>

#include "bench/replay/internal/failure.h"

namespace stillmap::replay {

const pickle_value *pickle_value::find(std::string_view key) const {
  if (kind != pickle_kind::dict) return nullptr;
  // As in Python, the last value of a key counts.
  for (std::size_t i = items.size(); i >= 2; i -= 2) {
    if (items[i - 2]->kind == pickle_kind::text && items[i - 2]->text == key) return items[i - 1];
  }
  return nullptr;
}

class pickle_machine {
 public:
  pickle_machine(std::string_view bytes, const pickle_options &options)
      : bytes_(bytes), options_(options) {}

  result<pickle> run() {
    while (trouble_.empty()) {
      op_at_ = at_;
      const std::string_view op = take(1);
      if (trouble_.empty() && ++out_.operations_ > options_.max_operations) {
        wrong(fmt::format("over {} operations, the most that are read", options_.max_operations));
      }
      if (!trouble_.empty()) break;
      if (op[0] == '.') {
        if (pickle_value *root = pop(); root != nullptr) out_.root_ = root;
        break;
      }
      perform(static_cast<unsigned char>(op[0]));
    }
    if (!trouble_.empty()) {
      return fail(errc::invalid_argument, fmt::format("byte {}: {}", op_at_, trouble_));
    }
    return std::move(out_);
  }

 private:
  void wrong(std::string what) {
    if (trouble_.empty()) trouble_ = std::move(what);
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      wrong("the file is truncated");
      return {};
    }
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::uint64_t number(std::uint64_t count) {  // little-endian
    const std::string_view b = take(count);
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
      n |= std::uint64_t{static_cast<unsigned char>(b[i])} << (8 * i);
    }
    return n;
  }

  // Protocol 0: up to the end of the line.
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      wrong("the file is truncated");
      return {};
    }
    const std::string_view text = take(end - at_);
    take(1);
    return text;
  }

  pickle_value *push(pickle_kind kind) {
    if (out_.values_.size() >= options_.max_values) {
      wrong(fmt::format("over {} values, the most that are read", options_.max_values));
    }
    pickle_value *const v = &out_.values_.emplace_back();
    v->kind = kind;
    stack_.push_back(v);
    return v;
  }
  void push_integer(std::int64_t n, pickle_kind kind = pickle_kind::integer) {
    push(kind)->integer = n;
  }
  void push_text(std::uint64_t length) { push(pickle_kind::text)->text = take(length); }
  void push_long(std::uint64_t length) {  // little-endian, two's complement
    const std::string_view bytes = take(length);
    if (!trouble_.empty()) return;
    const bool negative = !bytes.empty() && (bytes.back() & '\x80') != 0;
    auto n = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      if (i >= 8 && bytes[i] != (negative ? '\xff' : '\0')) return void(push(pickle_kind::large));
      if (i < 8) n = n << 8 | static_cast<unsigned char>(bytes[i]);
    }
    const auto value = static_cast<std::int64_t>(n);
    if (bytes.size() > 8 && (value < 0) != negative) return void(push(pickle_kind::large));
    push_integer(value);
  }
  void push_decimal(std::string_view digits) {
    std::int64_t n = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (digits.empty() || end != digits.data() + digits.size() ||
        code == std::errc::invalid_argument)
      return wrong("what is read as a number is none");
    if (code == std::errc::result_out_of_range) return void(push(pickle_kind::large));
    push_integer(n);
  }
  void push_real(std::string_view digits) {
    double n = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (digits.empty() || end != digits.data() + digits.size() ||
        code == std::errc::invalid_argument)
      return wrong("what is read as a number is none");
    push(pickle_kind::real)->real = n;
  }
  void push_quoted(std::string_view text) {
    if (text.size() < 2 || text.front() != text.back()) return wrong("a text without its quotes");
    push(pickle_kind::text)->text = text.substr(1, text.size() - 2);
  }
  // The name of something remembered, in protocol 0.
  std::uint64_t decimal_name() {
    const std::string_view digits = line();
    std::uint64_t n = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (code != std::errc() || end != digits.data() + digits.size())
      wrong("what is read as a number is none");
    return n;
  }
  pickle_value *pop() {
    if (stack_.empty() || stack_.back()->kind == pickle_kind::mark) {
      wrong("nothing is there to be used");
      return nullptr;
    }
    pickle_value *const v = stack_.back();
    stack_.pop_back();
    return v;
  }
  pickle_value *top(pickle_kind kind) {
    if (stack_.empty() || stack_.back()->kind != kind) {
      wrong("what is filled is no list or dictionary");
      return nullptr;
    }
    return stack_.back();
  }
  std::vector<const pickle_value *> pop_to_mark() {
    std::size_t i = stack_.size();
    while (i > 0 && stack_[i - 1]->kind != pickle_kind::mark) --i;
    if (i == 0) {
      wrong("a mark is missing");
      return {};
    }
    std::vector<const pickle_value *> items(stack_.begin() + static_cast<std::ptrdiff_t>(i),
                                            stack_.end());
    stack_.resize(i - 1);
    return items;
  }
  void tuple(std::size_t count) {
    std::vector<const pickle_value *> items(count);
    for (std::size_t i = count; i > 0; --i) items[i - 1] = pop();
    if (trouble_.empty()) push(pickle_kind::list)->items = std::move(items);
  }
  void fill(pickle_kind kind, const std::vector<const pickle_value *> &items) {
    if (kind == pickle_kind::dict && items.size() % 2 != 0) return wrong("a key without a value");
    if (pickle_value *into = top(kind); into != nullptr) {
      into->items.insert(into->items.end(), items.begin(), items.end());
    }
  }
  void put(std::uint64_t name) {
    if (stack_.empty()) return wrong("nothing is there to be remembered");
    // Picklers number one after the other.
    if (name >= at_) {
      return wrong(
          fmt::format("it numbers what it remembers by {}, more than it has bytes so far", name));
    }
    if (name >= memo_.size()) memo_.resize(name + 1);
    remembered_ += memo_[name] == nullptr ? 1 : 0;
    memo_[name] = stack_.back();
  }
  void get(std::uint64_t name) {
    if (name >= memo_.size() || memo_[name] == nullptr) {
      return wrong("it refers to something that is not there");
    }
    stack_.push_back(memo_[name]);
  }

  void perform(unsigned char op) {
    switch (op) {
      case 0x80:  // protocol
        if (const auto n = number(1); n > 5) wrong(fmt::format("protocol {}", n));
        return;
      case 0x95:  // frame
        number(8);
        return;
      case '(':
        push(pickle_kind::mark);
        return;
      case '0':
        pop();
        return;
      case '1':
        pop_to_mark();
        return;
      case '2':
        if (pickle_value *v = pop(); v != nullptr) stack_.insert(stack_.end(), 2, v);
        return;
      case 'N':
        push(pickle_kind::none);
        return;
      case 0x88:
      case 0x89:
        return push_integer(op == 0x88, pickle_kind::boolean);
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1)));
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));
      case 0x8a:
        return push_long(number(1));
      case 0x8b:
        return push_long(number(4));
      case 'I': {
        const std::string_view digits = line();
        if (digits == "00" || digits == "01")
          return push_integer(digits == "01", pickle_kind::boolean);
        return push_decimal(digits);
      }
      case 'L': {
        const std::string_view digits = line();
        return push_decimal(digits.substr(0, digits.size() - (digits.ends_with('L') ? 1 : 0)));
      }
      case 'F':
        return push_real(line());
      case 'S':
        return push_quoted(line());
      case 'V':
        push(pickle_kind::text)->text = line();
        return;
      case 'G': {  // big-endian
        std::uint64_t bits = 0;
        for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
        push(pickle_kind::real)->real = std::bit_cast<double>(bits);
        return;
      }
      case 'U':
      case 'C':
      case 0x8c:
        return push_text(number(1));
      case 'T':
      case 'B':
      case 'X':
        return push_text(number(4));
      case 0x8d:
      case 0x8e:
      case 0x96:
        return push_text(number(8));
      case ']':
      case ')':
      case 0x8f:  // an empty set
        push(pickle_kind::list);
        return;
      case '}':
        push(pickle_kind::dict);
        return;
      case 'a':
        if (const pickle_value *v = pop(); v != nullptr) fill(pickle_kind::list, {v});
        return;
      case 'e':
      case 0x90:
        return fill(pickle_kind::list, pop_to_mark());
      case 's': {
        const pickle_value *const value = pop(), *const key = pop();
        if (trouble_.empty()) fill(pickle_kind::dict, {key, value});
        return;
      }
      case 'u':
        return fill(pickle_kind::dict, pop_to_mark());
      case 'l':
      case 't':
      case 0x91: {  // a frozen set
        auto items = pop_to_mark();
        push(pickle_kind::list)->items = std::move(items);
        return;
      }
      case 'd': {
        auto items = pop_to_mark();
        push(pickle_kind::dict);
        return fill(pickle_kind::dict, items);
      }
      case 0x85:
      case 0x86:
      case 0x87:
        return tuple(op - 0x84u);
      case 'q':
        return put(number(1));
      case 'r':
        return put(number(4));
      case 0x94:
        return put(remembered_);
      case 'p':
        return put(decimal_name());
      case 'g':
        return get(decimal_name());
      case 'h':
        return get(number(1));
      case 'j':
        return get(number(4));
      case 'c':
      case 0x93:
      case 'i':
        return wrong("it wants to import something, which is refused");
      case 'R':
      case 'b':
      case 'o':
      case 0x81:
      case 0x92:
        return wrong("it wants to make an object, which is refused");
      default:
        return wrong(fmt::format("no known operation: {:#04x}", op));
    }
  }

  std::string_view bytes_;
  const pickle_options options_;
  std::size_t at_ = 0, op_at_ = 0;
  std::string trouble_;
  std::vector<pickle_value *> stack_;
  std::vector<pickle_value *> memo_;  // nullptr: nothing
  std::uint64_t remembered_ = 0;
  pickle out_;
};

result<pickle> pickle::read(std::string_view bytes, const pickle_options &options) {
  return pickle_machine(bytes, options).run();
}

}  // namespace stillmap::replay

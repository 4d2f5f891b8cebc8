#include "tests/support/op_sequence.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/effort.h"

namespace stillmap::testing {

std::string to_text(const op_sequence &ops) {
  std::string out;
  for (const op &o : ops) {
    if (!out.empty()) out += "; ";
    out += o.name;
    for (const std::uint64_t a : o.args) out += ' ' + std::to_string(a);
  }
  return out;
}

std::optional<op_sequence> parse_ops(std::string_view text) {
  op_sequence out;
  std::string plain;
  bool comment = false;
  for (const char c : text) {
    if (c == '#') comment = true;
    if (c == '\n') comment = false;
    if (!comment) plain += c == '\n' ? ';' : c;
  }
  std::istringstream lines(plain);
  for (std::string line; std::getline(lines, line, ';');) {
    std::istringstream words(line);
    op o;
    if (!(words >> o.name)) continue;
    if (!std::all_of(o.name.begin(), o.name.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; })) {
      return std::nullopt;
    }
    for (std::string word; words >> word;) {
      if (word.size() > 19 || word.find_first_not_of("0123456789") != std::string::npos) {
        return std::nullopt;
      }
      o.args.push_back(std::stoull(word));
    }
    out.push_back(std::move(o));
  }
  return out;
}

op_sequence shrink(op_sequence ops, const op_runner &run, std::size_t tries) {
  // What comes after the failure did not cause it.
  if (const auto f = run(ops); f && f->at + 1 < ops.size()) ops.resize(f->at + 1);
  for (std::size_t chunk = std::max<std::size_t>(1, ops.size() / 2); tries != 0;) {
    bool dropped = false;
    for (std::size_t end = ops.size(); end > 0 && tries != 0;) {
      const std::size_t begin = end > chunk ? end - chunk : 0;
      op_sequence less(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(begin));
      less.insert(less.end(), ops.begin() + static_cast<std::ptrdiff_t>(end), ops.end());
      --tries;
      if (!less.empty() && run(less)) {
        ops = std::move(less);
        dropped = true;
      }
      end = begin;
    }
    if (chunk == 1 && !dropped) break;
    if (chunk > 1) chunk /= 2;
  }
  return ops;
}

std::string report_failure(const op_sequence &ops, const op_runner &run) {
  const auto first = run(ops);
  if (!first) return "";
  const op_sequence least = shrink(ops, run);
  const auto again = run(least);
  std::ostringstream out;
  const auto describe = [&](const op_sequence &of, const op_failure &f) {
    out << f.what << "\n  after operation " << f.at
        << (f.at < of.size() ? ": " + to_text({of[f.at]}) : " (the end)") << "\n";
  };
  if (!again) {  // depends on timing: the whole sequence is all there is
    describe(ops, *first);
    out << "the failure does not come back every time; the whole sequence:\nops = \""
        << to_text(ops) << "\"";
    return out.str();
  }
  describe(least, *again);
  out << "shrunk from " << ops.size() << " operations; replay with STILLMAP_MODEL_REPLAY=ops:\n"
      << "ops = \"" << to_text(least) << "\"";
  return out.str();
}

std::string machine_config(const std::string &more) {
  const char *env = std::getenv("HOSTCUDA");
  std::string out = env == nullptr ? "" : env;
  if (!out.empty() && !more.empty()) out += ',';
  return out + more;
}

std::uint64_t seed_of_run(std::uint64_t otherwise) {
  const char *text = std::getenv("STILLMAP_SEED");
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

double seconds_of_run(double otherwise) {
  const char *text = std::getenv("STILLMAP_MODEL_SECONDS");
  if (text != nullptr) return std::strtod(text, nullptr);
  return repeats_a_profile() ? otherwise / 3 : otherwise;
}

std::optional<op_sequence> replay_of_run() {
  const char *text = std::getenv("STILLMAP_MODEL_REPLAY");
  if (text == nullptr || *text == '\0') return std::nullopt;
  std::string content = text;
  if (std::ifstream file(content); file) {
    content.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto ops = parse_ops(content);
  if (!ops) throw std::runtime_error("STILLMAP_MODEL_REPLAY is neither a sequence nor a file");
  return ops;
}

}  // namespace stillmap::testing

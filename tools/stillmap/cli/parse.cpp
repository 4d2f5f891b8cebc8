// Command lines: options anywhere, "--name value" and "--name=value", "-o value" and "-ovalue",
// "--" ends options, and so does the first word of a program.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that make one word the other.
std::size_t edit_distance(const std::string &a, const std::string &b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// Suggests "image verify" for "verfy", "image verfy" or "image-verify": commands are also found by
// their last word.
tl::unexpected<failure> unknown_command(const command &group, const std::string &word) {
  std::vector<std::string> candidates;
  std::map<std::string, std::string> full;
  for (const command *c : group.all()) {
    if (c == &group) continue;
    for (const std::string &as : {c->words.back(), c->name('-')}) {
      if (full.emplace(as, c->name()).second) candidates.push_back(as);
    }
  }
  const std::string near = nearest(word, candidates);
  return fail(exit_usage,
              fmt::format("there is no command '{}'{}", word,
                          near.empty() ? "; there are " + join(group.names_below(), ", ")
                                       : suggestion(full.at(near))));
}

class parser {
 public:
  explicit parser(invocation &into) : into_(into) {}

  outcome<void> run(const command &root, const std::vector<std::string> &words) {
    into_.what = &root;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string &word = words[i];
      if (options_over_ || word.size() < 2 || word[0] != '-') {
        STILLMAP_RETURN_IF_ERROR(take_word(word));
      } else if (word == "--") {
        options_over_ = true;
      } else if (is_built_in(word)) {
        (word == "--version" ? into_.version : into_.help) = true;
        return {};
      } else {
        const std::string *const next = i + 1 < words.size() ? &words[i + 1] : nullptr;
        bool used_next = false;
        STILLMAP_RETURN_IF_ERROR(take_option(word, next, used_next));
        if (used_next) ++i;
      }
    }
    return finish();
  }

 private:
  bool is_built_in(const std::string &name) const {
    return name == "--help" || name == "-h" || (name == "--version" && into_.what->words.empty());
  }

  outcome<void> take_word(const std::string &word) {
    if (!into_.what->commands.empty()) {
      for (const command &below : into_.what->commands) {
        if (below.words.back() != word) continue;
        into_.what = &below;
        return {};
      }
      return unknown_command(*into_.what, word);
    }
    if (next_positional_ == into_.what->positionals.size()) {
      return fail(exit_usage, fmt::format("'{}' is one argument too many", word));
    }
    const option &p = into_.what->positionals[next_positional_];
    if (!p.is_repeated) ++next_positional_;
    if (into_.what->ends_with_program) options_over_ = true;
    return store(p, p.value, word);
  }

  outcome<void> take_option(const std::string &word, const std::string *next, bool &used_next) {
    const bool is_long = word.starts_with("--");
    const std::size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
    const std::string name = word.substr(0, end);
    const auto &known = into_.what->options;
    const auto found = std::find_if(known.begin(), known.end(), [&](const option &o) {
      return std::find(o.names.begin(), o.names.end(), name) != o.names.end();
    });
    const bool attached = end < word.size();
    if (attached && (found == known.end() ? is_built_in(name) : found->value.empty())) {
      return fail(exit_usage, fmt::format("{} takes no value", name));
    }
    if (found == known.end()) {
      std::vector<std::string> candidates{"--help"};
      for (const option &o : known) {
        candidates.insert(candidates.end(), o.names.begin(), o.names.end());
      }
      return fail(exit_usage, fmt::format("there is no option '{}'{}", name,
                                          suggestion(is_long ? nearest(name, candidates) : "")));
    }
    if (found->value.empty()) return store(*found, name, "");
    if (attached) return store(*found, name, word.substr(is_long ? end + 1 : end));
    if (next == nullptr) return fail(exit_usage, fmt::format("{} needs a {}", name, found->value));
    used_next = true;
    return store(*found, name, *next);
  }

  outcome<void> store(const option &o, const std::string &name, const std::string &text) {
    if (!o.is_repeated && !o.value.empty() && given(o)) {
      return fail(exit_usage, fmt::format("{} is given twice", name));
    }
    given_.push_back({&o, text});
    if (const std::string wrong = o.set(text); !wrong.empty()) {
      return fail(exit_usage, fmt::format("{}: {}", name, wrong));
    }
    return {};
  }

  outcome<void> finish() const {
    const command &c = *into_.what;
    if (!c.run) {
      return fail(exit_usage,
                  fmt::format("a command is missing; there are {}", join(c.names_below(), ", ")));
    }
    for (const auto *all : {&c.options, &c.positionals}) {
      for (const option &o : *all) {
        if (!o.is_required || given(o)) continue;
        return fail(exit_usage,
                    fmt::format("{} is missing",
                                o.names.empty() ? o.value : o.names.back() + " " + o.value));
      }
    }
    for (const given_option &g : given_) {
      if (g.what->needed.empty() || is_given(g.what->needed)) continue;
      return fail(exit_usage, fmt::format("{} has an effect only with {}", g.what->names.back(),
                                          g.what->needed));
    }
    return {};
  }

  bool given(const option &o) const {
    return std::any_of(given_.begin(), given_.end(),
                       [&](const given_option &g) { return g.what == &o; });
  }
  // "--each", "--to file", or an argument's name.
  bool is_given(const std::string &needed) const {
    const std::size_t end = std::min(needed.find(' '), needed.size());
    const std::string name = needed.substr(0, end);
    return std::any_of(given_.begin(), given_.end(), [&](const given_option &g) {
      const auto &names = g.what->names;
      const bool meant = names.empty() ? g.what->value == name
                                       : std::find(names.begin(), names.end(), name) != names.end();
      return meant && (end == needed.size() || g.text == needed.substr(end + 1));
    });
  }

  struct given_option {
    const option *what;
    std::string text;
  };

  invocation &into_;
  std::vector<given_option> given_;
  std::size_t next_positional_ = 0;
  bool options_over_ = false;
};

}  // namespace

std::string nearest(const std::string &word, const std::vector<std::string> &candidates) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string &c : candidates) {
    if (const std::size_t d = edit_distance(word, c); d < least) {
      least = d;
      best = c;
    }
  }
  return best;
}

std::string suggestion(const std::string &near) {
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

outcome<void> parse(const command &root, const std::vector<std::string> &words, invocation &into) {
  return parser(into).run(root, words);
}

}  // namespace stillmap::tool

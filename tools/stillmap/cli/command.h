// The tree of commands as plain data. The parser, --help, the manual pages and the completions all
// read it, so none of them can be out of date.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// An option, a flag (an option without a value) or an argument (an option without a name).
struct option {
  std::vector<std::string> names;  // "-o", "--output"
  std::string value;               // "IMAGE", "none|lz4|zstd": lower case is meant literally
  std::string help;
  // Stores a value. Returns what is wrong with it, or an empty string.
  std::function<std::string(const std::string &)> set;
  bool is_required = false;
  bool is_repeated = false;
  bool is_hidden = false;  // not shown by --help
  std::string needed;      // the option, and perhaps its value, without which it has no effect

  option &required() {
    is_required = true;
    return *this;
  }
  // Wrong usage without `other`: "--each", or with a value, "--to file".
  option &with(const std::string &other) {
    needed = other;
    help = "with " + other + ": " + help;
    return *this;
  }
  option &hidden() {
    is_hidden = true;
    return *this;
  }
  std::vector<std::string> choices() const;  // the literal words of `value`
  bool takes_path() const;                   // for completion
};

class command {
 public:
  explicit command(std::string what_it_does) : help(std::move(what_it_does)) {}

  // A command below this one.
  command &add(const std::string &name, const std::string &help);
  // The same with its options, which `function` gets.
  template <class Options>
  std::pair<command &, Options &> add(const std::string &name,
                                      outcome<exit_status> (*function)(const Options &),
                                      const std::string &what) {
    const auto given = std::make_shared<Options>();
    command &c = add(name, what);
    c.run = [function, given] { return function(*given); };
    return {c, *given};
  }

  // Options. `names` is separated by commas; what is stored must outlive the command. Numbers and
  // choices outside of their range are wrong usage.
  option &flag(const std::string &names, bool &into, const std::string &help, bool to = true);
  option &text(const std::string &names, std::string &into, const std::string &value,
               const std::string &help);
  option &texts(const std::string &names, std::vector<std::string> &into, const std::string &value,
                const std::string &help);
  template <class Number>  // int, unsigned, std::uint64_t, double
  option &number(const std::string &names, Number &into, Number low, Number high,
                 const std::string &value, const std::string &help);
  option &size(const std::string &names, std::uint64_t &into, const std::string &help);
  option &json(bool &into) {
    return flag("--json", into, "print one JSON document, also on failure");
  }

  // Arguments, in order. Only the last one may be repeated.
  option &argument(std::string &into, const std::string &value, const std::string &what) {
    return text("", into, value, what);
  }
  option &arguments(std::vector<std::string> &into, const std::string &value,
                    const std::string &what) {
    return texts("", into, value, what);
  }

  // "image verify"; empty: the program itself.
  std::string name(char between = ' ') const;
  std::string summary() const;  // the first sentence of `help`
  std::string usage() const;    // "stillmap image verify [OPTIONS] IMAGE"
  // This command and all below it, in order.
  std::vector<const command *> all() const;
  // The last words of the commands directly below this one.
  std::vector<std::string> names_below() const;

  std::vector<std::string> words;  // "image", "verify"
  std::string help;
  std::string notes;  // printed as it is, below the options
  std::deque<option> options, positionals;
  std::deque<command> commands;
  std::function<outcome<exit_status>()> run;  // empty: a group
  // The first argument ends the options: it is a program, and what follows are its own arguments.
  bool ends_with_program = false;

 private:
  // An option, or an argument if it has no names.
  option &add_option(const std::string &names, const std::string &value, const std::string &help,
                     std::function<std::string(const std::string &)> set);
};

// A parsed command line.
struct invocation {
  const command *what = nullptr;  // the command as far as it was recognised, also on failure
  bool help = false, version = false;
};
// Stores the values of `words` where the options say.
// Errors: exit_usage, with the nearest known word where there is one.
outcome<void> parse(const command &root, const std::vector<std::string> &words, invocation &into);

// The text of --help, `width` columns wide.
std::string help_text(const command &c, std::size_t width);

// The candidate that `word` is most likely a misspelling of; empty: none is near.
std::string nearest(const std::string &word, const std::vector<std::string> &candidates);
// "; did you mean 'verify'?", or empty if `near` is.
std::string suggestion(const std::string &near);

}  // namespace stillmap::tool

#include "tools/stillmap/cli/completion.h"

#include <fmt/format.h>

#include <algorithm>

namespace stillmap::tool {
namespace {

constexpr const char *made = "# Made by: stillmap completion {}. Do not edit.\n";

std::string joined(const std::vector<std::string> &words, const char *between = " ") {
  std::string out;
  for (const std::string &w : words) out += (out.empty() ? "" : between) + w;
  return out;
}

std::vector<std::string> names_below(const command_info &c) {
  std::vector<std::string> out;
  for (const command_info &below : c.commands) out.push_back(below.words.back());
  return out;
}

// In single quotes, for a shell.
std::string quoted(const std::string &text) {
  std::string out = "'";
  for (const char c : one_line(text)) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

bool takes_path(const std::vector<option_info> &some) {
  return std::any_of(some.begin(), some.end(), [](const option_info &o) { return o.is_path; });
}

std::vector<std::string> choices_of(const std::vector<option_info> &some) {
  std::vector<std::string> out;
  for (const option_info &o : some) out.insert(out.end(), o.choices.begin(), o.choices.end());
  return out;
}

// One line of a bash case: what follows an option that takes a value.
std::string bash_values(const command_info &c) {
  std::string out;
  for (const option_info &o : c.options) {
    if (o.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string &n : o.names) patterns.push_back(quoted(c.name() + "/" + n));
    out += fmt::format("    {}) words={} files={} ;;\n", joined(patterns, " | "),
                       quoted(joined(o.choices)), o.is_path ? 1 : 0);
  }
  return out;
}

std::string bash_words(const command_info &c) {
  std::vector<std::string> options;
  for (const option_info &o : c.options) {
    options.insert(options.end(), o.names.begin(), o.names.end());
  }
  std::vector<std::string> others = names_below(c);
  const auto choices = choices_of(c.positionals);
  others.insert(others.end(), choices.begin(), choices.end());
  return fmt::format(
      "      {}) if [[ $cur == -* ]]; then words={}; else words={} files={}; fi ;;\n",
      quoted(c.name()), quoted(joined(options)), quoted(joined(others)),
      takes_path(c.positionals) ? 1 : 0);
}

// As _arguments takes it: brackets, colons and backslashes mean something in it.
std::string zsh_text(const std::string &text) {
  std::string out;
  for (const char c : one_line(text)) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const option_info &o) {
  std::string out = ":" + zsh_text(o.value) + ":";
  if (o.is_path) return out + "_files";  // words and files: files
  return out + (o.choices.empty() ? " " : "(" + joined(o.choices) + ")");
}

std::string zsh_function(const command_info &c) {
  std::string out = fmt::format("_stillmap{}{}() {{\n  local context state state_descr line\n",
                                c.words.empty() ? "" : "_", c.name('_'));
  out += "  typeset -A opt_args\n  _arguments -C";
  for (const option_info &o : c.options) {
    for (const std::string &n : o.names) {
      const std::string spec = fmt::format("{}{}[{}]{}", o.many ? "*" : "", n, zsh_text(o.help),
                                           o.value.empty() ? "" : zsh_action(o));
      out += " \\\n    " + quoted(spec);
    }
  }
  for (const option_info &p : c.positionals) {
    out += " \\\n    " + quoted((p.many ? "*" : "") + zsh_action(p));
  }
  if (c.commands.empty()) return out + "\n}\n";
  out += " \\\n    '1: :->command' \\\n    '*:: :->rest'\n  case $state in\n  command)\n";
  out += "    local -a commands=(";
  for (const command_info &b : c.commands) {
    out += "\n      " + quoted(b.words.back() + ":" + zsh_text(b.summary()));
  }
  out += ")\n    _describe command commands ;;\n  rest)\n    case $line[1] in\n";
  for (const command_info &b : c.commands) {
    out += fmt::format("    {}) _stillmap_{} ;;\n", b.words.back(), b.name('_'));
  }
  return out + "    esac ;;\n  esac\n}\n";
}

std::string fish_when(const command_info &c) {
  if (c.words.empty()) return "__fish_use_subcommand";
  std::string out;
  for (const std::string &w : c.words) {
    out += (out.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + w);
  }
  if (!c.commands.empty()) {
    out += "; and not __fish_seen_subcommand_from " + joined(names_below(c));
  }
  return out;
}

std::string fish_lines(const command_info &c) {
  const std::string begin = "complete -c stillmap -n " + quoted(fish_when(c));
  std::string out;
  for (const command_info &b : c.commands) {
    out += fmt::format("{} -fa {} -d {}\n", begin, b.words.back(), quoted(b.summary()));
  }
  for (const option_info &o : c.options) {
    out += begin;
    for (const std::string &n : o.names) {
      out += n.starts_with("--") ? " -l " + n.substr(2) : " -s " + n.substr(1);
    }
    if (!o.value.empty()) out += o.is_path ? " -rF" : " -x";
    if (!o.choices.empty()) out += " -a " + quoted(joined(o.choices));
    out += " -d " + quoted(o.help) + "\n";
  }
  if (const auto choices = choices_of(c.positionals); !choices.empty()) {
    out += begin + " -a " + quoted(joined(choices)) + "\n";
  }
  if (!takes_path(c.positionals)) out += begin + " -f\n";
  return out;
}

}  // namespace

std::string bash_completion(const command_info &root) {
  std::string commands, values, words;
  for (const command_info *c : all_of(root)) {
    if (!c->words.empty()) commands += (commands.empty() ? "" : " | ") + quoted(c->name());
    values += bash_values(*c);
    words += bash_words(*c);
  }
  return fmt::format(made, "bash") + fmt::format(R"(_stillmap() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command= next words= files=0 i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    next=${{command:+$command }}${{COMP_WORDS[i]}}
    case $next in
    {}) command=$next ;;
    esac
  done
  case $command/$prev in
{}    *)
      case $command in
{}      esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if ((files)); then
    compopt -o filenames 2>/dev/null
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -- "$cur"))
  fi
}}
complete -F _stillmap stillmap
)",
                                                 commands, values, words);
}

std::string zsh_completion(const command_info &root) {
  std::string out = "#compdef stillmap\n" + fmt::format(made, "zsh");
  for (const command_info *c : all_of(root)) out += zsh_function(*c);
  return out +
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _stillmap \"$@\"; else compdef "
         "_stillmap stillmap; fi\n";
}

std::string fish_completion(const command_info &root) {
  std::string out = fmt::format(made, "fish");
  for (const command_info *c : all_of(root)) out += fish_lines(*c);
  return out;
}

}  // namespace stillmap::tool

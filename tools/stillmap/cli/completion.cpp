#include "tools/stillmap/cli/completion.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

constexpr const char *made_by_line = "# Made by: stillmap completion {}. Do not edit.\n";

bool takes_path(const std::deque<option> &some) {
  return std::any_of(some.begin(), some.end(), [](const option &o) { return o.takes_path(); });
}

std::vector<std::string> choices_of(const std::deque<option> &some) {
  std::vector<std::string> out;
  for (const option &o : some) {
    const auto choices = o.choices();
    out.insert(out.end(), choices.begin(), choices.end());
  }
  return out;
}

// Lines of a bash case: the values of an option.
std::string bash_values(const command &c) {
  std::string out;
  for (const option &o : c.options) {
    if (o.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string &n : o.names) patterns.push_back(shell_quoted(c.name() + "/" + n));
    out += fmt::format("    {}) words={} files={} ;;\n", join(patterns, " | "),
                       shell_quoted(join(o.choices(), " ")), o.takes_path() ? 1 : 0);
  }
  return out;
}

std::string bash_words(const command &c) {
  std::vector<std::string> options{"--help"};
  if (c.words.empty()) options.push_back("--version");
  for (const option &o : c.options) {
    if (!o.is_hidden) options.insert(options.end(), o.names.begin(), o.names.end());
  }
  std::vector<std::string> others = c.names_below();
  const auto choices = choices_of(c.positionals);
  others.insert(others.end(), choices.begin(), choices.end());
  return fmt::format(
      "      {}) if [[ $cur == -* ]]; then words={}; else words={} files={}; fi ;;\n",
      shell_quoted(c.name()), shell_quoted(join(options, " ")), shell_quoted(join(others, " ")),
      takes_path(c.positionals) ? 1 : 0);
}

// Escapes brackets, colons and backslashes for _arguments.
std::string zsh_text(const std::string &text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const option &o) {
  std::string out = ":" + zsh_text(o.value) + ":";
  if (o.takes_path()) return out + "_files";  // words and files: files
  return out + (o.choices().empty() ? " " : "(" + join(o.choices(), " ") + ")");
}

std::string zsh_function(const command &c) {
  std::string out = fmt::format("_stillmap{}{}() {{\n  local context state state_descr line\n",
                                c.words.empty() ? "" : "_", c.name('_'));
  out += "  typeset -A opt_args\n  _arguments -C \\\n    '--help[print the help]'";
  for (const option &o : c.options) {
    if (o.is_hidden) continue;
    for (const std::string &n : o.names) {
      const std::string spec = fmt::format("{}{}[{}]{}", o.is_repeated ? "*" : "", n,
                                           zsh_text(o.help), o.value.empty() ? "" : zsh_action(o));
      out += " \\\n    " + shell_quoted(spec);
    }
  }
  for (const option &p : c.positionals) {
    out += " \\\n    " + shell_quoted((p.is_repeated ? "*" : "") + zsh_action(p));
  }
  if (c.commands.empty()) return out + "\n}\n";
  out += " \\\n    '1: :->command' \\\n    '*:: :->rest'\n  case $state in\n  command)\n";
  out += "    local -a commands=(";
  for (const command &b : c.commands) {
    out += "\n      " + shell_quoted(b.words.back() + ":" + zsh_text(b.summary()));
  }
  out += ")\n    _describe command commands ;;\n  rest)\n    case $line[1] in\n";
  for (const command &b : c.commands) {
    out += fmt::format("    {}) _stillmap_{} ;;\n", b.words.back(), b.name('_'));
  }
  return out + "    esac ;;\n  esac\n}\n";
}

std::string fish_when(const command &c) {
  if (c.words.empty()) return "__fish_use_subcommand";
  std::string out;
  for (const std::string &w : c.words) {
    out += (out.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + w);
  }
  if (!c.commands.empty()) {
    out += "; and not __fish_seen_subcommand_from " + join(c.names_below(), " ");
  }
  return out;
}

std::string fish_lines(const command &c) {
  const std::string begin = "complete -c stillmap -n " + shell_quoted(fish_when(c));
  std::string out;
  for (const command &b : c.commands) {
    out += fmt::format("{} -fa {} -d {}\n", begin, b.words.back(), shell_quoted(b.summary()));
  }
  for (const option &o : c.options) {
    if (o.is_hidden) continue;
    out += begin;
    for (const std::string &n : o.names) {
      out += n.starts_with("--") ? " -l " + n.substr(2) : " -s " + n.substr(1);
    }
    if (!o.value.empty()) out += o.takes_path() ? " -rF" : " -x";
    if (!o.choices().empty()) out += " -a " + shell_quoted(join(o.choices(), " "));
    out += " -d " + shell_quoted(o.help) + "\n";
  }
  if (const auto choices = choices_of(c.positionals); !choices.empty()) {
    out += begin + " -a " + shell_quoted(join(choices, " ")) + "\n";
  }
  if (!takes_path(c.positionals)) out += begin + " -f\n";
  return out;
}

}  // namespace

std::string bash_completion(const command &root) {
  std::string commands, values, words;
  for (const command *c : root.all()) {
    if (!c->words.empty()) commands += (commands.empty() ? "" : " | ") + shell_quoted(c->name());
    values += bash_values(*c);
    words += bash_words(*c);
  }
  return fmt::format(made_by_line, "bash") + fmt::format(R"(_stillmap() {{
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

std::string zsh_completion(const command &root) {
  std::string out = "#compdef stillmap\n" + fmt::format(made_by_line, "zsh");
  for (const command *c : root.all()) out += zsh_function(*c);
  return out +
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _stillmap \"$@\"; else compdef "
         "_stillmap stillmap; fi\n";
}

std::string fish_completion(const command &root) {
  std::string out = fmt::format(made_by_line, "fish");
  for (const command *c : root.all()) out += fish_lines(*c);
  return out;
}

}  // namespace stillmap::tool

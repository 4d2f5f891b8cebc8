#include "tools/stillmap/top/screen.h"

#define NCURSES_NOMACROS  // functions: names such as erase are of others, too
#include <curses.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/terminal.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"
#include "tools/stillmap/top/background.h"
#include "tools/stillmap/top/table.h"

namespace stillmap::tool {
namespace {

constexpr int key_interval_ms = 100, escape = 27;
constexpr const char *help_line =
    "up down select   enter details   s suspend   r resume   < > order   q leave";

// The terminal while it is ncurses's.
class curses_terminal {
 public:
  // False: its kind is not known.
  bool open() {
    screen_ = ::newterm(nullptr, stdout, stdin);
    if (screen_ == nullptr) return false;
    ::set_term(screen_);
    ::cbreak();
    ::noecho();
    ::keypad(stdscr, TRUE);
    ::curs_set(0);
    ::timeout(key_interval_ms);
    ::set_escdelay(25);
    return true;
  }
  ~curses_terminal() {
    if (screen_ == nullptr) return;
    ::endwin();
    ::delscreen(screen_);
  }

 private:
  SCREEN *screen_ = nullptr;
};

std::string clock_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  return fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

void put_line(int y, const std::string &text, attr_t attributes = A_NORMAL) {
  ::attrset(static_cast<int>(attributes));
  // A longer line would go on in the next one.
  ::mvaddstr(y, 0, first_columns(text, static_cast<std::size_t>(::getmaxx(stdscr))).c_str());
  ::clrtoeol();
  ::attrset(A_NORMAL);
}

class top_screen {
 public:
  top_screen(const top_options &o, std::vector<task_filter> filters)
      : watch_(o.folders, answer_time(o.interval), std::move(filters)),
        interval_(milliseconds_of(o.interval)),
        sort_(sort_key_of(o.sort)) {}

  outcome<exit_status> run() {
    // Before the terminal is ncurses's: what fails is said on it.
    STILLMAP_ASSIGN_OR_RETURN(view_, watch_.look());
    utf8_ = terminal_of(stdout).utf8;  // sets the locale, which ncurses reads
    curses_terminal terminal;
    if (!terminal.open()) {
      return fail(exit_refused, "the terminal is of a kind that ncurses does not know: use --once");
    }
    view_updater updates(watch_, interval_);
    sort_tasks(view_, sort_);
    draw("");
    while (!left_) {
      const int key = ::getch();
      handle(key);
      auto newer = updates.take();
      if (newer) {
        view_ = std::move(*newer);
        sort_tasks(view_, sort_);
      }
      const std::string trouble = updates.trouble();
      if (newer || key != ERR || !trouble.empty() || bottom_line() != drawn_bottom_) draw(trouble);
    }
    return exit_ok;
  }

 private:
  enum class mode : std::uint8_t { table, details, confirm_suspend };

  const task_view *selected() const {
    for (const table_line &line : lines_) {
      if (line.task != nullptr && line.task->socket == selected_) return line.task;
    }
    return nullptr;
  }
  const device_view *device_of(const task_view &t) const {
    for (const device_view &d : view_.devices) {
      for (const task_view &one : d.tasks) {
        if (&one == &t) return &d;
      }
    }
    return nullptr;
  }

  void draw(const std::string &trouble) {
    const int height = ::getmaxy(stdscr), width = ::getmaxx(stdscr);
    lines_ = table_of(view_, static_cast<std::size_t>(std::max(width, 20)), utf8_);
    ::erase();
    std::size_t tasks = view_.without_device.size();
    for (const device_view &d : view_.devices) tasks += d.tasks.size();
    put_line(0, fmt::format("stillmap top  {}  {}, by {}  {}", clock_text(), counted(tasks, "task"),
                            name_of(sort_), trouble));
    const int room = std::max(1, height - 2);
    mode_ == mode::details ? draw_details(room) : draw_table(room);
    drawn_bottom_ = bottom_line();
    put_line(height - 1, drawn_bottom_, A_DIM);
    ::refresh();
  }

  void draw_table(int room) {
    const task_view *const at = selected();
    int row = 0;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i].task != nullptr && lines_[i].task == at) row = static_cast<int>(i);
    }
    const int least = std::max(0, row - room + 1);
    first_ = std::clamp(first_, least, std::max(row - 1, least));
    first_ = std::clamp(first_, 0, std::max(0, static_cast<int>(lines_.size()) - room));
    for (int y = 0; y < room && first_ + y < static_cast<int>(lines_.size()); ++y) {
      const table_line &line = lines_[static_cast<std::size_t>(first_ + y)];
      const bool here = line.task != nullptr && line.task == at;
      const bool is_device = line.of == table_line::kind::device;
      const bool is_heading = line.of == table_line::kind::heading;
      put_line(1 + y, line.text,
               here         ? A_REVERSE
               : is_device  ? A_BOLD
               : is_heading ? A_UNDERLINE
                            : A_NORMAL);
    }
    if (lines_.empty()) put_line(1, "no GPU is known to NVML, and no process has a control socket");
  }

  void draw_details(int room) {
    const task_view *const t = selected();
    if (t == nullptr) {
      put_line(1, "the task has ended");
      return;
    }
    const auto details = details_of(*t, device_of(*t));
    for (int y = 0; y < room && y < static_cast<int>(details.size()); ++y) {
      put_line(1 + y, details[static_cast<std::size_t>(y)]);
    }
  }

  std::string bottom_line() const {
    const task_view *const t = selected();
    if (mode_ == mode::confirm_suspend && t != nullptr) {
      return fmt::format("suspend all memory of {} ({})? y: yes, any other key: no", t->process.pid,
                         printable(t->process.name));
    }
    if (mode_ == mode::details) return "any key: back";
    const std::string message = requests_.message();
    return message.empty() ? help_line : message;
  }

  // Over the lines of tasks.
  void move(int step) {
    std::vector<const task_view *> tasks;
    for (const table_line &line : lines_) {
      if (line.task != nullptr) tasks.push_back(line.task);
    }
    if (tasks.empty()) return;
    const auto at = std::find(tasks.begin(), tasks.end(), selected());
    const int n = static_cast<int>(tasks.size());
    const int now = at == tasks.end() ? (step > 0 ? -1 : n) : static_cast<int>(at - tasks.begin());
    selected_ = tasks[static_cast<std::size_t>(std::clamp(now + step, 0, n - 1))]->socket;
  }

  void handle(int key) {
    if (key == ERR || key == KEY_RESIZE) return;
    if (mode_ == mode::details) {
      mode_ = mode::table;
      return;
    }
    if (mode_ == mode::confirm_suspend) {
      mode_ = mode::table;
      if (key == 'y') request(task_requests::what::suspend);
      return;
    }
    switch (key) {
      case 'q':
      case escape:
        left_ = true;
        break;
      case KEY_UP:
      case 'k':
        move(-1);
        break;
      case KEY_DOWN:
      case 'j':
        move(1);
        break;
      case '<':
      case '>':
        sort_ = next_key(sort_, key == '>' ? 1 : -1);
        sort_tasks(view_, sort_);
        break;
      case '\n':
      case KEY_ENTER:
        if (selected() != nullptr) mode_ = mode::details;
        break;
      case 's':
        if (selected() != nullptr) mode_ = mode::confirm_suspend;
        break;
      case 'r':
        request(task_requests::what::resume);
        break;
      default:
        break;
    }
  }

  void request(task_requests::what w) {
    const task_view *const t = selected();
    if (t != nullptr) requests_.start(*t, w);
  }

  machine_watch watch_;
  const std::chrono::milliseconds interval_;
  sort_key sort_;
  bool utf8_ = false, left_ = false;
  mode mode_ = mode::table;
  machine_view view_;
  std::vector<table_line> lines_;  // of view_, as it was drawn
  std::string selected_;           // the socket of the task
  int first_ = 0;                  // the line on top
  std::string drawn_bottom_;
  task_requests requests_;
};

}  // namespace

outcome<exit_status> show_screen(const top_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(auto filters, filters_of(o.filters));
  return top_screen(o, std::move(filters)).run();
}

}  // namespace stillmap::tool

#include "tools/stillmap/demo/demo_commands.h"

#include "tools/stillmap/cli/commands.h"

namespace stillmap::tool {
namespace {

void add_growth(command &group) {
  const auto [c, o] =
      group.add("growth", run_growth_demo,
                "Appends a stream of unknown length to a device buffer that grows with it. Shows "
                "that the address never changed, that no byte was copied and that the content is "
                "right; compares it with growing by copying; and draws the address space.");
  c.argument(o.file, "FILE",
             "the file to read; - is standard input (default: a large file of this machine)");
  add_driver_options(c, o.driver);
  c.size("--limit", o.limit, "stop reading after SIZE bytes");
  c.size("--at-least", o.at_least,
         "read the file repeatedly, until SIZE bytes have been read (default: 1G without FILE)");
  c.size("--chunk", o.chunk, "bytes to read, and to grow by, at a time (default: 16M)");
  c.text("--svg", o.svg, "PATH",
         "write the picture to this file; '' writes none (default: " + o.svg + ")");
  c.flag("--no-comparison", o.no_comparison, "do not run the same job by copying");
  c.flag("--copying", o.copying,
         "grow by copying, as on a device without virtual memory management; the check then "
         "reports its cost and fails");
  c.json(o.json);
}

void add_lifecycle(command &group) {
  const auto [c, o] = group.add(
      "lifecycle", run_lifecycle_demo,
      "Saves a running task, hands it to a second process, and migrates it to a third one over TLS "
      "while it runs. Every byte, address and pointer is checked in each process.");
  add_driver_options(c, o.driver);
  c.text("--part", o.part, "NAME", "the part of a child process").hidden();
  c.text("--folder", o.folder, "DIR", "the folder of the processes").hidden();
}

}  // namespace

void add_demo_commands(command &root) {
  command &group = root.add("demo", "Demonstrations: growing in place, and a task's lifecycle.");
  add_growth(group);
  add_lifecycle(group);
}

}  // namespace stillmap::tool

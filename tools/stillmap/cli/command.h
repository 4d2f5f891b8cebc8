// What main() and the commands have in common. A new command is one file with one function, and one
// line in main.cpp.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/common/size.h"

namespace stillmap::tool {

// What a command does once its options are read; the status it ends with.
using command_body = std::function<outcome<exit_status>()>;

// Each adds one subcommand to `app`; where that is the one asked for, it sets `body`.
void add_demo(CLI::App &app, command_body &body);
void add_journey(CLI::App &app, command_body &body);
void add_doctor(CLI::App &app, command_body &body);
void add_map(CLI::App &app, command_body &body);
void add_compare(CLI::App &app, command_body &body);
void add_record(CLI::App &app, command_body &body);
void add_convert(CLI::App &app, command_body &body);
void add_replay(CLI::App &app, command_body &body);
void add_soak(CLI::App &app, command_body &body);
void add_inspect(CLI::App &app, command_body &body);
void add_verify(CLI::App &app, command_body &body);
void add_diff(CLI::App &app, command_body &body);
void add_flatten(CLI::App &app, command_body &body);
void add_status(CLI::App &app, command_body &body);
void add_suspend(CLI::App &app, command_body &body);
void add_resume(CLI::App &app, command_body &body);
void add_snapshot(CLI::App &app, command_body &body);
void add_restore(CLI::App &app, command_body &body);
void add_handoff(CLI::App &app, command_body &body);
void add_migrate(CLI::App &app, command_body &body);
void add_completion(CLI::App &app, command_body &body);
void add_man(CLI::App &app, command_body &body);

// An option that takes a size ("64M").
inline CLI::Option *add_size(CLI::App &app, const std::string &name, std::uint64_t &into,
                             const std::string &help) {
  return app
      .add_option_function<std::string>(
          name,
          [&into, name](const std::string &text) {
            const auto size = parse_size(text);
            if (!size) throw CLI::ValidationError(name, size.error().line);
            into = *size;
          },
          help)
      ->type_name("SIZE");
}

struct driver_options {
  std::string driver;
  int device = 0;
};
inline void add_driver_option(CLI::App &app, std::string &driver) {
  app.add_option("--driver", driver,
                 "cuda: the machine's GPU; host: hostcuda, a CUDA driver\non host memory; or the "
                 "path of a driver library.\nDefault: $STILLMAP_DRIVER, else a GPU where there is "
                 "one,\nelse hostcuda")
      ->type_name("cuda|host|PATH");
}
inline void add_driver_options(CLI::App &app, driver_options &into) {
  add_driver_option(app, into.driver);
  app.add_option("--device", into.device, "which of the driver's devices, from 0")->type_name("N");
}

}  // namespace stillmap::tool

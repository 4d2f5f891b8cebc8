// stillmap migrate: a task's memory moves to another machine while it works.
#include "tools/stillmap/task/migrate_options.h"

namespace stillmap::tool {

void add_migrate(CLI::App &app, command_body &body) {
  CLI::App *const c = app.add_subcommand(
      "migrate",
      "Memory of a running task moves to another machine, to the same\naddresses, with a short "
      "pause. On either machine once:\n  stillmap migrate credentials DIR\nwhere it goes to: "
      "stillmap migrate receive :4711 ...; where it is:\nstillmap migrate send SOCKET --to "
      "HOST:4711 ...");
  c->require_subcommand(1);
  add_migrate_credentials(*c, body);
  add_migrate_receive(*c, body);
  add_migrate_send(*c, body);
  add_migrate_status(*c, body);
  add_migrate_abort(*c, body);
  add_migrate_settle(*c, body);
}

}  // namespace stillmap::tool

// The commands of `stillmap task`: their options, and what runs them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/requests.h"
#include "tools/stillmap/common/machine.h"

namespace stillmap::tool {

// TLS identity: our credentials, and the peers we trust.
struct identity_options {
  std::string folder, certificate, key, authority, name;
  std::vector<std::string> fingerprints;

  bool given() const {
    return !folder.empty() || !certificate.empty() || !key.empty() || !authority.empty() ||
           !fingerprints.empty();
  }
};

// A process with a control server.
struct task_options {
  std::string socket;
  double timeout = 0;  // seconds to wait until it listens
};

struct task_list_options {
  std::vector<std::string> folders, filters;
  bool json = false;
};
outcome<exit_status> run_task_list(const task_list_options &o);

struct task_status_options {
  task_options task;
  bool json = false;
};
outcome<exit_status> run_task_status(const task_status_options &o);

struct task_suspend_options {
  task_options task;
  std::string tag, to, directory;  // `to` is empty: in pinned memory, or where it is already
  double within = 60;              // seconds, of `each`
  bool all = false, each = false, json = false;
};
outcome<exit_status> run_task_suspend(const task_suspend_options &o);
outcome<exit_status> run_task_resume(const task_suspend_options &o);

struct task_snapshot_options {
  task_options task;
  control::snapshot_request what;
  std::string compress = "none";
  bool json = false;
};
outcome<exit_status> run_task_snapshot(const task_snapshot_options &o);

struct task_restore_options {
  task_options task;
  control::restore_request what;
  bool json = false;
};
outcome<exit_status> run_task_restore(const task_restore_options &o);

struct handoff_send_options {
  task_options task;
  control::handoff_request what;
  double timeout = 30;  // seconds
  bool json = false;
};
outcome<exit_status> run_handoff_send(const handoff_send_options &o);

struct handoff_receive_options {
  std::string socket, control, save;
  driver_options driver;
  double timeout = 3600;  // seconds
  bool hold = true, json = false;
};
outcome<exit_status> run_handoff_receive(const handoff_receive_options &o);

struct hold_published_options {
  std::string socket;
  bool end_at_once = false, json = false;
};
outcome<exit_status> run_hold_published(const hold_published_options &o);

struct list_published_options {
  std::string socket;
  bool json = false;
};
outcome<exit_status> run_list_published(const list_published_options &o);

struct withdraw_options {
  std::string socket, name;
  bool json = false;
};
outcome<exit_status> run_withdraw(const withdraw_options &o);

struct migrate_credentials_options {
  std::string folder, name;
  int days = 365;
  bool json = false;
};
outcome<exit_status> run_migrate_credentials(const migrate_credentials_options &o);

struct migrate_send_options {
  task_options task;
  control::migrate_request what;
  identity_options identity;
  std::string id, on_no_convergence = "stop";
  double timeout = 10;  // seconds
  int max_downtime_ms = static_cast<int>(control::migrate_request().max_downtime.count());
  double within = 600;  // seconds, of `each`
  bool each = false, json = false;
};
outcome<exit_status> run_migrate_send(const migrate_send_options &o);

struct migrate_receive_options {
  std::string address, ucx, records, control, save;
  identity_options identity;
  driver_options driver;
  double timeout = 3600;  // seconds
  std::uint64_t max_bytes = 0;
  bool json = false;
};
outcome<exit_status> run_migrate_receive(const migrate_receive_options &o);

struct migrate_status_options {
  std::string place, task;  // a folder of records, or a socket
  bool json = false;
};
outcome<exit_status> run_migrate_status(const migrate_status_options &o);

outcome<exit_status> run_migrate_abort(const task_status_options &o);

struct migrate_resolve_options {
  std::string place, to, id, decider;
  identity_options identity;
  driver_options driver;
  double timeout = 10;  // seconds
  bool certificate_replaced = false, json = false;
};
outcome<exit_status> run_migrate_resolve(const migrate_resolve_options &o);

}  // namespace stillmap::tool

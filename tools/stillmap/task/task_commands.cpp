#include "tools/stillmap/task/task_commands.h"

#include <fmt/format.h>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/task/address.h"

namespace stillmap::tool {
namespace {

constexpr const char *tags_help = "send or save the memory of this tag; can be repeated";

constexpr const char *task_help =
    "the control socket of the process: a path, or an abstract name after '@'. Or the one task "
    "that is meant by a process id, job:ID (of Slurm), name:PROGRAM, user:USER, pod:UID or "
    "container:ID";

void add_socket(command &c, std::string &socket) {
  c.argument(socket, "TASK", task_help).required();
  c.run = [run = c.run, &socket]() -> outcome<exit_status> {
    STILLMAP_ASSIGN_OR_RETURN(socket, resolve_task(socket));
    return run();
  };
}

constexpr const char *listening_help = "how long to wait until the process listens (default: 0)";

void add_task(command &c, task_options &into) {
  add_socket(c, into.socket);
  add_timeout_option(c, into.timeout, listening_help);
}

void add_list(command &group) {
  const auto [c, o] =
      group.add("list", run_task_list,
                "Lists the running tasks. It finds processes that listen on a socket whose name "
                "ends in 'control': an abstract one that begins with '@stillmap', or one in the "
                "given folders. It connects to no other socket.");
  c.arguments(o.folders, "DIR", "folders with control sockets (default: none)");
  c.texts("--filter", o.filters, "FILTER",
          "only tasks of this process id, job:ID (of Slurm), name:PROGRAM, user:USER, pod:UID or "
          "container:ID; of "
          "several filters a task matches all");
  c.json(o.json);
}

void add_status(command &group) {
  const auto [c, o] =
      group.add("status", run_task_status,
                "Prints the memory of a task, and the request that it executes. Its process has a "
                "control server. For each tag it prints what is mapped and what is suspended.");
  add_task(c, o.task);
  c.json(o.json);
}

// Of a request to the one task that is meant, or to each of them. Call it first: a `run` that is there takes the text
// of TASK as it is with --each, and else the socket.
template <class Options>
void add_tasks(command &c, Options &o, const std::string &each_help,
               const std::string &within_help) {
  const auto run_it = c.run;
  add_socket(c, o.task.socket);
  const auto run_at_one = c.run;
  c.flag("--each", o.each, each_help);
  c.number("--within", o.within, 0.001, 86400.0, "SECONDS",
           fmt::format("{} (default: {})", within_help, o.within))
      .with("--each");
  c.run = [run_it, run_at_one, &o] { return o.each ? run_it() : run_at_one(); };
}

void add_suspend_tasks(command &c, task_suspend_options &o) {
  add_tasks(c, o, "every task that is meant, all at once: all of them, or none",
            "give up what has not answered by then");
  add_timeout_option(c, o.task.timeout, listening_help);
  c.argument(o.tag, "TAG", "the tag");
}

void add_suspend(command &group) {
  const auto [c, o] = group.add("suspend", run_task_suspend,
                                "Suspends a tag of a task. The process stops its work on the tag "
                                "and releases its device memory, until stillmap task resume. What "
                                "is suspended already stays so, and is no failure: the line says "
                                "\"nothing to do\", and the exit status is 0.");
  add_suspend_tasks(c, o);
  c.flag("--all", o.all, "suspend every tag that has memory: all of them, or none");
  c.text("--to", o.to, "pinned|file|discard",
         "the backing store of the contents: pinned host memory (default), a file, or none: "
         "discarded contents are lost. What is suspended elsewhere has to be resumed first");
  c.text("--directory", o.directory, "DIR",
         "the directory of the file (default: the process's $TMPDIR, else /tmp)")
      .with("--to file");
  c.json(o.json);
}

void add_resume(command &group) {
  const auto [c, o] = group.add(
      "resume", run_task_resume,
      "Resumes a suspended tag of a task. Its memory is mapped again at the same addresses, with "
      "its contents. If the device has too little memory, the tag stays suspended. What is not "
      "suspended is no failure: the line says \"nothing to do\", and the exit status is 0.");
  add_suspend_tasks(c, o);
  c.flag("--all", o.all, "resume every suspended tag");
  c.json(o.json);
}

void add_snapshot(command &group) {
  const auto [c, o] = group.add(
      "snapshot", run_task_snapshot,
      "Saves the memory of a task as an image. The image is written completely or not at all; the "
      "process stops its work meanwhile. Interrupting this command cancels the snapshot.");
  add_task(c, o.task);
  add_tag_option(c, o.what.tags, tags_help);
  c.flag("--all", o.what.all, "save all memory that has a tag");
  c.text("-o,--output", o.what.path, "IMAGE", "the image to write").required();
  c.text("--parent", o.what.parent, "IMAGE", "store only the differences from this image");
  c.text("--compress", o.compress, "none|lz4|zstd", "compress chunks that get smaller by it");
  c.text("--key", o.what.key, "FILE",
         "encrypt the image: a file with 32 bytes, or 64 hexadecimal digits, which the process "
         "reads and only its user may read (chmod 600). A parent has the same key");
  c.text("--sign-with", o.what.sign_with, "FILE",
         "sign the image with this key, in the same form; `stillmap image inspect` prints its "
         "public half, for --signed-by");
  c.flag("--replace", o.what.replace, "overwrite the image if it exists");
  c.flag("--force", o.what.force,
         "even if other images in its folder build on it, which cannot be read then")
      .with("--replace");
  c.flag("--no-verify", o.what.verify, "do not read the image back before it gets its name", false);
  c.json(o.json);
}

void add_restore(command &group) {
  const auto [c, o] = group.add(
      "restore", run_task_restore,
      "Writes the contents of an image into the memory of a task. The task has its memory at the "
      "image's addresses: it goes back to an earlier snapshot, or was started again by stillmap "
      "run "
      "--control. Otherwise nothing is changed. The process stops its work meanwhile.");
  add_task(c, o.task);
  c.argument(o.what.path, "IMAGE", "the image").required();
  add_tag_option(c, o.what.tags, "restore the memory of this tag; can be repeated");
  c.flag("--all", o.what.all, "restore all memory of the image");
  c.text("--key", o.what.key, "FILE",
         "the key of an encrypted image: a file with 32 bytes, or 64 hexadecimal digits, which the "
         "process reads and only its user may read (chmod 600)");
  c.json(o.json);
}

// Of the commands that hold memory.
constexpr const char *end_help =
    "Asked to end (Ctrl-C, SIGTERM, SIGHUP, the end of the pipe on standard input), it says what "
    "would be lost and waits to be asked again; then it ends with status 1.";
constexpr const char *save_help =
    "when asked to end, save what is held as this image, and end with status 0";

void add_handoff(command &group) {
  command &handoff =
      group.add("handoff", "Hand the memory of a process to another process on this machine.");
  const auto [send, sent] =
      handoff.add("send", run_handoff_send,
                  "Hands the memory of a task to another process. That process waits for it "
                  "(stillmap task handoff receive). No byte is copied, and exactly one process "
                  "owns the memory, whichever of them dies.");
  add_socket(send, sent.task.socket);
  add_tag_option(send, sent.what.tags, tags_help);
  send.flag("--all", sent.what.all, "send all memory that has a tag");
  send.text("--to", sent.what.to, "SOCKET", "the socket on which the receiver listens").required();
  add_timeout_option(send, sent.timeout,
                     "how long to wait for the receiver, at each step (default: 30)");
  send.json(sent.json);

  const auto [receive, received] =
      handoff.add("receive", run_handoff_receive,
                  "Receives memory from another process, and holds it. It prints the blocks, and "
                  "runs a control server until the memory has been handed on. " +
                      std::string(end_help));
  receive
      .argument(received.socket, "SOCKET",
                "the socket to listen on: a path, or an abstract name after '@'")
      .required();
  receive.flag("--hold", received.hold, "hold the memory (default)");
  receive.flag("--free", received.hold, "free the memory at once; its contents are lost", false);
  receive.text("--control", received.control, "SOCKET",
               "the control socket (default: SOCKET.control)");
  receive.text("--save", received.save, "IMAGE", save_help);
  add_timeout_option(receive, received.timeout, "how long to wait for a sender (default: 3600)");
  receive.json(received.json);
  add_driver_options(receive, received.driver);
}

void add_holder(command &c, std::string &socket) {
  c.argument(socket, "SOCKET",
             "the holder's socket: a path, or an abstract name after '@'; programs find it in "
             "STILLMAP_HOLDER")
      .required();
}

void add_published(command &group) {
  const auto [hold, held] = group.add(
      "hold", run_hold_published,
      "Keeps memory that processes publish, for its readers. It uses no GPU: it has a descriptor "
      "of each page, so that published memory outlives its publisher, and readers that are "
      "started again find it. Asked to end (Ctrl-C, SIGTERM, SIGHUP), it says what would be lost "
      "and waits to be asked again.");
  add_holder(hold, held.socket);
  hold.flag("--end-at-once", held.end_at_once, "end when asked for the first time, as a service");
  hold.json(held.json);

  const auto [list, listed] =
      group.add("published", run_list_published,
                "Prints what a holder keeps: each generation of each name, who published it, and "
                "who reads it.");
  add_holder(list, listed.socket);
  list.json(listed.json);

  const auto [withdraw, withdrawn] = group.add(
      "withdraw", run_withdraw,
      "Gives a published name to no further reader. Its memory is freed when its last reader has "
      "ended, or released it.");
  add_holder(withdraw, withdrawn.socket);
  withdraw.argument(withdrawn.name, "NAME", "the name under which it is published").required();
  withdraw.json(withdrawn.json);
}

void add_identity(command &c, identity_options &into) {
  c.text("--credentials", into.folder, "DIR",
         "a folder with certificate.pem and key.pem, as written by stillmap task migrate "
         "credentials; or one by one:");
  c.text("--cert", into.certificate, "FILE", "our certificate, PEM");
  c.text("--key", into.key, "FILE",
         "our private key, PEM; a file that only we may read (chmod 600)");
  c.texts("--peer-fingerprint", into.fingerprints, "HEX",
          "trust the certificate with this SHA-256, in hexadecimal; can be repeated");
  c.text("--authority", into.authority, "FILE",
         "trust certificates issued by these authorities, PEM");
  c.text("--name", into.name, "NAME",
         "the name that such a certificate must contain, * for any (default: the host of --to; "
         "receive needs one)");
}

void add_credentials(command &group) {
  const auto [c, o] =
      group.add("credentials", run_migrate_credentials,
                "Creates a key and a self-signed certificate. It prints the fingerprint by which "
                "the other end trusts it. Certificates of an authority can be used instead.");
  c.argument(o.folder, "DIR",
             "the folder for certificate.pem and key.pem; created if it does not exist")
      .required();
  c.text("--name", o.name, "NAME", "the name in the certificate (default: the host name)");
  c.number("--days", o.days, 1, 36500, "N", "days for which it is valid (default: 365)");
  c.json(o.json);
}

void add_migrate_receive(command &group) {
  const auto [c, o] = group.add(
      "receive", run_migrate_receive,
      "Receives a task's memory from another machine, and holds it. It prints the blocks, and runs "
      "a control server until the memory has been handed or migrated on. It receives one task. " +
          std::string(end_help));
  c.argument(
       o.address, "ADDRESS",
       "the address to listen on: [HOST]:PORT; without HOST all addresses, port 0: a free port")
      .required();
  add_identity(c, o.identity);
  c.text("--records", o.records, "DIR",
         "the folder for ownership records, on storage that outlives the process")
      .required();
  c.text("--ucx", o.ucx, "ADDRESS",
         "also accept data channels over UCX, at this address: [HOST]:PORT. A source whose process "
         "has UCX too uses it; others use TLS. What UCX carries is neither encrypted nor "
         "authenticated: only where each host that can reach the address is trusted. Sending on "
         "from here uses it likewise. UCX_TLS in the environment selects transports");
  c.text("--control", o.control, "SOCKET", "the control socket (default: @stillmap-PID.control)");
  c.text("--save", o.save, "IMAGE", save_help);
  c.size("--max-bytes", o.max_bytes,
         "refuse a task with more memory (default: the device's memory)");
  add_timeout_option(c, o.timeout, "how long to wait for a task (default: 3600)");
  c.json(o.json);
  add_driver_options(c, o.driver);
}

void add_migrate_send(command &group) {
  const auto [c, o] =
      group.add("send", run_migrate_send,
                "Sends the memory of a task to another machine. There, stillmap task migrate "
                "receive waits. The process runs meanwhile, and stops only for its last changes. "
                "Interrupting this command cancels the migration, until the intent is on record. "
                "The process reads the files, with its own rights.");
  add_tasks(c, o, "every task that is meant, to a receiver of its own: all of them move, or none",
            "give up if not all can be stopped by then");
  add_tag_option(c, o.what.tags, tags_help);
  c.flag("--all", o.what.all, "send all memory that has a tag");
  c.text("--to", o.what.to, "ADDRESS",
         "the receiver: HOST:PORT. With --each as many as tasks, in any order, as "
         "HOST:PORT,HOST:PORT or HOST:PORT-PORT; the first keeps the group's state")
      .required();
  add_identity(c, o.identity);
  c.text("--records", o.what.records, "DIR",
         "the folder for ownership records, on storage that outlives the process (default: the "
         "process's own, if it has one)");
  c.text("--task", o.id, "HEX", "the task's id there (default: the process's own, or a new one)");
  c.number("--max-downtime", o.max_downtime_ms, 1, 86'400'000, "MS",
           "the downtime to aim for (default: " + std::to_string(o.max_downtime_ms) + ")");
  c.number("--max-rounds", o.what.max_rounds, 1u, 1'000'000u, "N",
           "the maximum number of copy rounds (default: 30)");
  c.text("--on-no-convergence", o.on_no_convergence, "stop|cancel",
         "if the task writes faster than it can be copied: stop it for longer (default), or cancel "
         "the migration");
  c.flag("--tls", o.what.only_tls,
         "send the contents over TLS, even where the task and the receiver have UCX");
  c.number("--channels", o.what.channels, 1u, 64u, "N", "data connections (default: 2)");
  c.size("--rate", o.what.bytes_per_second,
         "the maximum bandwidth, in bytes per second (default: unlimited)");
  add_timeout_option(c, o.timeout, "how long the other end may be silent (default: 10)");
  c.json(o.json);
}

void add_migrate_status(command &group) {
  const auto [c, o] =
      group.add("status", run_migrate_status,
                "Prints the owners of tasks by their records, or a migration's progress. For a "
                "folder of records it also says whether a process holds a task, and what to do "
                "about one in doubt. For a running task it prints the progress.");
  c.argument(o.place, "DIR|TASK", "a folder of ownership records; or " + std::string(task_help))
      .required();
  c.argument(o.task, "HEX", "of a folder, this task only: its id, or the beginning of it");
  c.json(o.json);
}

void add_migrate_abort(command &group) {
  const auto [c, o] = group.add("abort", run_migrate_abort,
                                "Cancels a task's migration or snapshot. It waits until that has "
                                "ended, and is refused once the intent is on record.");
  add_task(c, o.task);
  c.json(o.json);
}

void add_migrate_resolve(command &group) {
  const auto [c, o] = group.add(
      "resolve", run_migrate_resolve,
      "Asks the other end for the outcome of a migration in doubt. It is put on record. For a "
      "running task: the process asks, and continues if it owns the memory. For a folder of "
      "records, if the process has ended: this command asks (needs --task and our credentials).");
  c.argument(o.place, "DIR|TASK", "a folder of ownership records; or " + std::string(task_help))
      .required();
  c.text("--task", o.id, "HEX", "the task's id");
  c.text("--to", o.to, "ADDRESS", "its receiver: HOST:PORT (default: the one on record)");
  c.text(
      "--decider", o.decider, "ADDRESS",
      "of a task that moves with a group: HOST:PORT of the receiver that keeps the group's state "
      "(default: the one on record)");
  add_identity(c, o.identity);
  c.flag("--certificate-replaced", o.certificate_replaced,
         "for a folder: the receiver's certificate was replaced since the task was sent to it");
  add_timeout_option(c, o.timeout, "how long to ask (default: 10)");
  c.json(o.json);
  add_driver_options(c, o.driver);
}

}  // namespace

void add_task_commands(command &root) {
  command &group = root.add("task",
                            "Processes with a control server: suspend, save, restore, hand over "
                            "and migrate their memory; and "
                            "memory that they publish.");
  add_list(group);
  add_status(group);
  add_suspend(group);
  add_resume(group);
  add_snapshot(group);
  add_restore(group);
  add_handoff(group);
  add_published(group);
  command &migrate = group.add("migrate", "Move the memory of a running task to another machine.");
  migrate.notes =
      "Once on each machine:        stillmap task migrate credentials DIR\n"
      "On the destination:          stillmap task migrate receive :4711 ...\n"
      "On the source:               stillmap task migrate send SOCKET --to HOST:4711 ...\n";
  add_credentials(migrate);
  add_migrate_receive(migrate);
  add_migrate_send(migrate);
  add_migrate_status(migrate);
  add_migrate_abort(migrate);
  add_migrate_resolve(migrate);
}

}  // namespace stillmap::tool

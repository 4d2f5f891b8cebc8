// The class SharedQuota: arguments and results of python_quota.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <chrono>

#include "python/src/errors.h"
#include "python/src/quota.h"
#include "python/src/seconds.h"

namespace stillmap::python {
namespace {

constexpr std::array kinds = {reclaim_kind::cached, reclaim_kind::evictable, reclaim_kind::task};

double seconds_of(std::chrono::nanoseconds t) {
  return std::chrono::duration<double>(t).count();
}

reclaim_kind kind_of(const std::string &name) {
  for (const reclaim_kind k : kinds) {
    if (name == name_of(k)) return k;
  }
  raise_invalid("SharedQuota.add_reclaimer",
                "the kind is none of 'cached', 'evictable' and 'task'");
}

quota_terms terms_of(std::uint64_t minimum, std::optional<std::uint64_t> maximum,
                     std::int32_t priority) {
  return {.minimum = minimum, .maximum = maximum.value_or(UINT64_MAX), .priority = priority};
}

const char *name_of_change(quota_change c) {
  return c == quota_change::applied ? "applied" : "deferred";
}

nb::object maximum_of(const quota_terms &t) {
  return t.maximum == UINT64_MAX ? nb::none() : nb::object(nb::int_(t.maximum));
}

nb::dict dict_of(const quota_participant &p) {
  nb::list offers;
  for (const reclaim_kind k : kinds) {
    if (p.offers[static_cast<std::size_t>(k)]) offers.append(name_of(k));
  }
  nb::dict d;
  d["process"] = p.process;
  d["reserved"] = p.reserved;
  d["minimum"] = p.terms.minimum;
  d["maximum"] = maximum_of(p.terms);
  d["priority"] = p.terms.priority;
  d["offers"] = offers;
  d["listens"] = p.listens;
  d["waiting"] = p.waiting;
  return d;
}

nb::dict by_kind(const std::array<std::uint64_t, reclaim_kinds> &figures) {
  nb::dict d;
  for (const reclaim_kind k : kinds) d[name_of(k)] = figures[static_cast<std::size_t>(k)];
  return d;
}

nb::dict dict_of(const quota_wait_stats &w) {
  nb::list recent;
  for (const std::chrono::nanoseconds t : w.recent) recent.append(seconds_of(t));
  nb::dict d;
  d["waits"] = w.waits;
  d["granted"] = w.granted;
  d["most_overtaken"] = w.most_overtaken;
  d["busy"] = w.busy;
  d["total_seconds"] = seconds_of(w.total);
  d["longest_seconds"] = seconds_of(w.longest);
  d["recent_seconds"] = recent;
  d["asked_for"] = by_kind(w.asked_for);
  d["given"] = by_kind(w.given);
  return d;
}

nb::dict dict_of(const quota_stats &s) {
  nb::list participants;
  for (const quota_participant &p : s.participants) participants.append(dict_of(p));
  nb::dict d;
  d["limit"] = s.limit;
  d["reserved"] = s.reserved;
  d["device_bytes"] = s.device_bytes;
  d["outside"] = s.outside;
  d["revision"] = s.revision;
  d["participants"] = participants;
  return d;
}

nb::object process_or_none(std::uint32_t process) {
  return process == 0 ? nb::none() : nb::object(nb::int_(process));
}

nb::dict dict_of(const quota_event &e) {
  const bool has_kind = e.action == quota_action::asked || e.action == quota_action::answered;
  nb::dict d;
  d["number"] = e.number;
  d["time"] = static_cast<double>(e.time_ns) / 1e9;
  d["action"] = name_of(e.action);
  d["process"] = process_or_none(e.process);
  d["other"] = process_or_none(e.other);
  d["kind"] = has_kind ? nb::object(nb::str(name_of(e.kind))) : nb::none();
  d["bytes"] = e.bytes;
  d["waited_seconds"] = seconds_of(e.waited);
  return d;
}

// Runs `call` on the quota without the GIL; the last reference to it may be dropped there, too.
template <class Call>
auto on_quota(const python_quota &self, const char *operation, Call call) {
  auto quota = self.use(operation);
  return without_gil([&] {
    auto answer = call(*quota);
    quota.reset();
    return answer;
  });
}

// The callable may refer to the reclaimer: the collector has to see the circle.
int traverse_reclaimer(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<python_reclaimer>(self)->function().ptr());
  return 0;
}
int clear_reclaimer(PyObject *self) {
  if (nb::inst_ready(self)) nb::inst_ptr<python_reclaimer>(self)->function().reset();
  return 0;
}
const PyType_Slot reclaimer_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void *>(traverse_reclaimer)},
    {Py_tp_clear, reinterpret_cast<void *>(clear_reclaimer)},
    {0, nullptr}};

void bind_reclaimer(nb::module_ &m) {
  nb::class_<python_reclaimer>(
      m, "QuotaReclaimer", nb::is_final(), nb::type_slots(reclaimer_slots),
      nb::is_weak_referenceable(),
      "What SharedQuota.add_reclaimer returns. The function is called until this object is closed "
      "or ends.")
      .def("close", &python_reclaimer::close,
           "Waits until no call of the function runs, unless that call is the caller.")
      .def_prop_ro("closed", &python_reclaimer::closed)
      .def_prop_ro("kind", [](const python_reclaimer &self) { return name_of(self.kind()); })
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_reclaimer &self, const nb::args &) { self.close(); },
          nb::arg("args").none());
}

void bind_room(nb::module_ &m) {
  nb::class_<python_room>(m, "QuotaRoom", nb::is_final(), "What SharedQuota.room returns.")
      .def("__enter__",
           [](nb::handle self) {
             nb::cast<python_room &>(self).enter();
             return self;
           })
      .def(
          "__exit__", [](python_room &self, const nb::args &) { self.exit(); },
          nb::arg("args").none())
      .def_prop_ro("nbytes", &python_room::bytes);
}

void bind_memory(nb::class_<python_quota> &c) {
  c.def(
       "reserve",
       [](const python_quota &self, std::uint64_t nbytes) {
         check(on_quota(self, "SharedQuota.reserve",
                        [&](embedded_quota &quota) { return quota.reserve(nbytes); }));
       },
       nb::arg("nbytes"),
       "Reserves all, or nothing; asks nobody, and does not wait. Raises OutOfMemoryError: too "
       "little is\n"
       "left, or others wait for it.")
      .def(
          "release",
          [](const python_quota &self, std::uint64_t nbytes) {
            check(on_quota(self, "SharedQuota.release",
                           [&](embedded_quota &quota) { return quota.release(nbytes); }));
          },
          nb::arg("nbytes"),
          "Returns bytes. Raises InvalidArgumentError: more than is reserved here.")
      .def(
          "room",
          [](const python_quota &self, std::uint64_t nbytes) {
            return new python_room(self.use("SharedQuota.room"), nbytes);
          },
          nb::rv_policy::take_ownership, nb::arg("nbytes"),
          "`with quota.room(nbytes):` asks others for memory, and waits until so many bytes are "
          "reserved for\n"
          "this thread, `timeout` at most. What the thread reserves inside, also by an allocator, "
          "comes out of\n"
          "them; what is left goes back at the end. Raises BusyError: others keep the memory "
          "(str() says who),\n"
          "or a reclaimer is the caller. Raises OutOfMemoryError: the maximum, or the minima of "
          "others, never\n"
          "allow it.");
}

void bind_giving(nb::class_<python_quota> &c) {
  c.def(
       "add_reclaimer",
       [](const python_quota &self, const std::string &kind, nb::object function) {
         const auto quota = self.use("SharedQuota.add_reclaimer");
         return new python_reclaimer(quota, kind_of(kind), std::move(function));
       },
       nb::rv_policy::take_ownership, nb::arg("kind"), nb::arg("function"),
       "`function(nbytes)` is called when others need memory: it releases so much if it can, and "
       "returns the\n"
       "bytes released, or RECLAIM_LATER: it can release more at the next poll(). `kind`: 'cached' "
       "(free memory\n"
       "that is kept), 'evictable' (contents that come back when they are used), 'task' (all "
       "memory; asked for\n"
       "by poll() only). The function is called, on any thread, as long as the returned object "
       "lives. It must\n"
       "not ask for memory of a quota. An exception counts as 0 bytes: poll() raises it; on other "
       "threads it\n"
       "goes to sys.unraisablehook, and is counted in stats()['background_errors'].")
      .def(
          "start_thread",
          [](const python_quota &self) {
            check(on_quota(self, "SharedQuota.start_thread",
                           [](embedded_quota &quota) { return quota.shared().start_thread(); }));
          },
          "Starts a thread that answers those that ask for cached and evictable memory. Without it "
          "nothing is\n"
          "given until poll(). Once is enough.")
      .def("poll", &python_quota::poll,
           "Gives back what others ask for, of all kinds, on this thread. Returns the bytes "
           "released.");
}

void bind_control(nb::class_<python_quota> &c) {
  c.def(
       "set_limit",
       [](const python_quota &self, std::uint64_t nbytes,
          std::optional<std::uint64_t> if_revision) {
         return name_of_change(
             value_of(on_quota(self, "SharedQuota.set_limit", [&](embedded_quota &quota) {
               return quota.shared().set_limit(nbytes, if_revision);
             })));
       },
       nb::arg("nbytes"), nb::arg("if_revision").none() = nb::none(),
       "Sets the limit for all. Returns 'applied', or 'deferred': more is reserved now, and "
       "nothing "
       "is granted\n"
       "until enough is released. Raises BusyError where the revision is no longer `if_revision`.")
      .def(
          "stats",
          [](const python_quota &self) {
            const quota_stats s =
                value_of(on_quota(self, "SharedQuota.stats",
                                  [](embedded_quota &quota) { return quota.shared().stats(); }));
            nb::dict d = dict_of(s);
            d["own"] = s.own;
            d["waits"] = dict_of(s.waits);
            return d;
          },
          "Bytes: `limit`, `reserved` by all, `own`; of the device `device_bytes`, and `outside`, "
          "what others\n"
          "than participants used when memory was short last; `revision`; `participants`, a dict "
          "of each; and\n"
          "`waits` of this one.")
      .def_static(
          "stats_of",
          [](const std::string &name) {
            return dict_of(value_of(without_gil([&] { return shared_quota::stats_of(name); })));
          },
          nb::arg("name"), "stats() of a quota that this process need not take part in.")
      .def_static(
          "events_of",
          [](const std::string &name) {
            const auto events =
                value_of(without_gil([&] { return shared_quota::events_of(name); }));
            nb::list out;
            for (const quota_event &e : events) out.append(dict_of(e));
            return out;
          },
          nb::arg("name"), "The latest 512 decisions of all participants, oldest first.")
      .def_static(
          "set_limit_of",
          [](const std::string &name, std::uint64_t nbytes,
             std::optional<std::uint64_t> if_revision) {
            return name_of_change(value_of(
                without_gil([&] { return shared_quota::set_limit(name, nbytes, if_revision); })));
          },
          nb::arg("name"), nb::arg("nbytes"), nb::arg("if_revision").none() = nb::none(),
          "set_limit() of a quota that this process need not take part in.")
      .def_static(
          "set_terms",
          [](const std::string &name, std::uint32_t process, std::uint64_t minimum,
             std::optional<std::uint64_t> maximum, std::int32_t priority,
             std::optional<std::uint64_t> if_revision) {
            const quota_terms terms = terms_of(minimum, maximum, priority);
            return name_of_change(value_of(without_gil(
                [&] { return shared_quota::set_terms(name, process, terms, if_revision); })));
          },
          nb::arg("name"), nb::arg("process"), nb::kw_only(), nb::arg("minimum") = 0,
          nb::arg("maximum").none() = nb::none(), nb::arg("priority") = 0,
          nb::arg("if_revision").none() = nb::none(),
          "Sets the terms of the participants of a process: all three. Returns as set_limit().")
      .def_static(
          "remove",
          [](const std::string &name) {
            check(without_gil([&] { return shared_quota::remove(name); }));
          },
          nb::arg("name"),
          "Deletes the file. Participants keep what they have; the next SharedQuota creates a new "
          "one.");
}

void construct_quota(python_quota *self, const std::string &name, std::uint64_t limit,
                     std::uint64_t minimum, std::optional<std::uint64_t> maximum,
                     std::int32_t priority, double timeout, std::optional<int> device) {
  shared_quota_options options;
  options.limit = limit;
  options.terms = terms_of(minimum, maximum, priority);
  options.timeout = milliseconds_of("SharedQuota", timeout);
  new (self) python_quota(name, std::move(options), device);
}

}  // namespace

void bind_quota(nb::module_ &m) {
  m.attr("RECLAIM_LATER") = reclaim_later;
  bind_room(m);
  bind_reclaimer(m);
  nb::class_<python_quota> c(
      m, "SharedQuota", nb::is_final(), nb::is_weak_referenceable(),
      "A limit on device memory that several processes share. One that needs more than is left "
      "asks "
      "the others,\n"
      "which give back what they can spare, and waits for it. docs/sharing.md\n"
      "Threads: safe. A forked child is no participant.");
  c.def(
      "__init__", &construct_quota, nb::arg("name"), nb::arg("limit") = 0, nb::kw_only(),
      nb::arg("minimum") = 0, nb::arg("maximum").none() = nb::none(), nb::arg("priority") = 0,
      nb::arg("timeout") = 10.0, nb::arg("device").none() = nb::none(),
      "Opens the quota, or creates it with the limit, in bytes; 0: it exists. `name`: of a file in "
      "/dev/shm,\n"
      "or a path. `minimum`: granted whatever others hold; `maximum`: never more, None: no bound; "
      "`priority`:\n"
      "served before lower ones. `timeout`: how many seconds a request waits for others; 0: it "
      "asks nobody.\n"
      "`device`: what others use on it counts, too; None: only the limit does.");
  bind_memory(c);
  bind_giving(c);
  bind_control(c);
  c.def("close", &python_quota::close,
        "Leaves the quota, once no allocator of this process uses it. Every later call raises\n"
        "InvalidArgumentError.")
      .def_prop_ro("closed", &python_quota::closed)
      .def_prop_ro("name", &python_quota::name)
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_quota &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_quota &self) {
        return "<stillmap.SharedQuota '" + self.name() + (self.closed() ? "', closed>" : "'>");
      });
  // At the end of the interpreter a reclaimer could wait for a GIL that never comes, and what ends the quota for it.
  constexpr std::chrono::seconds most{5};
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([most] {
    const released_gil released;
    embedded_quota::stop_reclaimers(most);
  }));
}

}  // namespace stillmap::python

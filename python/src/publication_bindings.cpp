// Publishing and attaching: the classes PublicationHolder and PublicationClaim, and the functions.
#include <nanobind/stl/string.h>

#include <span>
#include <variant>

#include "python/src/devices.h"
#include "python/src/host_bytes.h"
#include "python/src/paths.h"
#include "python/src/progress.h"
#include "python/src/publication.h"
#include "python/src/seconds.h"
#include "python/src/text.h"
#include "stillmap/checkpoint/publication/publication.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

using publication::attach_options;
using publication::held_publication;
using publication::publish_options;
using publication::published_memory;

nb::dict dict_of(const held_publication &p) {
  nb::list readers;
  for (const pid_t reader : p.readers) readers.append(reader);
  nb::dict d;
  d["name"] = str_of(p.name);
  d["generation"] = p.generation;
  d["newest"] = p.newest;
  d["device"] = text_of_uuid(p.device);
  d["pages"] = p.pages;
  d["nbytes"] = p.bytes;
  d["publisher"] = p.publisher;
  d["readers"] = readers;
  return d;
}

nb::list list_of(const std::vector<held_publication> &all) {
  nb::list out;
  for (const held_publication &p : all) out.append(dict_of(p));
  return out;
}

nb::dict dict_of(const published_memory &p) {
  nb::dict d;
  d["generation"] = p.generation;
  d["id"] = p.id.is_zero() ? nb::none() : nb::object(nb::str(p.id.text().c_str()));
  d["pages"] = p.pages;
  d["nbytes"] = p.bytes;
  return d;
}

// ---- publishing ----

// `send` publishes the tags with the options, without the GIL.
template <class Send>
nb::dict publish_tags(const char *operation, nb::handle tags, int ordinal, nb::handle metadata,
                      bool digests, double timeout, Send send) {
  const std::vector<std::string> names = tags_of(tags);
  const host_bytes contents(metadata);
  progress_call cancel{nb::none()};
  publish_options options;
  options.timeout = milliseconds_of(operation, timeout);
  options.cancel = cancel.token();
  options.metadata = {static_cast<const std::byte *>(contents.data()), contents.size()};
  options.digests = digests;
  auto published = interruptible(cancel, [&]() -> result<published_memory> {
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    return send(d, std::span<const std::string>(names), options);
  });
  cancel.rethrow();
  return dict_of(value_of(std::move(published)));
}

nb::dict publish_memory(const std::string &name, nb::handle tags, nb::handle holder, int ordinal,
                        nb::handle metadata, bool digests, double timeout) {
  const std::string address = path_of(holder);
  return publish_tags(
      "stillmap.publish", tags, ordinal, metadata, digests, timeout,
      [&](const device &d, std::span<const std::string> names, const publish_options &options) {
        return publication::publish(d, address, name, names, options);
      });
}

nb::dict publish_claimed(python_claim &self, nb::handle tags, int ordinal, nb::handle metadata,
                         bool digests, double timeout) {
  constexpr const char *op = "PublicationClaim.publish";
  auto claim = self.take(op);
  return publish_tags(
      op, tags, ordinal, metadata, digests, timeout,
      [&](const device &d, std::span<const std::string> names, const publish_options &options) {
        return std::move(claim).publish(d, names, options);
      });
}

// ---- attaching ----

struct attach_arguments {
  int ordinal;
  std::uint64_t generation;
  bool relocate;
  double wait;
  bool verify;
  double timeout;
};

// `run` attaches with the options, without the GIL.
template <class Run>
auto attach_with(const char *operation, const attach_arguments &a, Run run) {
  progress_call cancel{nb::none()};
  attach_options options;
  options.timeout = milliseconds_of(operation, a.timeout);
  options.wait = milliseconds_of(operation, a.wait);
  options.cancel = cancel.token();
  options.generation = a.generation;
  options.verify = a.verify;
  if (a.relocate) options.where = checkpoint::placement::anywhere;
  auto done =
      interruptible(cancel, [&]() -> std::invoke_result_t<Run, const device &, attach_options &> {
        STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(a.ordinal));
        return run(d, options);
      });
  cancel.rethrow();
  return value_of(std::move(done));
}

nb::object owned_attached(publication::attached_memory m) {
  return nb::cast(new python_attached(std::move(m)), nb::rv_policy::take_ownership);
}

nb::object attach_memory(const std::string &name, nb::handle holder, int ordinal,
                         std::uint64_t generation, bool relocate, double wait, bool verify,
                         double timeout) {
  const std::string address = path_of(holder);
  return owned_attached(attach_with("stillmap.attach",
                                    {ordinal, generation, relocate, wait, verify, timeout},
                                    [&](const device &d, const attach_options &options) {
                                      return publication::attach(d, address, name, options);
                                    }));
}

nb::object attach_or_claim_memory(const std::string &name, nb::handle holder, int ordinal,
                                  bool relocate, double wait, bool verify, double timeout) {
  const std::string address = path_of(holder);
  auto found =
      attach_with("stillmap.attach_or_claim", {ordinal, 0, relocate, wait, verify, timeout},
                  [&](const device &d, const attach_options &options) {
                    return publication::attach_or_claim(d, address, name, options);
                  });
  if (auto *const attached = std::get_if<publication::attached_memory>(&found)) {
    return owned_attached(std::move(*attached));
  }
  return nb::cast(new python_claim(std::get<publication::claim>(std::move(found))),
                  nb::rv_policy::take_ownership);
}

// ---- holders ----

void construct_holder(python_holder *self, nb::handle given, double timeout,
                      std::size_t max_connections) {
  const std::string address = path_of(given);
  publication::holder_options options;
  options.timeout = milliseconds_of("PublicationHolder", timeout);
  options.max_connections = max_connections;
  new (self) python_holder(value_of(
      without_gil([&] { return publication::holder::create(address, std::move(options)); })));
}

void bind_holder(nb::module_ &m) {
  nb::class_<python_holder>(
      m, "PublicationHolder", nb::is_final(), nb::is_weak_referenceable(),
      "Keeps published memory while it exists, also when the publisher has ended. It uses no GPU: "
      "it has one\n"
      "file descriptor for each page (`ulimit -n`), and a sleeping thread. It serves processes of "
      "the "
      "same\n"
      "user and of root, which can read, replace and withdraw everything.\n"
      "Threads: safe. Fork: the child has no holder.")
      .def("__init__", &construct_holder, nb::arg("address"), nb::kw_only(),
           nb::arg("timeout") = 10.0, nb::arg("max_connections") = 64,
           "Listens at `address`: a path, or '@' and an abstract name. timeout: seconds, of each "
           "message.\n"
           "max_connections: clients that are served at once. Raises BusyError (the address is in "
           "use).")
      .def_prop_ro("address", [](const python_holder &self) { return str_of(self.address()); })
      .def(
          "publications",
          [](const python_holder &self) {
            return list_of(self.with(
                [](const publication::holder &h) -> result<std::vector<held_publication>> {
                  return h.publications();
                }));
          },
          "As stillmap.publications().")
      .def(
          "close", [](python_holder &self) { self.close(); },
          "Ends all leases. What no process has mapped is freed.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_holder &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_holder &self) {
        return "<stillmap.PublicationHolder '" + self.address() + "'>";
      });
}

void bind_claim(nb::module_ &m) {
  nb::class_<python_claim>(
      m, "PublicationClaim", nb::is_final(), nb::is_weak_referenceable(),
      "The right to publish a name first, from attach_or_claim(). Meanwhile the holder lets others "
      "wait that\n"
      "want to attach. It ends with publish(), close(), the object, or the process.")
      .def_prop_ro("name", [](const python_claim &self) { return str_of(self.name()); })
      .def_prop_ro("closed", &python_claim::closed)
      .def("publish", &publish_claimed, nb::arg("tags"), nb::kw_only(), nb::arg("device") = 0,
           nb::arg("metadata") = nb::bytes("", 0), nb::arg("digests") = true,
           nb::arg("timeout") = 10.0,
           "As stillmap.publish(), for the claimed name. The claim ends, also on failure.")
      .def("close", &python_claim::close, "Gives the claim up: another process gets it.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_claim &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_claim &self) {
        return "<stillmap.PublicationClaim '" + self.name() + (self.closed() ? "', closed>" : "'>");
      });
}

void bind_functions(nb::module_ &m) {
  m.def("publish", &publish_memory, nb::arg("name"), nb::arg("tags"), nb::kw_only(),
        nb::arg("holder"), nb::arg("device") = 0, nb::arg("metadata") = nb::bytes("", 0),
        nb::arg("digests") = true, nb::arg("timeout") = 10.0,
        "Publishes all memory of these tags under a name, as its next generation: any number of "
        "processes of\n"
        "the machine attach() it, without a copy. From then on it is read-only here, for the "
        "device: a write\n"
        "is a fault. The holder at the address `holder` keeps it when this process ends.\n"
        "The pages must be exportable: GrowableBuffer(exportable=True). Give it an address that is "
        "free in every\n"
        "process, too (hint=). Waits for the device; no other thread may map or unmap memory of "
        "the tags.\n"
        "metadata: bytes that readers get, at most 64 MiB. digests: of the contents, computed on "
        "the device.\n"
        "timeout: seconds, of each message. Returns generation, id, pages, nbytes. Failure: as "
        "before, unless\n"
        "the reason says that the holder may have published it.\n"
        "Raises InvalidArgumentError (no such tag), NotSupportedError (pages that are not "
        "exportable, or\n"
        "another process's), BusyError (suspended; used outside of the tags), CancelledError, "
        "OSError.");
  m.def("attach", &attach_memory, nb::arg("name"), nb::kw_only(), nb::arg("holder"),
        nb::arg("device") = 0, nb::arg("generation") = 0, nb::arg("relocate") = false,
        nb::arg("wait") = 0.0, nb::arg("verify") = false, nb::arg("timeout") = 10.0,
        "Maps what is published under the name, at the publisher's addresses, read-only for the "
        "device.\n"
        "generation: 0 is the newest. relocate: at other addresses. wait: seconds until somebody "
        "publishes it.\n"
        "verify: compares the contents with the publisher's digests. Ctrl-C cancels. Failure: "
        "nothing is mapped.\n"
        "Raises InvalidArgumentError (not published; on another device), BusyError (not published "
        "in time; an\n"
        "address is in use here), CorruptError, NotSupportedError, OSError.");
  m.def("attach_or_claim", &attach_or_claim_memory, nb::arg("name"), nb::kw_only(),
        nb::arg("holder"), nb::arg("device") = 0, nb::arg("relocate") = false,
        nb::arg("wait") = 0.0, nb::arg("verify") = false, nb::arg("timeout") = 10.0,
        "As attach(), and where nothing is published, one of the processes that ask gets a "
        "PublicationClaim\n"
        "instead; the others wait until it has published, for `wait` seconds, or get the claim if "
        "it gives up.");
  m.def(
      "publications",
      [](nb::handle holder, double timeout) {
        const std::string address = path_of(holder);
        publication::client_options options;
        options.timeout = milliseconds_of("stillmap.publications", timeout);
        return list_of(value_of(without_gil([&] { return publication::list(address, options); })));
      },
      nb::arg("holder"), nb::kw_only(), nb::arg("timeout") = 10.0,
      "What a holder has, by name and generation: a dict each, with name, generation, newest "
      "(attach() gives\n"
      "it), device (UUID), pages, nbytes, publisher and readers (process ids). Makes no driver "
      "call.");
  m.def(
      "withdraw",
      [](const std::string &name, nb::handle holder, double timeout) {
        const std::string address = path_of(holder);
        publication::client_options options;
        options.timeout = milliseconds_of("stillmap.withdraw", timeout);
        return value_of(without_gil([&] { return publication::withdraw(address, name, options); }));
      },
      nb::arg("name"), nb::kw_only(), nb::arg("holder"), nb::arg("timeout") = 10.0,
      "Lets no further process attach the newest generation, which goes with its last reader. "
      "Returns its\n"
      "number. Raises InvalidArgumentError: nothing is published under the name.");
}

}  // namespace

publication::claim python_claim::take(const char *operation) {
  if (!claim_) raise_invalid(operation, "the claim has ended");
  publication::claim taken = std::move(*claim_);
  claim_.reset();
  return taken;
}

void bind_publication(nb::module_ &m) {
  bind_holder(m);
  bind_attached_memory(m);
  bind_claim(m);
  bind_functions(m);
}

}  // namespace stillmap::python

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {

finding migration_pages(const capabilities &can, bool digests) {
  finding f{"migration", "migration", works::yes,
            "memory of a running task can be sent to, and received from, another machine", ""};
  if (!can.vmm) {
    f.does = works::no;
    f.says = "needs virtual memory management at both ends";
    f.fix = "a device or vGPU type that has it";
  } else if (!digests) {
    f.does = works::limited;
    f.says = "without digests computed by the device, the task is stopped for the whole copy";
    f.fix = "see: snapshots: digests";
  }
  return f;
}

// Creates a listener with a new key: all that a migration needs of OpenSSL to begin.
finding migration_tls() {
  finding f{"migration_tls", "migration: TLS 1.3", works::yes,
            "OpenSSL can create keys and listen; both ends need a certificate", ""};
  std::string why;
  auto mine = migration::make_self_signed("stillmap doctor");
  if (!mine) {
    why = mine.error().message();
  } else if (const auto print = migration::fingerprint_of(*mine); !print) {
    why = print.error().message();
  } else {
    mine->fingerprints = {*print};
    const auto at = migration::create_tls_acceptor("127.0.0.1:0", *mine);
    if (!at) why = at.error().message();
  }
  if (why.empty()) return f;
  f.does = works::no;
  f.says = why;
  f.fix =
      "OpenSSL 3 with TLS 1.3 allowed (MinProtocol, MaxProtocol and Ciphersuites in openssl.cnf)";
  return f;
}

}  // namespace stillmap::tool

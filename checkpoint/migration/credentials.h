// TLS identity of one end of a migration, and the peers it trusts.
// docs/migration.md#authentication
#pragma once

#include <string>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::migration {

// A certificate with its private key, and the trusted peers: by certificate authority, by
// fingerprint, or both.
struct credentials {
  // PEM: our certificate first, then its intermediate certificates.
  std::string certificate;
  // PEM: our private key.
  std::string key;
  // PEM: certificate authorities. A peer whose certificate one of them has issued is trusted.
  std::string authorities;
  // The DNS name or IP address that a certificate issued by an authority must contain; "*": any.
  // Empty: the host that a source connects to. A destination with an authority needs a name, for
  // an authority issues certificates to others, too.
  std::string name;
  // SHA-256 of trusted certificates, in hexadecimal. The issuer of these does not matter.
  std::vector<std::string> fingerprints;
};

// Reads credentials from PEM files. An empty path leaves its field empty.
// Errors: EACCES (others than its owner may read or write the key's file; where it belongs to another
//         user, everybody may read it or its group write it), not_supported (not a regular file), the
//         system's, invalid_argument (larger than 1 MiB); the subject is the path.
result<credentials> load_credentials(const std::string &certificate, const std::string &key,
                                     const std::string &authorities = {});

// Generates a key and a self-signed certificate that is valid for `days`. For peers that exchange
// fingerprints instead of using an authority.
// Errors: not_supported (OpenSSL failed).
result<credentials> make_self_signed(const std::string &name, int days = 1);

// SHA-256 of the first certificate, in hexadecimal.
// Errors: invalid_argument (there is no certificate).
result<std::string> fingerprint_of(const credentials &c);

}  // namespace stillmap::migration

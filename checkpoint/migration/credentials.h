// Who we are to the other side, and whom we believe. docs/migration.md#who-is-who
#pragma once

#include <string>
#include <vector>

#include "stillmap/vmm/error.h"

namespace stillmap::migration {

// A certificate with its key, and either an authority or certificates that are known one by one.
struct credentials {
  std::string certificate;  // PEM, ours first, then those between it and an authority
  std::string key;          // PEM
  std::string authorities;  // PEM: whoever has a certificate from one of them is believed, and
  // has to have this name (a DNS name or an address); empty: any that an authority knows.
  std::string name;
  // SHA-256 of certificates, in hexadecimal: who has one of these is believed, whoever signed it.
  std::vector<std::string> fingerprints;
};

// From files; an empty path leaves out what it would have. Errors: the system's, invalid_argument
// (larger than 1 MiB).
result<credentials> load_credentials(const std::string &certificate, const std::string &key,
                                     const std::string &authorities = {});

// A new key and a certificate that it signs itself, good for `days`: for who exchanges fingerprints
// by other ways. Errors: not_supported (OpenSSL's).
result<credentials> make_self_signed(const std::string &name, int days = 1);

// SHA-256 of the first certificate, in hexadecimal. Errors: invalid_argument (there is none).
result<std::string> fingerprint_of(const credentials &c);

}  // namespace stillmap::migration

// Keys that encrypt and sign images. docs/image_format.md#encryption
#pragma once

#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

using secret_key = checkpoint::fixed_bytes<32, struct secret_key_tag>;    // random; encrypts
using signing_key = checkpoint::fixed_bytes<32, struct signing_key_tag>;  // an Ed25519 private key
using verifying_key = checkpoint::fixed_bytes<32, struct verifying_key_tag>;  // its public half

// Errors:  invalid_argument (not a valid key); errors of the system's random source.
// Threads: safe.
result<secret_key> make_secret_key();
result<signing_key> make_signing_key();
result<verifying_key> verifying_key_of(const signing_key &key);

}  // namespace stillmap::image

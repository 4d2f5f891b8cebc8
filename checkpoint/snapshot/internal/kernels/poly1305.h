// Poly1305 (RFC 8439, section 2.5) of whole words of 16 bytes, divided among threads: the arithmetic
// modulo 2^130 - 5 in five limbs of 26 bits. Compiles for the device and for the host, where it is
// tested against OpenSSL.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define STILLMAP_BOTH __host__ __device__ __forceinline__
#else
#define STILLMAP_BOTH inline
#endif

namespace stillmap_kernels {

constexpr unsigned word_bytes = 16;
constexpr unsigned limb_count = 5;
constexpr uint32_t limb_mask = (1u << 26) - 1;

// A number modulo 2^130 - 5. Limbs may be up to twice as large as 26 bits allow.
struct element {
  uint32_t limb[limb_count];
};
// A sum of up to 2^32 elements.
struct element_sum {
  uint64_t limb[limb_count];
};

STILLMAP_BOTH element split(uint64_t low, uint64_t high) {
  return {{static_cast<uint32_t>(low) & limb_mask, static_cast<uint32_t>(low >> 26) & limb_mask,
           static_cast<uint32_t>(low >> 52 | high << 12) & limb_mask,
           static_cast<uint32_t>(high >> 14) & limb_mask, static_cast<uint32_t>(high >> 40)}};
}

// The first half of a key: the point at which the polynomial is evaluated.
STILLMAP_BOTH element clamped(uint64_t low, uint64_t high) {
  return split(low & 0x0FFFFFFC0FFFFFFFu, high & 0x0FFFFFFC0FFFFFFCu);
}

// A word of the message, little-endian, as the coefficient that it is: 2^128 above its bytes.
STILLMAP_BOTH element coefficient(uint64_t low, uint64_t high) {
  element e = split(low, high);
  e.limb[4] |= 1u << 24;
  return e;
}

STILLMAP_BOTH element plus(const element &a, const element &b) {
  element sum = a;
  for (unsigned i = 0; i < limb_count; ++i) sum.limb[i] += b.limb[i];
  return sum;
}

// sum + a * b. As one instruction on the device: the compiler makes products of 64 bits of this.
STILLMAP_BOTH uint64_t multiply_add(uint64_t sum, uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(sum) : "r"(a), "r"(b));
  return sum;
#else
  return sum + static_cast<uint64_t>(a) * b;
#endif
}

// Requires: limbs of `a` below 2^28, of `b` below 2^27. Ensures: limbs of the result below 2^27.
STILLMAP_BOTH element times(const element &a, const element &b) {
  const uint32_t *const x = a.limb, *const y = b.limb;
  // 2^130 = 5: what passes the top limb comes back at the bottom, five times.
  const uint32_t y1 = y[1] * 5, y2 = y[2] * 5, y3 = y[3] * 5, y4 = y[4] * 5;
  const uint32_t by[limb_count][limb_count] = {{y[0], y4, y3, y2, y1},
                                               {y[1], y[0], y4, y3, y2},
                                               {y[2], y[1], y[0], y4, y3},
                                               {y[3], y[2], y[1], y[0], y4},
                                               {y[4], y[3], y[2], y[1], y[0]}};
  uint64_t d[limb_count] = {};
  for (unsigned i = 0; i < limb_count; ++i) {
    for (unsigned k = 0; k < limb_count; ++k) d[i] = multiply_add(d[i], x[k], by[i][k]);
  }
  for (unsigned i = 0; i + 1 < limb_count; ++i) d[i + 1] += d[i] >> 26;
  d[0] = (d[0] & limb_mask) + (d[4] >> 26) * 5;
  element e;
  for (unsigned i = 0; i < limb_count; ++i) e.limb[i] = static_cast<uint32_t>(d[i]) & limb_mask;
  e.limb[1] += static_cast<uint32_t>(d[0] >> 26);
  return e;
}

// What one of `of` threads multiplies with: its part of a message of n * of words is
//   (((w[t] * step + w[t + of]) * step + w[t + 2 of]) * step + ...) * own,
// and the sum of all parts is the value of the polynomial.
struct thread_powers {
  element step;  // r^of
  element own;   // r^(of - t)
};
// Requires: `of` is a power of two, t < of.
STILLMAP_BOTH thread_powers powers_for(const element &r, unsigned t, unsigned of) {
  thread_powers p{r, {{1, 0, 0, 0, 0}}};
  const unsigned exponent = of - t;
  for (unsigned bit = 1; bit < of; bit *= 2) {
    if ((exponent & bit) != 0) p.own = times(p.own, p.step);
    p.step = times(p.step, p.step);
  }
  if (t == 0) p.own = p.step;
  return p;
}

struct tag {
  uint64_t low, high;
};
// The sum as the smallest number, plus the second half of the key, modulo 2^128.
STILLMAP_BOTH tag finish(element_sum sum, uint64_t add_low, uint64_t add_high) {
  uint64_t *const h = sum.limb;
  for (unsigned pass = 0; pass < 3; ++pass) {
    for (unsigned i = 0; i < limb_count; ++i) {
      const uint64_t carry = h[i] >> 26;
      h[i] &= limb_mask;
      if (i + 1 < limb_count) {
        h[i + 1] += carry;
      } else {
        h[0] += carry * 5;
      }
    }
  }
  // Below 2^130 now. Subtracts the modulus where h + 5 reaches 2^130.
  uint64_t carry = 5;
  uint64_t less[limb_count];
  for (unsigned i = 0; i < limb_count; ++i) {
    carry += h[i];
    less[i] = carry & limb_mask;
    carry >>= 26;
  }
  if (carry != 0) {
    for (unsigned i = 0; i < limb_count; ++i) h[i] = less[i];
  }
  const uint64_t low = h[0] | h[1] << 26 | h[2] << 52;
  const uint64_t high = h[2] >> 12 | h[3] << 14 | h[4] << 40;
  const uint64_t sum_low = low + add_low;
  return {sum_low, high + add_high + (sum_low < low ? 1 : 0)};
}

}  // namespace stillmap_kernels

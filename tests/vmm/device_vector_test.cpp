// device_vector with elements of several sizes, on pages and on the copying fallback.
#include "stillmap/vmm/device_vector.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using testing::fails_with;
using testing::outcome;

template <std::size_t N>
struct odd {  // N bytes, alignment 1
  std::array<unsigned char, N> bytes;
  bool operator==(const odd &) const = default;
};

template <class Element, bool Copying>
struct subject {
  using element = Element;
  static constexpr bool copying = Copying;
};

template <class Subject>
class device_vector_test : public testing::buffer_test {
 protected:
  using T = typename Subject::element;
  using vector = device_vector<T>;

  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!Subject::copying && !has_vmm()) {
      GTEST_SKIP() << "buffers of pages need VMM, which this device does not have";
    }
    stream_ = make_stream();
  }
  void TearDown() override {
    stream_.reset();
    buffer_test::TearDown();
  }

  vector make_vector(std::size_t staging_bytes = 1024) {
    vector_options options;
    options.buffer.force_copying = Subject::copying;
    options.buffer.reserve_bytes = 64 * page();
    options.staging_bytes = staging_bytes;
    auto made = vector::create(dev(), std::move(options), *stream_);
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  static T value(std::size_t i) {
    T out;
    unsigned char bytes[sizeof(T)];
    for (std::size_t b = 0; b < sizeof(T); ++b) {
      bytes[b] = static_cast<unsigned char>((i >> (8 * (b % 4))) + b * 31 + i);
    }
    std::memcpy(&out, bytes, sizeof(T));
    return out;
  }
  static std::vector<T> values(std::size_t n, std::size_t from = 0) {
    std::vector<T> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = value(from + i);
    return out;
  }
  // Compared as bytes: a float made of any bytes may be no number.
  static ::testing::AssertionResult same(vector &v, const std::vector<T> &wanted) {
    if (v.size() != wanted.size()) {
      return ::testing::AssertionFailure() << v.size() << " elements, not " << wanted.size();
    }
    const auto found = v.to_host();
    if (!found) return ::testing::AssertionFailure() << found.error().message();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::memcmp(&(*found)[i], &wanted[i], sizeof(T)) != 0) {
        return ::testing::AssertionFailure() << "element " << i << " of " << wanted.size();
      }
    }
    return ::testing::AssertionSuccess();
  }

  std::optional<stream> stream_;
};

using subjects =
    ::testing::Types<subject<unsigned char, false>, subject<std::uint32_t, false>,
                     subject<double, false>, subject<odd<3>, false>, subject<odd<4099>, false>,
                     subject<std::uint32_t, true>, subject<odd<7>, true>>;
TYPED_TEST_SUITE(device_vector_test, subjects);

TYPED_TEST(device_vector_test, begins_empty) {
  auto v = this->make_vector();
  EXPECT_TRUE(v.empty());
  EXPECT_EQ(v.size(), 0u);
  EXPECT_EQ(v.capacity(), 0u);
  EXPECT_EQ(v.stream(), stream_ref(*this->stream_));
  EXPECT_EQ(v.to_host()->size(), 0u);
  EXPECT_FALSE(v.pop_back());
  EXPECT_TRUE(v.flush());
  EXPECT_TRUE(v.synchronize());
  EXPECT_TRUE(v.clear());
  EXPECT_TRUE(v.shrink_to_fit());
  EXPECT_TRUE(v.append({}));
  EXPECT_TRUE(v.span().empty());
}

TYPED_TEST(device_vector_test, push_back_counts_at_once_and_arrives) {
  auto v = this->make_vector();
  std::vector<typename TestFixture::T> wanted;
  for (std::size_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(v.push_back(this->value(i)));
    ASSERT_EQ(v.size(), i + 1);
    wanted.push_back(this->value(i));
    if (i % 701 == 0) {
      ASSERT_TRUE(this->same(v, wanted)) << i;
    }
  }
  EXPECT_TRUE(this->same(v, wanted));
  EXPECT_EQ(v.buffer().in_place(), !TypeParam::copying);
}

TYPED_TEST(device_vector_test, push_back_calls_the_driver_once_a_batch) {
  auto v = this->make_vector(1 << 16);
  const std::size_t batch = (1 << 15) / sizeof(typename TestFixture::T);
  ASSERT_TRUE(v.reserve(3 * batch));
  ASSERT_TRUE(v.push_back(this->value(0)));
  const driver_counts before = this->counts();
  for (std::size_t i = 1; i < batch; ++i) ASSERT_TRUE(v.push_back(this->value(i)));
  EXPECT_EQ((this->counts() - before).total(), 0u);
  ASSERT_TRUE(v.push_back(this->value(batch)));
  EXPECT_EQ((this->counts() - before)[driver_call::MemcpyHtoDAsync], 1u);
  EXPECT_TRUE(this->same(v, this->values(batch + 1)));
}

TYPED_TEST(device_vector_test, appends_from_the_host_and_keeps_its_address) {
  auto v = this->make_vector();
  const std::size_t n = this->page() / sizeof(typename TestFixture::T) / 2 + 13;
  std::vector<typename TestFixture::T> wanted;
  for (std::size_t round = 0; round < 5; ++round) {
    auto some = this->values(n, round * n);
    ASSERT_TRUE(v.append(some));
    wanted.insert(wanted.end(), some.begin(), some.end());
    std::fill(some.begin(), some.end(), this->value(0));  // reusable on return
  }
  EXPECT_TRUE(this->same(v, wanted));
  if (!TypeParam::copying) {
    EXPECT_EQ(v.buffer().stats().relocations, 0u);
  }
}

TYPED_TEST(device_vector_test, append_async_and_push_back_keep_their_order) {
  auto v = this->make_vector();
  const auto first = this->values(10), second = this->values(500, 11);
  ASSERT_TRUE(v.append_async(first));
  ASSERT_TRUE(v.push_back(this->value(10)));
  ASSERT_TRUE(v.append_async(second));
  ASSERT_TRUE(v.push_back(this->value(511)));
  ASSERT_TRUE(v.synchronize());
  EXPECT_TRUE(this->same(v, this->values(512)));
}

TYPED_TEST(device_vector_test, appends_and_inserts_from_the_device) {
  auto from = this->make_vector(), v = this->make_vector();
  ASSERT_TRUE(from.append(this->values(100)));
  ASSERT_TRUE(v.append_from_device(from.data(), 40));
  ASSERT_TRUE(v.insert_from_device(0, from.data() + 90, 10));
  auto wanted = this->values(10, 90);
  for (std::size_t i = 0; i < 40; ++i) wanted.push_back(this->value(i));
  EXPECT_TRUE(this->same(v, wanted));
  ASSERT_TRUE(v.append_from_device(from.data() + 50, 1));
  wanted.push_back(this->value(50));
  ASSERT_TRUE(v.append_from_device(v.data(), 3)) << "from itself";
  for (std::size_t i = 0; i < 3; ++i) wanted.push_back(wanted[i]);
  EXPECT_TRUE(this->same(v, wanted));
}

TYPED_TEST(device_vector_test, inserts_and_erases_anywhere) {
  auto v = this->make_vector();
  std::vector<typename TestFixture::T> wanted = this->values(1000);
  ASSERT_TRUE(v.append(wanted));
  std::size_t next = 5000;
  for (const std::size_t at : {std::size_t{0}, std::size_t{500}, std::size_t{1014}}) {
    const auto some = this->values(7, next);
    next += 7;
    ASSERT_TRUE(v.insert(at, some));
    wanted.insert(wanted.begin() + static_cast<std::ptrdiff_t>(at), some.begin(), some.end());
    ASSERT_TRUE(this->same(v, wanted)) << "inserted at " << at;
  }
  for (const auto &[at, n] : {std::pair<std::size_t, std::size_t>{0, 3}, {400, 300}, {711, 7}}) {
    ASSERT_TRUE(v.erase(at, n));
    const auto begin = wanted.begin() + static_cast<std::ptrdiff_t>(at);
    wanted.erase(begin, begin + static_cast<std::ptrdiff_t>(n));
    ASSERT_TRUE(this->same(v, wanted)) << "erased at " << at;
  }
  ASSERT_TRUE(v.erase(3, 0));
  ASSERT_TRUE(v.insert(3, std::span<const typename TestFixture::T>()));
  ASSERT_TRUE(v.erase(0, v.size()));
  EXPECT_TRUE(v.empty());
}

// The scratch memory is released behind the copies through it: the host waits for nothing.
TYPED_TEST(device_vector_test, inserting_from_the_device_and_erasing_wait_for_nothing) {
  if (TypeParam::copying) GTEST_SKIP() << "waits before cuMemFree";
  auto from = this->make_vector();
  auto v = this->make_vector();
  ASSERT_TRUE(from.append(this->values(10)));
  ASSERT_TRUE(v.append(this->values(100)));
  ASSERT_TRUE(v.reserve(110));
  const auto waits = [this] {
    const driver_counts now = this->counts();
    return now[driver_call::CtxSynchronize] + now[driver_call::StreamSynchronize] +
           now[driver_call::EventSynchronize];
  };
  const auto before = waits();
  ASSERT_TRUE(v.insert_from_device(3, from.data(), 10));
  EXPECT_EQ(waits(), before) << "insert_from_device";
  ASSERT_TRUE(v.erase(3, 10));
  EXPECT_EQ(waits(), before) << "erase";
  EXPECT_TRUE(this->same(v, this->values(100)));
}

TYPED_TEST(device_vector_test, staged_elements_take_part_in_everything) {
  auto v = this->make_vector();
  auto wanted = this->values(5);
  for (const auto &e : wanted) ASSERT_TRUE(v.push_back(e));
  ASSERT_TRUE(v.erase(1, 2));
  wanted.erase(wanted.begin() + 1, wanted.begin() + 3);
  ASSERT_TRUE(v.push_back(this->value(50)));
  wanted.push_back(this->value(50));
  ASSERT_TRUE(v.set(3, this->value(51)));
  wanted[3] = this->value(51);
  ASSERT_TRUE(v.push_back(this->value(52)));
  ASSERT_TRUE(v.pop_back());
  EXPECT_TRUE(this->same(v, wanted));
  ASSERT_TRUE(v.push_back(this->value(53)));
  wanted.push_back(this->value(53));
  const auto got = v.get(4);
  ASSERT_TRUE(got);
  EXPECT_EQ(std::memcmp(&*got, &wanted[4], sizeof(*got)), 0);
}

TYPED_TEST(device_vector_test, resizes_with_zeros_or_without) {
  using value_type = typename TestFixture::T;
  auto v = this->make_vector();
  ASSERT_TRUE(v.append(this->values(10)));
  ASSERT_TRUE(v.resize(4000));
  auto wanted = this->values(10);
  value_type zero;
  std::memset(&zero, 0, sizeof(value_type));
  wanted.resize(4000, zero);
  EXPECT_TRUE(this->same(v, wanted));
  ASSERT_TRUE(v.resize(5));
  ASSERT_TRUE(v.resize(6));
  wanted.resize(5);
  wanted.push_back(zero);
  EXPECT_TRUE(this->same(v, wanted)) << "what was there before the shrink is gone";
  ASSERT_TRUE(v.resize_uninitialized(5000));
  EXPECT_EQ(v.size(), 5000u);
  ASSERT_TRUE(v.clear());
  EXPECT_TRUE(v.empty());
}

TYPED_TEST(device_vector_test, assigns) {
  auto v = this->make_vector();
  ASSERT_TRUE(v.append(this->values(100)));
  ASSERT_TRUE(v.push_back(this->value(1)));
  ASSERT_TRUE(v.assign(this->values(2000, 7)));
  EXPECT_TRUE(this->same(v, this->values(2000, 7)));
  ASSERT_TRUE(v.assign(this->values(3)));
  EXPECT_TRUE(this->same(v, this->values(3)));
  ASSERT_TRUE(v.assign({}));
  EXPECT_TRUE(v.empty());
}

TYPED_TEST(device_vector_test, shrinks_to_whole_pages) {
  auto v = this->make_vector();
  ASSERT_TRUE(v.reserve(4 * this->page() / sizeof(typename TestFixture::T)));
  EXPECT_GE(v.buffer().mapped_bytes(), 3 * this->page());
  EXPECT_TRUE(v.empty());
  ASSERT_TRUE(v.append(this->values(3)));
  ASSERT_TRUE(v.shrink_to_fit());
  EXPECT_EQ(v.buffer().mapped_bytes(), round_up(3 * sizeof(typename TestFixture::T), this->page()));
  EXPECT_TRUE(this->same(v, this->values(3)));
  ASSERT_TRUE(v.push_back(this->value(3)));
  EXPECT_TRUE(this->same(v, this->values(4)));
}

TYPED_TEST(device_vector_test, refuses_what_is_past_the_end) {
  auto v = this->make_vector();
  ASSERT_TRUE(v.append(this->values(10)));
  const auto invalid = errc::invalid_argument;
  const std::size_t e = sizeof(typename TestFixture::T);
  EXPECT_TRUE(
      fails_with(v.insert(11, this->values(1)), invalid, "device_vector::insert", 11 * e, 10 * e));
  EXPECT_TRUE(fails_with(v.erase(10, 1), invalid, "device_vector::erase", 11 * e, 10 * e));
  EXPECT_TRUE(fails_with(v.erase(SIZE_MAX, 1), invalid, "device_vector::erase"));
  EXPECT_TRUE(fails_with(v.erase(1, SIZE_MAX), invalid, "device_vector::erase"));
  EXPECT_TRUE(fails_with(v.set(10, this->value(0)), invalid, "device_vector::set"));
  EXPECT_TRUE(fails_with(outcome(v.get(10)), invalid, "device_vector::get"));
  EXPECT_TRUE(fails_with(outcome(v.get(SIZE_MAX)), invalid, "device_vector::get"));
  std::vector<typename TestFixture::T> out(5);
  EXPECT_TRUE(fails_with(v.copy_to_host(out, 6), invalid, "device_vector::copy_to_host"));
  EXPECT_TRUE(v.copy_to_host(out, 5));
  EXPECT_FALSE(v.resize(SIZE_MAX));
  EXPECT_FALSE(v.resize_uninitialized(SIZE_MAX / e));
  EXPECT_FALSE(v.reserve(SIZE_MAX));
  EXPECT_TRUE(this->same(v, this->values(10)));
}

TYPED_TEST(device_vector_test, moves_with_what_is_staged) {
  auto a = this->make_vector();
  ASSERT_TRUE(a.append(this->values(5)));
  ASSERT_TRUE(a.push_back(this->value(5)));
  auto b = std::move(a);
  EXPECT_TRUE(this->same(b, this->values(6)));
  EXPECT_EQ(a.size(), 0u);  // NOLINT: moved from, on purpose
  EXPECT_FALSE(a.push_back(this->value(0)));
  EXPECT_FALSE(a.append(this->values(1)));
  EXPECT_FALSE(a.insert(0, this->values(1)));
  EXPECT_FALSE(a.resize(1));
  EXPECT_FALSE(a.get(0));
  EXPECT_FALSE(a.shrink_to_fit());
  EXPECT_TRUE(a.erase(0, 0));
  ASSERT_TRUE(b.push_back(this->value(6)));
  a = std::move(b);
  ASSERT_TRUE(a.push_back(this->value(7)));
  EXPECT_TRUE(this->same(a, this->values(8)));
  auto &self = a;
  a = std::move(self);
  EXPECT_TRUE(this->same(a, this->values(8)));
}

TYPED_TEST(device_vector_test, changes_its_stream_in_order) {
  auto v = this->make_vector(1 << 16);
  ASSERT_TRUE(v.append_async(this->values(5)));
  ASSERT_TRUE(v.push_back(this->value(5)));
  {
    const stream other = this->make_stream();
    const driver_counts before = this->counts();
    ASSERT_TRUE(v.set_stream(other));
    EXPECT_EQ((this->counts() - before).bytes_to_device, sizeof(typename TestFixture::T))
        << "what is staged goes to the stream before";
    EXPECT_EQ(v.stream(), stream_ref(other));
    ASSERT_TRUE(v.push_back(this->value(6)));
    ASSERT_TRUE(v.append(this->values(3, 7)));
    EXPECT_TRUE(this->same(v, this->values(10)));
    ASSERT_TRUE(v.set_stream(*this->stream_));
  }
  EXPECT_TRUE(this->same(v, this->values(10)));
}

TYPED_TEST(device_vector_test, data_sends_what_is_staged) {
  using value_type = typename TestFixture::T;
  auto v = this->make_vector(1 << 16);
  ASSERT_TRUE(v.push_back(this->value(0)));
  const driver_counts before = this->counts();
  value_type *const data = v.data();
  EXPECT_EQ((this->counts() - before)[driver_call::MemcpyHtoDAsync], 1u);
  EXPECT_EQ(data, v.address().pointer());
  EXPECT_EQ(v.begin(), data);
  EXPECT_EQ(v.end(), data + 1);
  EXPECT_EQ(v.span().data(), data);
  EXPECT_EQ(v.span().size_bytes(), sizeof(value_type));
  const auto as_std = static_cast<std::span<value_type>>(v.span());
  EXPECT_EQ(as_std.size(), 1u);
}

TYPED_TEST(device_vector_test, const_views_see_every_element) {
  auto v = this->make_vector();
  const auto &view = v;
  for (std::size_t i = 0; i < 5; ++i) ASSERT_TRUE(v.push_back(this->value(i)));
  using element = typename TestFixture::T;
  const device_span<const element> span = view.span();
  static_assert(std::is_same_v<decltype(view.data()), const element *>);
  EXPECT_EQ(span.data(), view.data());
  EXPECT_EQ(span.size(), 5u);
  EXPECT_EQ(view.cend() - view.cbegin(), 5);
  // Nothing is staged any more: the address holds the elements.
  std::vector<element> found(5);
  ASSERT_TRUE(v.buffer().copy_to_host(found.data(), 0, 5 * sizeof(element), *this->stream_));
  EXPECT_EQ(std::memcmp(found.data(), this->values(5).data(), 5 * sizeof(element)), 0);
  const device_span<const element> converted = v.span();
  EXPECT_EQ(converted.data(), span.data());
  ASSERT_TRUE(v.copy_from_host(std::span<const element>(found).first(2), 3));
  ASSERT_TRUE(view.copy_to_host(std::span(found).first(2), 3));
  EXPECT_EQ(std::memcmp(found.data(), this->values(2).data(), 2 * sizeof(element)), 0);
}

TYPED_TEST(device_vector_test, elements_larger_than_a_batch) {
  auto v = this->make_vector(2);
  for (std::size_t i = 0; i < 5; ++i) ASSERT_TRUE(v.push_back(this->value(i)));
  EXPECT_TRUE(this->same(v, this->values(5)));
}

TYPED_TEST(device_vector_test, runs_out_of_memory_and_keeps_its_elements) {
  if (!this->on_hostcuda()) GTEST_SKIP() << "needs hostcuda's switches";
  auto v = this->make_vector();
  const std::size_t n = this->page() / sizeof(typename TestFixture::T);
  ASSERT_TRUE(v.append(this->values(n)));
  this->leave_free(0);
  const auto some = this->values(n, n);
  EXPECT_TRUE(fails_with(v.append(some), errc::out_of_memory, "device_vector::append"));
  EXPECT_FALSE(v.insert(3, some));
  EXPECT_FALSE(v.resize(2 * n));
  EXPECT_EQ(v.size(), n);
  testing::hostcuda_control::occupy(0, 0);
  EXPECT_TRUE(this->same(v, this->values(n)));
  EXPECT_TRUE(v.append(some));
  EXPECT_TRUE(this->same(v, this->values(2 * n)));
}

// Regression: pages that were mapped for elements that then could not be copied stayed.
TYPED_TEST(device_vector_test, a_failed_append_leaves_the_capacity_as_it_was) {
  if (!this->on_hostcuda()) GTEST_SKIP() << "needs hostcuda's switches";
  auto v = this->make_vector();
  ASSERT_TRUE(v.append(this->values(5)));
  const std::size_t capacity = v.capacity();
  const auto many = this->values(3 * this->page() / sizeof(typename TestFixture::T));
  for (const char *call : {"cuMemcpyHtoDAsync", "cuStreamSynchronize"}) {
    testing::hostcuda_control::fail(call, 1, CUDA_ERROR_UNKNOWN);
    const bool survives = call[2] == 'S';  // the device is waited for instead
    EXPECT_EQ(v.append(many).has_value(), survives) << call;
    if (survives) {
      ASSERT_TRUE(v.resize_uninitialized(5));
      ASSERT_TRUE(v.shrink_to_fit());
    }
    EXPECT_EQ(v.size(), 5u);
    if (!TypeParam::copying) {
      EXPECT_EQ(v.capacity(), capacity);
    }
  }
  EXPECT_TRUE(this->same(v, this->values(5)));
}

}  // namespace
}  // namespace stillmap

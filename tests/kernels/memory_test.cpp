// The book of the region that large tensors come from, against a plain list of what is taken.
#include "kernels/memory.h"

#include "base/random.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>

namespace mythos {
namespace {

constexpr size_t granule = RegionBook::granule;

TEST(RegionBook, BlocksNeverOverlapAndAllOfItComesBack) {
  constexpr size_t capacity = 200 * granule;
  RegionBook book(capacity);
  Random random(7);
  std::map<size_t, size_t> taken;
  size_t in_use = 0, most = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (taken.empty() || random.below(100) < 55) {
      const size_t size = 1 + random.below(20 * granule);
      const size_t offset = book.take(size);
      if (offset == RegionBook::none) {
        ++refused;
        continue;
      }
      const size_t rounded = (size + granule - 1) / granule * granule;
      ASSERT_LE(offset + rounded, capacity);
      const auto next = taken.lower_bound(offset);
      if (next != taken.end()) {
        ASSERT_LE(offset + rounded, next->first);
      }
      if (next != taken.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, offset);
      }
      taken.emplace(offset, rounded);
      in_use += rounded;
      most = std::max(most, offset + rounded);
    } else {
      auto victim = taken.begin();
      std::advance(victim, static_cast<int64_t>(random.below(taken.size())));
      ASSERT_EQ(book.give_back(victim->first), victim->second);
      in_use -= victim->second;
      taken.erase(victim);
    }
  }
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(book.high_water(), most);
  for (const auto& [offset, size] : taken) EXPECT_EQ(book.give_back(offset), size);
  EXPECT_EQ(book.take(capacity), 0U);  // the gaps have joined
  EXPECT_EQ(book.take(1), RegionBook::none);
}

TEST(RegionBook, TakesTheSmallestGapThatFits) {
  RegionBook book(20 * granule);
  const size_t a = book.take(5 * granule);
  book.take(1);
  const size_t b = book.take(2 * granule);
  book.take(1);
  book.give_back(a);
  book.give_back(b);
  EXPECT_EQ(book.take(2 * granule), b);
  EXPECT_EQ(book.take(3 * granule), a);
}

TEST(RegionBook, NothingIsBetterThanTooLittle) {
  RegionBook book(granule - 1);
  EXPECT_EQ(book.take(1), RegionBook::none);
  EXPECT_EQ(RegionBook(3 * granule).take(3 * granule + 1), RegionBook::none);
}

// The last test: from here on this process's tensors come from the region.
TEST(TensorMemory, CountsAndReuses) {
  EXPECT_EQ(memory_use().live, 0);
  keep_tensor_memory();
  const int64_t before = memory_use().live;
  const auto options = at::TensorOptions(at::kFloat);
  at::Tensor a = at::empty({1 << 20}, options);
  const void* const place = a.const_data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0U);
  EXPECT_EQ(memory_use().live - before, 4 << 20);
  a.fill_(3);
  at::Tensor b = at::empty({10}, options);
  EXPECT_EQ(memory_use().live - before, (4 << 20) + 40);
  const int64_t held = memory_use().held;
  EXPECT_GE(held, 4 << 20);
  a.reset();
  EXPECT_EQ(memory_use().live - before, 40);
  EXPECT_GE(memory_use().peak - before, (4 << 20) + 40);
  reset_memory_peak();
  EXPECT_EQ(memory_use().peak, memory_use().live);
  a = at::empty({1 << 20}, options);
  EXPECT_EQ(a.const_data_ptr(), place);  // the same pages
  EXPECT_EQ(memory_use().held, held);
  at::Tensor c = a;
  c.resize_({3 << 20});  // through the allocator's raw interface
  c.fill_(1);
  EXPECT_EQ(memory_use().live - before, (12 << 20) + 40);
  b.reset();
  c.reset();
  a.reset();
  EXPECT_EQ(memory_use().live, before);
  EXPECT_EQ(at::ones({5}).sum().item<double>(), 5);
}

}  // namespace
}  // namespace mythos

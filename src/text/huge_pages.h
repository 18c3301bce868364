// Memory for large tables that are read all over the place.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace mythos {

/// Blocks of a megabyte and more lie on huge pages where the system has any to give: a table of several megabytes read
/// at random otherwise spends more time on the addresses than on the data.
template <class T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}

  T* allocate(size_t n) {
    constexpr size_t page = size_t{2} << 20;
    if (n * sizeof(T) < page / 2) return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64}));
    const size_t bytes = (n * sizeof(T) + page - 1) / page * page;
    void* const p = ::operator new (bytes, std::align_val_t{page});
    (void)madvise(p, bytes, MADV_HUGEPAGE);  // only a wish
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t n) {
    constexpr size_t page = size_t{2} << 20;
    ::operator delete (p, std::align_val_t{n * sizeof(T) < page / 2 ? 64 : page});
  }
  bool operator==(const HugePageAllocator&) const = default;
};

template <class T>
using HugeVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace mythos

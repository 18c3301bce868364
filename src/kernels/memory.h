// The memory of tensors on the CPU: counted, kept for reuse, and in huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace mythos {

struct MemoryUse {
  int64_t live = 0;  ///< bytes of tensors that exist
  int64_t peak = 0;  ///< the most they were, since the last reset
  int64_t held = 0;  ///< bytes taken from the system for large tensors, in use or not
};

/// Makes large tensors (1 MiB and more) of this process come from one region whose pages stay once they were touched:
/// a fresh page costs as much as computing on it, and a training step asks for the same sizes again and again. Freed
/// neighbours join, the best fitting gap is taken. All tensors are counted. Does nothing the second time; call it before
/// the first tensor. Where the system grants no such region, LibTorch's own allocator stays and only counts.
void keep_tensor_memory();

/// Zeros before keep_tensor_memory().
MemoryUse memory_use();
void reset_memory_peak();

/// The region's book-keeping, in offsets: no memory of its own. Not thread-safe.
class RegionBook {
 public:
  explicit RegionBook(size_t capacity);
  static constexpr size_t none = static_cast<size_t>(-1);
  /// Offset of a block of at least `size` bytes, a multiple of `granule`; `none` if nothing is large enough.
  size_t take(size_t size);
  /// Returns a block's size. The offset is one that take() gave.
  size_t give_back(size_t offset);
  /// One past the highest byte ever taken.
  [[nodiscard]] size_t high_water() const { return high_water_; }
  static constexpr size_t granule = size_t{64} << 10;

 private:
  void add_gap(size_t offset, size_t size);
  void remove_gap(size_t offset, size_t size);

  size_t high_water_ = 0;
  std::map<size_t, size_t> taken_;                // offset -> size
  std::map<size_t, size_t> gaps_;                 // offset -> size, never adjacent
  std::set<std::pair<size_t, size_t>> by_size_;  // (size, offset) of the same gaps
};

}  // namespace mythos

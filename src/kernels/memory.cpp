#include "kernels/memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace mythos {

RegionBook::RegionBook(size_t capacity) { add_gap(0, capacity / granule * granule); }

void RegionBook::add_gap(size_t offset, size_t size) {
  if (size == 0) return;
  gaps_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void RegionBook::remove_gap(size_t offset, size_t size) {
  gaps_.erase(offset);
  by_size_.erase({size, offset});
}

size_t RegionBook::take(size_t size) {
  size = std::max(granule, (size + granule - 1) / granule * granule);
  const auto found = by_size_.lower_bound({size, 0});  // the smallest that fits, of these the lowest
  if (found == by_size_.end()) return none;
  const auto [gap, offset] = *found;
  remove_gap(offset, gap);
  add_gap(offset + size, gap - size);
  taken_.emplace(offset, size);
  high_water_ = std::max(high_water_, offset + size);
  return offset;
}

size_t RegionBook::give_back(size_t offset) {
  const auto block = taken_.find(offset);
  const size_t size = block->second;
  taken_.erase(block);
  size_t begin = offset;
  size_t end = offset + size;
  const auto next = gaps_.lower_bound(offset);
  if (next != gaps_.begin()) {
    const auto [before, length] = *std::prev(next);
    if (before + length == begin) {
      begin = before;
      by_size_.erase({length, before});
    }
  }
  if (next != gaps_.end() && next->first == end) {
    end += next->second;
    remove_gap(next->first, next->second);
  }
  if (begin != offset) gaps_.erase(begin);
  add_gap(begin, end - begin);
  return size;
}

namespace {

constexpr size_t large = size_t{1} << 20;
constexpr size_t huge_page = size_t{2} << 20;

class TensorMemory : public c10::Allocator {
 public:
  explicit TensorMemory(c10::Allocator* small) : small_(small) {
    // Address space alone: pages come with their first use. Twice the machine's memory leaves room for gaps.
    const auto pages = ::sysconf(_SC_PHYS_PAGES);
    const auto page = ::sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0) return;
    const size_t size = 2 * static_cast<size_t>(pages) * static_cast<size_t>(page);
    void* const begin = ::mmap(nullptr, size + huge_page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) return;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    base_ = static_cast<char*>(begin) + (huge_page - address % huge_page) % huge_page;
    ::madvise(base_, size, MADV_HUGEPAGE);
    size_ = size;
    book_ = RegionBook(size);
  }

  c10::DataPtr allocate(size_t n) override {
    if (n >= large && base_ != nullptr) {
      const std::lock_guard lock(mutex_);
      const size_t offset = book_.take(n);
      if (offset != RegionBook::none) {
        void* const p = base_ + offset;
        requested_.emplace(p, n);
        count(static_cast<int64_t>(n));
        return {p, p, &release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr inner = small_->allocate(n);
    void* const p = inner.get();
    if (p == nullptr) return inner;
    {
      const std::lock_guard lock(mutex_);
      requested_.emplace(p, n);
      count(static_cast<int64_t>(n));
    }
    // The inner allocator's deleter takes the pointer itself, as raw_deleter() promises.
    inner.release_context();
    return {p, p, &release, c10::Device(c10::DeviceType::CPU)};
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }

  MemoryUse use() {
    const std::lock_guard lock(mutex_);
    return {live_, peak_, static_cast<int64_t>(book_.high_water())};
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
  }

  static TensorMemory* instance(TensorMemory* set = nullptr) {
    // LibTorch's allocator is one for the process, and tensors may outlive everything else: never destroyed.
    static std::atomic<TensorMemory*> memory{nullptr};
    if (set != nullptr) memory = set;
    return memory;
  }

 private:
  static void release(void* p) {
    if (p != nullptr) instance()->give_back(p);
  }

  void give_back(void* p) {
    const auto* const address = static_cast<const char*>(p);
    const bool ours = base_ != nullptr && address >= base_ && address < base_ + size_;
    {
      const std::lock_guard lock(mutex_);
      const auto found = requested_.find(p);
      if (found != requested_.end()) {
        count(-static_cast<int64_t>(found->second));
        requested_.erase(found);
      }
      if (ours) book_.give_back(static_cast<size_t>(address - base_));
    }
    if (!ours) small_->raw_deleter()(p);
  }

  void count(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

  c10::Allocator* small_;
  char* base_ = nullptr;
  size_t size_ = 0;
  std::mutex mutex_;
  RegionBook book_{0};
  std::unordered_map<void*, size_t> requested_;
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace

void keep_tensor_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* const memory = new TensorMemory(c10::GetCPUAllocator());  // NOLINT(cppcoreguidelines-owning-memory)
    TensorMemory::instance(memory);
    c10::SetCPUAllocator(memory, /*priority=*/255);
  });
}

MemoryUse memory_use() {
  TensorMemory* const memory = TensorMemory::instance();
  return memory != nullptr ? memory->use() : MemoryUse{};
}

void reset_memory_peak() {
  if (TensorMemory* const memory = TensorMemory::instance()) memory->reset_peak();
}

}  // namespace mythos

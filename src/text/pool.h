// Workspaces lent to threads without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

namespace mythos {

/// Keeps idle objects for later use. A thread gets back the object it gave last, as a rule, so that what the object
/// remembers stays in that thread's processor, and threads meet on the same memory only when there are hundreds of
/// them.
template <class T>
class Pool {
 public:
  Pool() = default;
  ~Pool() {
    for (Place& place : places_) delete place.idle.load(std::memory_order_relaxed);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// An idle object, or null if there is none.
  [[nodiscard]] std::unique_ptr<T> take() {
    for (size_t i = 0; i < size; ++i) {
      std::atomic<T*>& idle = place(i);
      if (idle.load(std::memory_order_relaxed) == nullptr) continue;
      if (T* const object = idle.exchange(nullptr, std::memory_order_acquire)) return std::unique_ptr<T>(object);
    }
    return nullptr;
  }
  /// Keeps the object, or destroys it if there is no room.
  void give(std::unique_ptr<T> object) {
    for (size_t i = 0; i < size; ++i) {
      T* none = nullptr;
      if (place(i).compare_exchange_strong(none, object.get(), std::memory_order_release, std::memory_order_relaxed)) {
        (void)object.release();
        return;
      }
    }
  }

 private:
  static constexpr size_t size = 256;
  struct alignas(64) Place {
    std::atomic<T*> idle = nullptr;
  };
  // Every thread begins to look at a place of its own.
  [[nodiscard]] std::atomic<T*>& place(size_t i) {
    const size_t id = std::hash<std::thread::id>()(std::this_thread::get_id()) * 0x9E3779B97F4A7C15ULL;
    return places_[((id >> 32) + i) % size].idle;
  }
  std::array<Place, size> places_;
};

}  // namespace mythos

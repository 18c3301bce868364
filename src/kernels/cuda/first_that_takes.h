// Trying alternatives in order, and remembering which one took what kind of work.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <vector>

namespace mythos::cuda {

/// For each kind of work the first of a list of alternatives that does not refuse it, by throwing c10::Error. One that
/// took a kind once is asked alone from then on, and its errors are errors. Out of memory never counts as a refusal.
/// Thread-safe.
template <class Key>
class FirstThatTakes {
 public:
  /// try_one(i) for i = what was remembered or `from`, ..., count - 1 until one returns; its i. refused(i, error) hears
  /// of those that did not.
  template <class Try, class Refused>
  size_t run(const Key& key, size_t from, size_t count, const Try& try_one, const Refused& refused) {
    const State known = state(key);
    size_t i = std::max(from, known.at);
    for (; i + 1 < count && !(known.proven && i == known.at); ++i) {
      try {
        try_one(i);
        remember(key, i);
        return i;
      } catch (const c10::OutOfMemoryError&) {
        throw;
      } catch (const c10::Error& error) {
        refused(i, error);
      }
    }
    try_one(i);
    remember(key, i);
    return i;
  }

 private:
  struct State {
    size_t at = 0;
    bool proven = false;
  };
  State state(const Key& key) {
    const std::lock_guard lock(mutex_);
    return states_[key];
  }
  void remember(const Key& key, size_t i) {
    const std::lock_guard lock(mutex_);
    states_[key] = {i, true};
  }
  std::mutex mutex_;
  std::map<Key, State> states_;
};

}  // namespace mythos::cuda

// Writes what torch.save would write of plain data and tensors (pickle protocol 2), without a memo: torch finds shared
// storages by their keys.
#pragma once

#include "base/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mythos {

/// Each call adds to the pickle's stack what its name says; set_items and appends take all since the last mark.
class PickleWriter {
 public:
  void begin() { out_ = std::string("\x80\x02", 2); }
  /// The whole pickle.
  [[nodiscard]] std::string end();

  void mark() { out_ += '('; }
  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(int64_t value);
  void real(double value);
  void text(std::string_view value);
  /// The last one or two values.
  void tuple(int n) { out_ += n == 1 ? '\x85' : '\x86'; }
  void empty_list() { out_ += ']'; }
  void append() { out_ += 'a'; }
  void appends() { out_ += 'e'; }
  void empty_dict() { out_ += '}'; }
  void ordered_dict();
  void set_items() { out_ += 'u'; }
  /// An instance of a class, without its fields; build() gives it those of the dict above it.
  void new_object(std::string_view module, std::string_view name);
  void build() { out_ += 'b'; }
  /// All of storage number `key`, in row-major order.
  void tensor(const TensorInfo& info, size_t key);

 private:
  void global(std::string_view module, std::string_view name);
  void integers(const std::vector<int64_t>& values);
  std::string out_;
};

}  // namespace mythos

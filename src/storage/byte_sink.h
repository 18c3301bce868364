// Where bytes go to: one interface for files and objects that are whole or absent.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace mythos {

/// A file or object while it is written, front to back. Its name shows nothing, or what was there before, until
/// commit() has returned; without commit() what was written is taken back. Throws Error.
class ByteSink {
 public:
  ByteSink() = default;
  virtual ~ByteSink() = default;
  ByteSink(const ByteSink&) = delete;
  ByteSink& operator=(const ByteSink&) = delete;

  virtual void write(std::span<const std::byte> bytes) = 0;
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// To be called once, and no write after it.
  virtual void commit() = 0;
};

}  // namespace mythos

// Reading one table of a catalogue file: each field by its type and range, with an error that names file, entry and
// line.
#pragma once

#include "config/value.h"

#include <optional>
#include <string>
#include <vector>

namespace mythos {

class Entry {
 public:
  /// `what`: "hardware.toml: gpu \"L40S\"", for messages. `partial`: a field that is missing is nothing, not an error.
  Entry(const Value& value, std::string what, bool partial = false);

  /// Throw usage Error for a wrong type, a number outside (low, high], or a field that must be there and is not.
  std::optional<std::string> text(const std::string& key, bool needed = true);
  std::optional<double> number(const std::string& key, double low, double high, bool needed = true);
  std::optional<bool> flag(const std::string& key);
  const Value* value(const std::string& key);
  /// Throws for keys that nobody asked for, with the nearest that is known.
  void done() const;
  [[nodiscard]] const std::string& what() const { return what_; }
  [[nodiscard]] std::string place(int line) const;

 private:
  const Value* find(const std::string& key, bool needed);

  const Value::Table* table_;
  std::string what_;
  int line_;
  bool partial_;
  std::vector<std::string> known_;
};

/// The tables of [[key]]; none where it is not there. Throws usage Error where it is something else.
std::vector<const Value*> entries(const Value::Table& root, const std::string& key, const std::string& name);
/// The name of a table that must have one.
std::string entry_name(const Value& value, const std::string& key, const std::string& name);

}  // namespace mythos

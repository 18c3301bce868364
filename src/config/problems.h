// All that is wrong with a configuration, gathered to be told at once.
#pragma once

#include "config/run_config.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// Where a key was given.
struct Origin {
  int line = 0;        ///< of the file, from 1; 0: not in the file
  std::string option;  ///< "--set train.lr"
};

class Problems {
 public:
  void set_origin(const std::string& key, Origin origin) { origins_[key] = std::move(origin); }
  [[nodiscard]] bool has_origin(const std::string& key) const { return origins_.contains(key); }

  void add(const Origin& origin, std::string sentence, std::string_view hint = "");
  /// A key whose own value is wrong; what depends on it is not checked any further.
  void add_bad(const std::string& key, std::string sentence, std::string_view hint = "");
  /// A problem of several keys together; shown at the first of them that was given.
  void add_among(const std::vector<std::string>& keys, std::string sentence, std::string_view hint = "");
  /// None of these keys is bad by itself.
  [[nodiscard]] bool sound(const std::vector<std::string>& keys) const;

  /// The error names the first 50 and counts the rest.
  [[nodiscard]] bool more_are_told() const { return problems_.size() < most_told; }
  /// One usage Error; a line for each problem in the order of the file, the options after it.
  void throw_if_any(std::string_view name) const;

 private:
  static constexpr size_t most_told = 50;
  struct Problem {
    Origin origin;
    std::string text;
  };
  std::vector<Problem> problems_;
  std::map<std::string, Origin> origins_;
  std::set<std::string> bad_;
};

/// Adds the problems that keys have together, the model's among them.
void check_together(const RunConfig& config, Problems& problems);

/// A name out of a file, short and printable.
std::string describe_name(std::string_view name);

}  // namespace mythos

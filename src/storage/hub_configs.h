// The configurations of a data set, as the header of its README.md names them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mythos {

struct HubSplit {
  std::string name;                   ///< "" where none is named
  std::vector<std::string> patterns;  ///< of paths in the repository
};

struct HubConfiguration {
  std::string name;
  bool is_default = false;
  std::vector<HubSplit> splits;
};

/// The `configs:` of a README's YAML header; none if it has no header or no such list. Reads the part of YAML that such
/// lists are written in (block mappings and lists, flow lists on one line, plain and quoted words) and leaves out what
/// it does not understand. Never throws.
std::vector<HubConfiguration> read_configurations(std::string_view readme);

}  // namespace mythos

// Which files an address of the hub means.
#include "base/units.h"
#include "storage/hub.h"
#include "storage/hub_configs.h"
#include "storage/path_pattern.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace mythos {

class HubListing {
 public:
  HubListing(Hub& hub, const std::string& source, std::span<const std::string_view> extensions)
      : hub_(hub),
        source_(source),
        extensions_(extensions),
        address_(parse_hub_address(source)),
        commit_(hub.commit_of(address_)) {
    hub.refuse_offline(source);
  }

  std::vector<SourceFile> run() {
    if (address_.path.empty()) {
      default_configuration();
    } else if (is_pattern(address_.path)) {
      by_patterns({address_.path}, true);
    } else if (!one_file() && !folder(address_.path) && !configuration(address_.path)) {
      refuse_missing();
    }
    if (files_.empty()) {
      const std::string kinds = fmt::format("supported are {}", fmt::join(extensions_, ", "));
      throw usage_error(unsupported_.empty()
                            ? fmt::format("{} holds no data files", source_)
                            : fmt::format("{} is {}, which is not a data file by its extension", source_, unsupported_),
                        kinds);
    }
    std::ranges::sort(files_, {}, &SourceFile::name);
    const auto same = std::ranges::unique(files_, {}, &SourceFile::name);
    files_.erase(same.begin(), same.end());
    return std::move(files_);
  }

 private:
  [[nodiscard]] bool supported(std::string_view path) const {
    return std::ranges::find(extensions_, file_extension(path)) != extensions_.end();
  }
  static std::string parent_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
  // Whether a name behind the first `from` characters begins with a dot.
  static bool hidden(std::string_view path, size_t from) {
    return path.substr(from).starts_with('.') || path.find("/.", from) != std::string_view::npos;
  }

  void add(const HubEntry& entry) {
    if (!supported(entry.path)) {
      if (unsupported_.empty()) unsupported_ = entry.path;
      return;
    }
    files_.push_back({address_.file_at(commit_, entry.path), entry.path, entry.size, entry.version});
  }

  bool one_file() {
    if (!supported(address_.path)) return false;
    const auto entries = hub_.tree(address_, commit_, parent_of(address_.path), false);
    if (!entries) return false;
    const auto it = std::ranges::find(*entries, address_.path, &HubEntry::path);
    if (it == entries->end() || !it->is_file) return false;
    add(*it);
    return true;
  }

  bool folder(const std::string& path) {
    const auto entries = hub_.tree(address_, commit_, path, true);
    if (!entries || entries->empty()) return false;
    for (const HubEntry& entry : *entries) {
      if (entry.is_file && !hidden(entry.path, path.size())) add(entry);
    }
    return true;
  }

  // `with_folders`: a folder that a pattern takes counts with its files.
  bool by_patterns(const std::vector<std::string>& patterns, bool with_folders) {
    std::vector<std::string> folders;
    for (const std::string& pattern : patterns) folders.push_back(fixed_folder(pattern));
    std::ranges::sort(folders);
    folders.erase(std::ranges::unique(folders).begin(), folders.end());
    bool found = false;
    for (const std::string& folder : folders) {
      const auto entries = hub_.tree(address_, commit_, folder, true);
      if (!entries) continue;
      for (const HubEntry& entry : *entries) {
        if (!entry.is_file || hidden(entry.path, folder.size())) continue;
        const bool match = std::ranges::any_of(patterns, [&](const std::string& pattern) {
          if (fixed_folder(pattern) != folder) return false;
          if (matches_pattern(entry.path, pattern)) return true;
          for (size_t n = entry.path.rfind('/'); with_folders && n != std::string::npos && n > folder.size();
               n = entry.path.rfind('/', n - 1)) {
            if (matches_pattern(std::string_view(entry.path).substr(0, n), pattern)) return true;
          }
          return false;
        });
        if (match) add(entry);
        found = found || match;
      }
    }
    if (!found && with_folders) throw usage_error(fmt::format("no file matches {}", source_), names_there());
    return found;
  }

  const std::vector<HubConfiguration>& configurations() {
    if (!configurations_) {
      constexpr uint64_t most_bytes = uint64_t{32} << 20;
      const auto readme = hub_.text(address_, commit_, "README.md", most_bytes);
      configurations_ = readme ? read_configurations(*readme) : std::vector<HubConfiguration>();
    }
    return *configurations_;
  }

  void use(const HubConfiguration& config) {
    std::vector<std::string> names;
    for (const HubSplit& split : config.splits) names.push_back(split.name);
    auto it = std::ranges::find(config.splits, "train", &HubSplit::name);
    if (it == config.splits.end() && config.splits.size() == 1) it = config.splits.begin();
    if (it == config.splits.end()) {
      throw usage_error(
          fmt::format("the configuration '{}' of {} has no split 'train'", config.name, address_.shown()),
          names.empty() ? "give a path" : fmt::format("its splits are {}; give a path", fmt::join(names, ", ")));
    }
    // There may be several "train" in one list.
    std::vector<std::string> patterns;
    for (const HubSplit& split : config.splits) {
      if (split.name == it->name) patterns.insert(patterns.end(), split.patterns.begin(), split.patterns.end());
    }
    for (std::string& pattern : patterns) {
      if (pattern.starts_with("./")) pattern.erase(0, 2);
      if (pattern.find("://") != std::string::npos || pattern.find("..") != std::string::npos) {
        throw usage_error(fmt::format("the configuration '{}' of {} names {}, which is outside the repository",
                                      config.name, address_.shown(), pattern),
                          "give a path");
      }
    }
    if (!by_patterns(patterns, false)) {
      throw usage_error(fmt::format("no file of {} matches its configuration '{}' ({})", address_.shown(), config.name,
                                    fmt::join(patterns, ", ")));
    }
  }

  // A configuration by its name: the README's, or by the way large text collections are laid out.
  bool configuration(const std::string& name) {
    if (name.find('/') != std::string::npos) return false;
    const auto& known = configurations();
    const auto it = std::ranges::find(known, name, &HubConfiguration::name);
    if (it != known.end()) {
      use(*it);
      return true;
    }
    if (!known.empty()) return false;
    if (name == "default") return by_patterns({"data/*/*"}, false) || by_patterns({"data/*"}, false);
    const size_t dash = name.find('-');
    if (dash != std::string::npos && dash > 0 && dash + 1 < name.size() &&
        by_patterns({fmt::format("{}/{}/*", name.substr(0, dash), name.substr(dash + 1))}, false)) {
      return true;
    }
    return by_patterns({fmt::format("data/{}/*", name)}, false);
  }

  void default_configuration() {
    const auto& known = configurations();
    auto it = std::ranges::find(known, "default", &HubConfiguration::name);
    if (it == known.end()) it = std::ranges::find(known, true, &HubConfiguration::is_default);
    if (it == known.end() && known.size() == 1) it = known.begin();
    if (it != known.end()) {
      use(*it);
    } else if (!known.empty()) {
      throw usage_error(fmt::format("{} has several configurations and no default one", address_.shown()),
                        fmt::format("add the name of one: {}", fmt::join(names_of(known), ", ")));
    } else if (!folder("data") || files_.empty()) {
      folder("");
    }
  }

  static std::vector<std::string> names_of(const std::vector<HubConfiguration>& configurations) {
    constexpr size_t most = 20;
    std::vector<std::string> names;
    for (const HubConfiguration& config : configurations) {
      if (names.size() == most) return names.push_back("..."), names;
      names.push_back(config.name);
    }
    return names;
  }

  // What there is instead: the nearest name, or the first few.
  std::string names_there() {
    std::string folder = is_pattern(address_.path) ? fixed_folder(address_.path) : parent_of(address_.path);
    auto entries = hub_.tree(address_, commit_, folder, false);
    if (!entries && !folder.empty()) entries = hub_.tree(address_, commit_, "", false);
    std::vector<std::string> names;
    for (const HubEntry& entry : entries.value_or(std::vector<HubEntry>())) {
      if (!hidden(entry.path, 0)) names.push_back(entry.path);
    }
    if (address_.path.find('/') == std::string::npos) {
      for (const HubConfiguration& config : configurations()) names.push_back(config.name);
    }
    if (names.empty()) return "check the path";
    std::ranges::sort(names);
    names.erase(std::ranges::unique(names).begin(), names.end());
    const std::string near = nearest_name(address_.path, names);
    if (!near.empty()) return fmt::format("did you mean '{}'?", near);
    constexpr size_t most = 10;
    const bool more = names.size() > most;
    names.resize(std::min(names.size(), most));
    return fmt::format("there are {}{}", fmt::join(names, ", "), more ? ", ..." : "");
  }

  void refuse_missing() {
    const auto beside = hub_.tree(address_, commit_, parent_of(address_.path), false);
    if (beside) {
      const auto it = std::ranges::find(*beside, address_.path, &HubEntry::path);
      if (it != beside->end() && it->is_file) {
        unsupported_ = it->path;
        return;
      }
    }
    throw usage_error(fmt::format("{} has no file, folder or configuration '{}'", address_.shown(), address_.path),
                      names_there());
  }

  Hub& hub_;
  const std::string& source_;
  std::span<const std::string_view> extensions_;
  HubAddress address_;
  std::string commit_;
  std::vector<SourceFile> files_;
  std::string unsupported_;  // the first file that was left out
  std::optional<std::vector<HubConfiguration>> configurations_;
};

std::vector<SourceFile> Hub::list(const std::string& source, std::span<const std::string_view> extensions) {
  return HubListing(*this, source, extensions).run();
}

}  // namespace mythos

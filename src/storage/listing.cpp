#include "base/error.h"
#include "base/units.h"
#include "storage/local.h"
#include "storage/storage.h"

#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

namespace mythos {
namespace fs = std::filesystem;

namespace {

struct Lister {
  std::span<const std::string_view> extensions;
  std::vector<SourceFile> files;
  std::string unsupported;  // the first file that was left out

  [[nodiscard]] bool supported(std::string_view path) const {
    return std::ranges::find(extensions, file_extension(path)) != extensions.end();
  }

  void add_file(const fs::path& path, std::string name) {
    if (!supported(path.string())) {
      if (unsupported.empty()) unsupported = path.string();
      return;
    }
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) throw failure(fmt::format("cannot read {}: {}", path.string(), error.message()));
    files.push_back({path.string(), std::move(name), size, ""});
  }

  // `prefix` stands before the names of the files inside.
  void add_folder(const fs::path& folder, const std::string& prefix) {
    std::error_code error;
    fs::recursive_directory_iterator it(folder, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      const bool hidden = it->path().filename().string().starts_with('.');
      if (hidden && it->is_directory(error)) it.disable_recursion_pending();
      if (!hidden && it->is_regular_file(error)) {
        add_file(it->path(), prefix + it->path().lexically_relative(folder).generic_string());
      }
    }
    if (error) throw failure(fmt::format("cannot list {}: {}", folder.string(), error.message()));
  }
};

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int rc = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  if (rc == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

// The names beside a missing path, to suggest the nearest.
std::vector<std::string> siblings(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
    if (names.size() == 1000) break;
  }
  return names;
}

}  // namespace

std::string file_extension(std::string_view path) {
  // Paths in repositories and buckets are plain; only web addresses have queries.
  if (path.starts_with("http://") || path.starts_with("https://")) path = path.substr(0, path.find_first_of("?#"));
  const auto lower = [](std::string text) {
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return text;
  };
  const fs::path file(path);
  std::string last = lower(file.extension().string());
  if (last == ".gz" || last == ".zst") last = lower(file.stem().extension().string()) + last;
  return last;
}

std::vector<SourceFile> list_local_files(const std::string& source, std::span<const std::string_view> extensions) {
  const std::string kinds = fmt::format("supported are {}", fmt::join(extensions, ", "));
  if (source.empty()) throw usage_error("no data source is given", "set data.source to a file, a folder or a glob");
  Lister lister{extensions, {}, {}};
  std::error_code error;
  const fs::path path(source);
  if (fs::is_directory(path, error)) {
    lister.add_folder(path, "");
    if (lister.files.empty()) throw usage_error(fmt::format("folder {} holds no data files", source), kinds);
  } else if (fs::is_regular_file(path, error)) {
    lister.add_file(path, path.filename().string());
    if (lister.files.empty()) throw usage_error(fmt::format("{} is not a data file by its extension", source), kinds);
  } else if (fs::exists(path, error)) {
    throw usage_error(fmt::format("{} is neither a file nor a folder", source));
  } else if (source.find_first_of("*?[") == std::string::npos) {
    const std::string near = nearest_name(path.filename().string(), siblings(path));
    throw usage_error(fmt::format("there is no file or folder {}", source),
                      near.empty() ? "check data.source" : fmt::format("did you mean '{}'?", near));
  } else {
    const std::vector<std::string> paths = matches_of(source);
    if (paths.empty()) throw usage_error(fmt::format("no file matches {}", source), "check data.source");
    // Names relative to the part of the pattern without wildcards: they stay when the whole tree is moved.
    const std::string fixed = source.substr(0, source.find_first_of("*?["));
    const fs::path base(fixed.substr(0, fixed.rfind('/') + 1));
    for (const std::string& match : paths) {
      const std::string name = match.substr(base.string().size());
      if (fs::is_directory(match, error)) {
        lister.add_folder(match, name + "/");
      } else if (fs::is_regular_file(match, error)) {
        lister.add_file(match, name);
      }
    }
    if (lister.files.empty()) {
      throw usage_error(
          lister.unsupported.empty()
              ? fmt::format("{} matches no data file", source)
              : fmt::format("{} matches {}, which is not a data file by its extension", source, lister.unsupported),
          kinds);
    }
  }
  std::ranges::sort(lister.files, {}, &SourceFile::location);
  const auto same = std::ranges::unique(lister.files, {}, &SourceFile::location);
  lister.files.erase(same.begin(), same.end());
  return std::move(lister.files);
}

}  // namespace mythos

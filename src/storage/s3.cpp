#include "storage/s3.h"

#include "base/random.h"
#include "base/units.h"
#include "storage/s3_access.h"

#include <arrow/buffer.h>
#include <arrow/util/async_generator.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

namespace mythos {
namespace {

using arrow::fs::FileInfo;
using arrow::fs::FileType;

constexpr std::string_view scheme = "s3://";
constexpr size_t part_bytes = size_t{8} << 20;
constexpr size_t max_files = 1'000'000;
constexpr auto check_every = std::chrono::seconds(2);

struct Address {
  std::string bucket;
  std::string key;  // without '/' at the end
  bool folder = false;
};

Address parse(const std::string& source) {
  const std::string rest = source.substr(scheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  Address address{rest.substr(0, slash), rest.substr(std::min(slash + 1, rest.size())), false};
  if (address.bucket.empty() || address.bucket.find_first_of("*?[:@ ") != std::string::npos) {
    throw usage_error(fmt::format("{} names no bucket", source), "the form is s3://BUCKET/PREFIX");
  }
  address.folder = address.key.empty() || address.key.ends_with('/');
  while (address.key.ends_with('/')) address.key.pop_back();
  if (address.key.starts_with('/') || address.key.find("//") != std::string::npos) {
    throw usage_error(fmt::format("{} has an empty name between two '/'", source));
  }
  return address;
}

// As Arrow writes the header "Last-Modified", so that listing and object can be compared.
std::string time_text(arrow::fs::TimePoint time) {
  if (time == arrow::fs::kNoTime) return "";
  const auto since = std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch());
  const auto seconds = static_cast<std::time_t>(since.count());
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

bool hidden(std::string_view key) { return key.starts_with('.') || key.find("/.") != std::string_view::npos; }

class Lister {
 public:
  Lister(const std::string& source, std::span<const std::string_view> extensions, const std::stop_token& stop)
      : source_(source), extensions_(extensions), stop_(stop), address_(parse(source)) {
    system_ = s3_file_system(address_.bucket);
  }

  std::vector<SourceFile> list() {
    if (address_.key.find_first_of("*?[") != std::string::npos) {
      add_matches();
    } else if (!address_.folder && add_object()) {
      if (files_.empty()) throw usage_error(fmt::format("{} is not a data file by its extension", source_), kinds());
    } else if (!add_folder(path(address_.key), "")) {
      missing();
    } else if (files_.empty()) {
      throw usage_error(fmt::format("folder {} holds no data files", source_), kinds());
    }
    std::ranges::sort(files_, {}, &SourceFile::location);
    return std::move(files_);
  }

 private:
  [[nodiscard]] std::string kinds() const { return fmt::format("supported are {}", fmt::join(extensions_, ", ")); }
  [[nodiscard]] std::string path(const std::string& key) const {
    return key.empty() ? address_.bucket : address_.bucket + "/" + key;
  }

  void add(const FileInfo& info, std::string name) {
    if (std::ranges::find(extensions_, file_extension(info.path())) == extensions_.end()) {
      if (unsupported_.empty()) unsupported_ = info.path();
      return;
    }
    if (files_.size() == max_files) throw usage_error(fmt::format("{} has over {} files", source_, max_files));
    files_.push_back({std::string(scheme) + info.path(), std::move(name), static_cast<uint64_t>(info.size()),
                      time_text(info.mtime())});
  }

  // Whether there is an object of exactly this name.
  bool add_object() {
    const auto info = retry_s3(s3_first_contact, stop_, "looking at", source_, [&] {
      const auto ask = [system = system_, path = path(address_.key)]() -> arrow::Result<FileInfo> {
        auto found = system->GetFileInfo(path);
        if (!found.ok()) return clearer_s3_status(*system, path, found.status());
        return found;
      };
      return call_s3(ask, stop_, "looking at", source_);
    });
    if (!info.ok()) throw s3_error(info.status(), "look at", source_);
    if (info->type() != FileType::File) return false;
    add(*info, info->base_name());
    return true;
  }

  // What lies below a folder, in batches as they come; false if there is nothing at all.
  template <class Take>
  bool walk(const std::string& folder, int depth, Take take) {
    arrow::fs::FileSelector select;
    select.base_dir = folder;
    select.recursive = depth > 0;
    select.max_recursion = depth;
    select.allow_not_found = false;  // with it Arrow takes a bucket that is not there for an empty one
    bool found = false;
    const size_t before = files_.size();
    const auto walked = retry_s3(s3_first_contact, stop_, "listing", source_, [&]() -> arrow::Result<bool> {
      files_.resize(before);
      found = false;
      const auto next = system_->GetFileInfoGenerator(select);
      for (;;) {
        ARROW_ASSIGN_OR_RAISE(const auto batch, await_s3(next(), stop_, "listing", source_));
        if (arrow::IsIterationEnd(batch)) return found;
        check_s3_stop(stop_, "listing", source_);
        for (const FileInfo& info : batch) {
          found = true;
          take(info);
        }
      }
    });
    if (s3_trouble(walked.status()) == S3Trouble::no_key) return false;
    if (!walked.ok()) {
      if (s3_trouble(walked.status()) == S3Trouble::no_bucket) no_bucket(walked.status());
      throw s3_error(walked.status(), "list", source_);
    }
    return found;
  }

  // All objects below `folder`; `prefix` stands before their names.
  bool add_folder(const std::string& folder, const std::string& prefix) {
    return walk(folder, INT32_MAX, [&](const FileInfo& info) {
      const std::string below = info.path().substr(folder.size() + 1);
      if (info.type() == FileType::File && !hidden(below)) add(info, prefix + below);
    });
  }

  void add_matches() {
    // Only as deep as the pattern goes: there may be millions of objects below.
    const std::string& pattern = address_.key;
    const std::string fixed = pattern.substr(0, pattern.find_first_of("*?["));
    const size_t base = fixed.rfind('/') == std::string::npos ? 0 : fixed.rfind('/') + 1;
    const std::string folder = path(fixed.substr(0, base == 0 ? 0 : base - 1));
    const auto depth = static_cast<int>(std::count(pattern.begin() + static_cast<ptrdiff_t>(base), pattern.end(), '/'));
    const size_t bucket = address_.bucket.size() + 1;
    std::vector<std::string> folders;
    bool matched = false;
    walk(folder, depth, [&](const FileInfo& info) {
      const std::string key = info.path().substr(bucket);
      if (::fnmatch(pattern.c_str(), key.c_str(), FNM_PATHNAME | FNM_PERIOD) != 0) return;
      matched = true;
      if (info.type() == FileType::Directory) folders.push_back(key);
      if (info.type() == FileType::File && !address_.folder) add(info, key.substr(base));
    });
    if (!matched) throw usage_error(fmt::format("no object matches {}", source_), "check data.source");
    std::ranges::sort(folders);  // a listing that was begun again names them twice
    folders.erase(std::ranges::unique(folders).begin(), folders.end());
    for (const std::string& key : folders) add_folder(path(key), key.substr(base) + "/");
    if (!files_.empty()) return;
    if (unsupported_.empty()) throw usage_error(fmt::format("{} matches no data file", source_), kinds());
    throw usage_error(
        fmt::format("{} matches {}{}, which is not a data file by its extension", source_, scheme, unsupported_),
        kinds());
  }

  // There is nothing at the address: looks for something near.
  [[noreturn]] void missing() {
    const size_t slash = address_.key.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : address_.key.substr(0, slash);
    const std::string name = slash == std::string::npos ? address_.key : address_.key.substr(slash + 1);
    if (name.empty()) throw usage_error(fmt::format("bucket {} is empty", source_));
    std::vector<std::string> names;
    const bool there = walk(path(folder), 0, [&](const FileInfo& info) {
      if (names.size() < 10'000) names.push_back(info.base_name());
    });
    if (!there && !folder.empty()) {
      throw usage_error(
          fmt::format("there is no object or folder {}, nor anything in {}{}/", source_, scheme, path(folder)),
          "check data.source");
    }
    const std::string near = nearest_name(name, names);
    throw usage_error(
        fmt::format("there is no object or folder {}", source_),
        near.empty() ? "check data.source"
                     : fmt::format("did you mean '{}{}'?", scheme, path(folder.empty() ? near : folder + "/" + near)));
  }

  [[noreturn]] void no_bucket(const arrow::Status& status) {
    arrow::fs::FileSelector all;  // the buckets of the account, if it may list them
    const auto buckets =
        call_s3([system = system_, all] { return system->GetFileInfo(all); }, stop_, "listing", source_);
    std::vector<std::string> names;
    if (buckets.ok()) {
      for (const FileInfo& info : *buckets) names.push_back(info.base_name());
    }
    const std::string near = nearest_name(address_.bucket, names);
    if (near.empty()) throw s3_error(status, "list", source_);
    throw usage_error(fmt::format("cannot list {}: there is no such bucket", source_),
                      fmt::format("did you mean '{}{}'?", scheme, near));
  }

  std::string source_;
  std::span<const std::string_view> extensions_;
  std::stop_token stop_;
  Address address_;
  std::shared_ptr<arrow::fs::S3FileSystem> system_;
  std::vector<SourceFile> files_;
  std::string unsupported_;  // the first object that was left out
};

// An object as it is now.
struct Object {
  std::shared_ptr<arrow::io::RandomAccessFile> file;
  uint64_t size = 0;
  std::string etag;
  std::string modified;
};

arrow::Result<Object> look(const std::shared_ptr<arrow::fs::S3FileSystem>& system, const std::string& path) {
  Object object;
  ARROW_ASSIGN_OR_RAISE(object.file, system->OpenInputFile(path));
  ARROW_ASSIGN_OR_RAISE(const int64_t size, object.file->GetSize());
  object.size = static_cast<uint64_t>(size);
  ARROW_ASSIGN_OR_RAISE(const auto headers, object.file->ReadMetadata());
  if (headers) {
    object.etag = headers->Get("ETag").ValueOr("");
    object.modified = headers->Get("Last-Modified").ValueOr("");
  }
  return object;
}

constexpr const char* leave_alone = "leave the data alone while it is being read";

class S3File : public ByteSource {
 public:
  S3File(const SourceFile& listed, const std::stop_token& stop) : name_(listed.location), size_(listed.size) {
    const Address address = parse(name_);
    path_ = address.bucket + "/" + address.key;
    system_ = s3_file_system(address.bucket);
    object_ = look_again(s3_under_way, stop);
    if (object_.size != size_) {
      throw failure(fmt::format("{} had {} bytes when it was listed and has {} now", name_, size_, object_.size),
                    leave_alone);
    }
    if (!listed.version.empty() && !object_.modified.empty() && object_.modified != listed.version) {
      throw failure(fmt::format("{} was replaced since it was listed: it was of {} and is of {} now", name_,
                                listed.version, object_.modified),
                    leave_alone);
    }
    checked_ = std::chrono::steady_clock::now();
  }

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] bool is_remote() const override { return true; }

  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token stop) const override {
    if (offset > size_ || into.size() > size_ - offset) {
      throw failure(
          fmt::format("{} has {} bytes; {} at offset {} are past its end", name_, size_, into.size(), offset));
    }
    while (!into.empty()) {
      const size_t n = std::min(into.size(), part_bytes);
      read_part(offset, into.first(n), stop);
      into = into.subspan(n);
      offset += n;
    }
    if (is_due()) check_unchanged(stop);
  }

 private:
  void read_part(uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) const {
    // What a server answers instead of data must fit as well, or the SDK does not get to see it.
    const size_t n = std::max<size_t>(into.size(), std::min<uint64_t>(4096, size_));
    const uint64_t first = std::min(offset, size_ - n);
    // Arrow (26) does not notice an answer that is whole but shorter than what was asked for, as that of an object
    // replaced by a smaller one is: the rest of its buffer is then left as it was. Random bytes at the end show that.
    std::array<std::byte, 16> mark{};
    Random random(derive_seed(reinterpret_cast<uintptr_t>(into.data()), first, "mark"));
    for (std::byte& b : mark) b = static_cast<std::byte>(random.below(256));
    const size_t marked = std::min(mark.size(), n);
    const auto read = [file = object_.file, first, n, mark, marked]() -> arrow::Result<std::shared_ptr<arrow::Buffer>> {
      ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, arrow::AllocateBuffer(static_cast<int64_t>(n)));
      uint8_t* const data = buffer->mutable_data();
      std::memcpy(data + (n - marked), mark.data(), marked);
      ARROW_ASSIGN_OR_RAISE(const int64_t got,
                            file->ReadAt(static_cast<int64_t>(first), static_cast<int64_t>(n), data));
      return arrow::SliceBuffer(std::move(buffer), 0, got);
    };
    const auto ask = [read, system = system_, path = path_]() -> arrow::Result<std::shared_ptr<arrow::Buffer>> {
      auto bytes = read();
      if (!bytes.ok()) return clearer_s3_status(*system, path, bytes.status());
      return bytes;
    };
    const auto part = retry_s3(s3_under_way, stop, "reading", name_, [&] {
      auto result = call_s3(ask, stop, "reading", name_);
      // A refusal that did not fit, or one that is not known: most likely the object is another.
      const bool unclear = result.status().message().find("response stream") != std::string::npos ||
                           s3_trouble(result.status()) == S3Trouble::other;
      if (unclear) check_unchanged(stop);
      return result;
    });
    if (!part.ok()) throw s3_error(part.status(), "read", name_);
    const auto got = static_cast<size_t>((*part)->size());
    const uint8_t* const data = (*part)->data();
    size_t left = 0;  // bytes of the mark that are still there
    while (got == n && left < marked && std::byte{data[n - 1 - left]} == mark[marked - 1 - left]) ++left;
    if (got != n || left > 0) {
      check_unchanged(stop);
      // A few bytes may be like the mark's by chance.
      if (got != n || left >= 8) {
        throw failure(fmt::format("{} gave less than the {} bytes asked for at offset {}", name_, n, first),
                      "the server or a proxy in between is at fault");
      }
    }
    std::memcpy(into.data(), data + (offset - first), into.size());
  }

  Object look_again(S3Patience patience, const std::stop_token& stop) const {
    auto object = retry_s3(patience, stop, "opening", name_, [&] {
      const auto ask = [system = system_, path = path_]() -> arrow::Result<Object> {
        auto found = look(system, path);
        if (!found.ok()) return clearer_s3_status(*system, path, found.status());
        return found;
      };
      return call_s3(ask, stop, "opening", name_);
    });
    if (!object.ok()) {
      if (s3_trouble(object.status()) == S3Trouble::no_key) {
        throw failure(fmt::format("{} is gone since it was listed", name_), leave_alone);
      }
      throw s3_error(object.status(), "open", name_);
    }
    return *std::move(object);
  }

  [[nodiscard]] bool is_due() const {
    const std::lock_guard lock(mutex_);
    return std::chrono::steady_clock::now() - checked_ > check_every;
  }
  // Arrow's reads name no version; but what did not change before and after a read did not change in between.
  void check_unchanged(const std::stop_token& stop) const {
    const auto begun = std::chrono::steady_clock::now();
    const Object now = look_again(s3_under_way, stop);
    if (now.etag != object_.etag || now.size != size_ || now.modified != object_.modified) {
      throw failure(fmt::format("{} was replaced while it was being read", name_), leave_alone);
    }
    const std::lock_guard lock(mutex_);
    checked_ = std::max(checked_, begun);
  }

  std::string name_;
  std::string path_;
  uint64_t size_;
  std::shared_ptr<arrow::fs::S3FileSystem> system_;
  Object object_;
  mutable std::mutex mutex_;
  mutable std::chrono::steady_clock::time_point checked_;
};

}  // namespace

bool is_s3_address(std::string_view source) { return source.starts_with(scheme); }

std::vector<SourceFile> list_s3_files(const std::string& source, std::span<const std::string_view> extensions,
                                      std::stop_token stop) {
  return Lister(source, extensions, stop).list();
}

std::shared_ptr<const ByteSource> open_s3_file(const SourceFile& file, std::stop_token stop) {
  return std::make_shared<S3File>(file, stop);
}

}  // namespace mythos

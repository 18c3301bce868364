#include "storage/s3_folder.h"

#include "storage/s3.h"
#include "storage/s3_access.h"

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace mythos {
namespace {

constexpr std::string_view scheme = "s3://";
constexpr size_t piece = size_t{8} << 20;
constexpr size_t in_flight = size_t{32} << 20;

// Streams whose upload could not be called off. Their destructor would complete it, so they never see it.
void keep_for_ever(std::shared_ptr<arrow::io::OutputStream> stream) {
  static auto* const kept = new std::vector<std::shared_ptr<arrow::io::OutputStream>>();
  kept->push_back(std::move(stream));
}

class Upload : public ByteSink {
 public:
  Upload(std::shared_ptr<arrow::fs::S3FileSystem> system, std::string path, std::string shown)
      : system_(std::move(system)), path_(std::move(path)), shown_(std::move(shown)) {
    auto opened = system_->OpenOutputStream(path_, nullptr);
    if (!opened.ok()) throw s3_error(opened.status(), "write", shown_);
    stream_ = *std::move(opened);
  }
  ~Upload() override {
    if (!stream_) return;
    if (!stream_->Abort().ok() && !stream_->closed()) keep_for_ever(std::move(stream_));
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(piece, bytes.size()));
      check(stream_->Write(part.data(), static_cast<int64_t>(part.size())));
      size_ += part.size();
      pending_ += part.size();
      bytes = bytes.subspan(part.size());
      if (pending_ < in_flight) continue;
      check(stream_->Flush());  // waits for the parts on their way: they are copies
      pending_ = 0;
    }
  }

  void commit() override {
    check(stream_->Close());
    stream_.reset();
    const auto info = system_->GetFileInfo(path_);
    if (!info.ok()) throw s3_error(info.status(), "look at", shown_);
    if (info->type() != arrow::fs::FileType::File || static_cast<uint64_t>(info->size()) != size_) {
      throw failure(fmt::format("{} has {} bytes after {} were written", shown_, info->size(), size_),
                    "the server or a proxy in between is at fault");
    }
  }

 private:
  void check(const arrow::Status& status) const {
    if (!status.ok()) {
      const Error e = s3_error(status, "write", shown_);
      throw Error(e.code(), fmt::format("{}, after {} bytes", e.what(), size_), e.hint());
    }
  }

  std::shared_ptr<arrow::fs::S3FileSystem> system_;
  std::string path_, shown_;
  std::shared_ptr<arrow::io::OutputStream> stream_;
  uint64_t size_ = 0, pending_ = 0;
};

}  // namespace

S3Folder::S3Folder(const std::string& address, double patience)
    : address_(address), path_(address.substr(std::min(scheme.size(), address.size()))), patience_(patience) {
  while (path_.ends_with('/')) path_.pop_back();
  address_ = std::string(scheme) + path_;
  const std::string bucket = path_.substr(0, path_.find('/'));
  if (!is_s3_address(address) || bucket.empty() || bucket.find_first_of("*?[:@ ") != std::string::npos ||
      path_.find("//") != std::string::npos) {
    throw usage_error(fmt::format("{} names no folder on S3", address), "the form is s3://BUCKET/PREFIX");
  }
}

std::shared_ptr<arrow::fs::S3FileSystem> S3Folder::system(bool parallel) const {
  return s3_write_system(path_.substr(0, path_.find('/')), patience_, parallel);
}

std::vector<S3Folder::Entry> S3Folder::list() const {
  arrow::fs::FileSelector select;
  select.base_dir = path_;
  const auto found = system()->GetFileInfo(select);
  std::vector<Entry> entries;
  if (!found.ok()) {
    if (s3_trouble(found.status()) == S3Trouble::no_key) return entries;
    throw s3_error(found.status(), "list", address_);
  }
  for (const auto& info : *found) {
    if (info.type() != arrow::fs::FileType::File) continue;
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(info.mtime().time_since_epoch()).count();
    entries.push_back({info.base_name(), static_cast<uint64_t>(info.size()), fmt::format("{} {}", info.size(), time)});
  }
  std::ranges::sort(entries, {}, &Entry::name);
  return entries;
}

std::unique_ptr<ByteSink> S3Folder::upload(const std::string& name, bool fast) const {
  return std::make_unique<Upload>(system(fast), path(name), shown(name));
}

void S3Folder::put(const std::string& name, std::string_view text) const {
  const auto sink = upload(name, false);
  sink->write(std::as_bytes(std::span(text)));
  sink->commit();
}

std::string S3Folder::get(const std::string& name, uint64_t max_bytes) const {
  const auto read = [&]() -> arrow::Result<std::string> {
    ARROW_ASSIGN_OR_RAISE(const auto file, system()->OpenInputFile(path(name)));
    ARROW_ASSIGN_OR_RAISE(const int64_t size, file->GetSize());
    if (static_cast<uint64_t>(size) > max_bytes) {
      return arrow::Status::Invalid(fmt::format("it has {} bytes, more than the {} allowed here", size, max_bytes));
    }
    ARROW_ASSIGN_OR_RAISE(const auto buffer, file->ReadAt(0, size));
    return buffer->ToString();
  };
  auto text = read();
  if (!text.ok()) throw s3_error(text.status(), "read", shown(name));
  return *std::move(text);
}

void S3Folder::remove(const std::string& name) const {
  const auto status = system()->DeleteFile(path(name));
  if (!status.ok() && s3_trouble(status) != S3Trouble::no_key) throw s3_error(status, "delete", shown(name));
}

void S3Folder::move(const std::string& name, const S3Folder& to) const {
  const auto status = system()->Move(path(name), to.path(name));
  if (!status.ok()) throw s3_error(status, "move", shown(name));
}

std::shared_ptr<const ByteSource> S3Folder::open(const Entry& entry) const {
  return open_s3_file({.location = shown(entry.name), .name = entry.name, .size = entry.size, .version = ""});
}

}  // namespace mythos

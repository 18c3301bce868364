// A Parquet file as units: its row groups.
#include "base/error.h"
#include "data/data_file.h"
#include "data/parquet.h"

#include <mutex>
#include <utility>

namespace mythos {
namespace {

// Above this a row group is not fetched while another one is read: memory.
constexpr uint64_t max_early_bytes = UINT64_C(16) << 20;

class ParquetUnits : public DataFile {
 public:
  ParquetUnits(std::function<std::shared_ptr<const ByteSource>()> open, std::string column, uint64_t max_document_bytes)
      : open_(std::move(open)), column_(std::move(column)), max_document_bytes_(max_document_bytes) {}

  bool has(int64_t part, std::stop_token stop) override { return part >= 0 && part < count(stop); }

  int64_t count(std::stop_token stop) override {
    const std::lock_guard lock(mutex_);
    if (!known_) opened(stop);
    return static_cast<int64_t>(units_.size());
  }

  UnitInfo info(int64_t part, std::stop_token stop) override {
    const std::lock_guard lock(mutex_);
    if (!known_) opened(stop);
    return units_.at(static_cast<size_t>(part));
  }

  std::unique_ptr<UnitReader> read(int64_t part, std::stop_token stop) override {
    std::shared_ptr<const ParquetFile> file;
    {
      const std::lock_guard lock(mutex_);
      file = opened(stop);
    }
    // The reader holds what it needs of the file.
    return file->read(static_cast<size_t>(part), max_document_bytes_, std::move(stop));
  }

  void release() override {
    const std::lock_guard lock(mutex_);
    held_.reset();
  }

  [[nodiscard]] bool fetches_early(int64_t part) const override {
    const std::lock_guard lock(mutex_);
    const auto i = static_cast<size_t>(part);
    return remote_ && i < units_.size() && units_[i].bytes <= max_early_bytes;
  }

 private:
  std::shared_ptr<const ParquetFile> opened(const std::stop_token& stop) {
    auto file = file_.lock();
    if (file) return file;
    const auto source = open_();
    file = std::make_shared<const ParquetFile>(source, column_, stop);
    const auto& groups = file->row_groups();
    if (known_ && groups.size() != units_.size()) {
      throw failure(fmt::format("{} changed while it was in use", source->name()),
                    "leave the data alone while it is read");
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      if (known_ && groups[i].rows != units_[i].documents) {
        throw failure(fmt::format("{} changed while it was in use", source->name()),
                      "leave the data alone while it is read");
      }
      if (!known_) units_.push_back({groups[i].rows, groups[i].bytes});
    }
    known_ = true;
    remote_ = source->is_remote();
    file_ = held_ = file;
    return file;
  }

  mutable std::mutex mutex_;
  std::function<std::shared_ptr<const ByteSource>()> open_;
  std::string column_;
  uint64_t max_document_bytes_;
  bool known_ = false;
  bool remote_ = false;
  std::vector<UnitInfo> units_;
  std::shared_ptr<const ParquetFile> held_;  // until release()
  std::weak_ptr<const ParquetFile> file_;    // as long as somebody reads it
};

}  // namespace

std::unique_ptr<DataFile> open_parquet_units(std::function<std::shared_ptr<const ByteSource>()> open,
                                             std::string column, uint64_t max_document_bytes) {
  return std::make_unique<ParquetUnits>(std::move(open), std::move(column), max_document_bytes);
}

}  // namespace mythos

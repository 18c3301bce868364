#include "data/parquet.h"

#include "base/error.h"
#include "base/units.h"

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

namespace mythos {
namespace {

constexpr int64_t read_ahead_bytes = INT64_C(1) << 20;  // of a column chunk at a time
constexpr int64_t max_pool_bytes = INT64_C(4) << 30;    // one open row group may not take more
constexpr int64_t batch = 256;                          // values per call of the decoder
constexpr std::string_view magic = "PAR1";

// Arrow's view of a ByteSource. An Error from below is kept, so that it is not taken for damage in the file.
class ArrowFile : public arrow::io::RandomAccessFile {
 public:
  ArrowFile(std::shared_ptr<const ByteSource> source, std::stop_token stop)
      : source_(std::move(source)), stop_(std::move(stop)) {
    set_mode(arrow::io::FileMode::READ);
  }

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  [[nodiscard]] bool closed() const override { return closed_; }
  [[nodiscard]] arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Status Seek(int64_t position) override {
    if (position < 0) return arrow::Status::Invalid("negative offset");
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> GetSize() override { return static_cast<int64_t>(source_->size()); }

  arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void* out) override {
    if (position < 0 || bytes < 0) return arrow::Status::Invalid("negative offset or length");
    const auto size = static_cast<int64_t>(source_->size());
    const int64_t n = std::max<int64_t>(0, std::min(bytes, size - position));
    try {
      if (n > 0)
        source_->read_at(static_cast<uint64_t>(position), {static_cast<std::byte*>(out), static_cast<size_t>(n)},
                         stop_);
    } catch (const std::exception& error) {
      error_ = std::current_exception();
      return arrow::Status::IOError(error.what());
    }
    return n;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override {
    // Never more memory than the file has bytes, whatever a damaged footer asks for.
    const auto size = static_cast<int64_t>(source_->size());
    const int64_t n = std::max<int64_t>(0, std::min(bytes, size - position));
    ARROW_ASSIGN_OR_RAISE(std::unique_ptr<arrow::ResizableBuffer> buffer, arrow::AllocateResizableBuffer(n));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, n, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position_, bytes, out));
    position_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, ReadAt(position_, bytes));
    position_ += buffer->size();
    return buffer;
  }

  void rethrow_error() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  std::stop_token stop_;
  int64_t position_ = 0;
  bool closed_ = false;
  std::exception_ptr error_;
};

parquet::ReaderProperties reader_properties(arrow::MemoryPool* pool) {
  parquet::ReaderProperties properties(pool);
  properties.enable_buffered_stream();
  properties.set_buffer_size(read_ahead_bytes);
  properties.set_page_checksum_verification(true);
  return properties;
}

// Arrow's messages can have several lines.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, 300));
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return line;
}

class RowGroupReader : public UnitReader {
 public:
  RowGroupReader(std::shared_ptr<const ParquetFile> owner, std::shared_ptr<const ByteSource> source,
                 std::shared_ptr<parquet::FileMetaData> metadata, int row_group, int column, int64_t rows,
                 uint64_t max_document_bytes, std::stop_token stop)
      : owner_(std::move(owner)),
        name_(source->name()),
        file_(std::make_shared<ArrowFile>(std::move(source), std::move(stop))),
        metadata_(std::move(metadata)),
        row_group_(row_group),
        column_(column),
        left_(rows),
        rows_(rows),
        limit_(max_document_bytes) {}

  bool next(Entry& entry) override {
    if (ended_) return false;
    if (!fetch(batch)) return end(entry);
    entry.count = 1;
    --left_;
    if (levels_[row_++] < max_level_) {
      entry.kind = Entry::Kind::empty;
      return true;
    }
    const parquet::ByteArray value = values_[value_++];
    if (value.len > limit_) {
      entry.kind = Entry::Kind::damaged;
      entry.problem = fmt::format("{}, row {}: a document of {} bytes, more than the {} that one may have", place(),
                                  rows_ - left_ - 1, value.len, limit_);
      return true;
    }
    entry.text = {reinterpret_cast<const char*>(value.ptr), value.len};
    entry.kind = value.len == 0 ? Entry::Kind::empty : Entry::Kind::text;
    return true;
  }

  void skip(int64_t count) override {
    Entry entry;
    while (count-- > 0 && next(entry)) {
      // A break while passing over what was read before is not met again behind it.
      if (ended_) throw failure(fmt::format("{} could be read before and cannot now", place()), entry.problem);
    }
  }

 private:
  [[nodiscard]] std::string place() const { return fmt::format("{}, row group {}", name_, row_group_); }

  // Makes sure that a decoded row is waiting. False at the end, good or bad.
  bool fetch(int64_t wanted) {
    if (row_ < n_rows_) return true;
    try {
      if (!reader_) open();
      if (!reader_->HasNext()) return false;
      row_ = n_rows_ = value_ = 0;
      int64_t n_values = 0;
      const int64_t n = reader_->ReadBatch(wanted, levels_.data(), nullptr, values_.data(), &n_values);
      int64_t present = 0;
      if (max_level_ == 0) std::fill_n(levels_.begin(), std::max<int64_t>(n, 0), int16_t{0});
      for (int64_t i = 0; i < n; ++i) present += levels_[static_cast<size_t>(i)] >= max_level_ ? 1 : 0;
      if (n <= 0 || n > wanted || present != n_values) {
        problem_ = "a page with fewer values than it says";
        return false;
      }
      if (n > left_) {
        problem_ = "more rows than the footer says";
        return false;
      }
      n_rows_ = static_cast<size_t>(n);
      return true;
    } catch (const std::exception& error) {
      file_->rethrow_error();
      problem_ = one_line(error.what());
      return false;
    }
  }

  bool end(Entry& entry) {
    ended_ = true;
    reader_.reset();
    file_reader_.reset();
    if (left_ == 0 && problem_.empty()) return false;
    if (problem_.empty()) problem_ = "fewer rows than the footer says";
    entry.kind = Entry::Kind::damaged;
    entry.problem = fmt::format("{} is damaged behind row {} of {}: {}", place(), rows_ - left_, rows_, problem_);
    entry.count = std::max<int64_t>(1, left_);
    return true;
  }

  void open() {
    file_reader_ = parquet::ParquetFileReader::Open(file_, reader_properties(&pool_), metadata_);
    auto reader = file_reader_->RowGroup(row_group_)->Column(column_);
    reader_ = std::dynamic_pointer_cast<parquet::ByteArrayReader>(reader);
    if (!reader_) throw parquet::ParquetException("the column is not of bytes");
    max_level_ = reader_->descr()->max_definition_level();
  }

  std::shared_ptr<const ParquetFile> owner_;
  std::string name_;
  std::shared_ptr<ArrowFile> file_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  int row_group_;
  int column_;
  int64_t left_;  // rows the footer promises and next() has not given
  int64_t rows_;
  uint64_t limit_;

  arrow::ProxyMemoryPool counted_{arrow::default_memory_pool()};
  arrow::CappedMemoryPool pool_{&counted_, max_pool_bytes};
  std::unique_ptr<parquet::ParquetFileReader> file_reader_;
  std::shared_ptr<parquet::ByteArrayReader> reader_;
  int16_t max_level_ = 0;
  std::array<int16_t, batch> levels_{};
  std::array<parquet::ByteArray, batch> values_{};
  size_t row_ = 0;
  size_t n_rows_ = 0;
  size_t value_ = 0;
  bool ended_ = false;
  std::string problem_;
};

// The footer, with as few reads as can be: the file's last bytes hold its length, and mostly all of it.
std::shared_ptr<parquet::FileMetaData> read_footer(const ByteSource& source, const std::stop_token& stop) {
  constexpr uint64_t first_read = 64 << 10;
  constexpr uint64_t most = UINT64_C(1) << 30;
  constexpr uint64_t tail_bytes = 8;  // length and mark
  const std::string& name = source.name();
  const uint64_t size = source.size();
  if (size < 12) throw DamagedFile(fmt::format("{} is not a Parquet file: it has {} bytes", name, size));
  if (!source.is_remote()) {
    std::array<char, 4> head{};
    source.read_at(0, std::as_writable_bytes(std::span(head)), stop);
    if (std::string_view(head.data(), 4) != magic) {
      throw DamagedFile(fmt::format("{} is not a Parquet file: it does not begin with PAR1", name));
    }
  }
  std::vector<char> tail(std::min(first_read, size));
  source.read_at(size - tail.size(), std::as_writable_bytes(std::span(tail)), stop);
  const std::string_view mark(tail.data() + tail.size() - 4, 4);
  if (mark == "PARE") throw DamagedFile(fmt::format("{} is encrypted", name));
  if (mark != magic) {
    throw DamagedFile(fmt::format("{} is not a whole Parquet file: its {} bytes end without a footer", name, size));
  }
  uint32_t length = 0;
  std::memcpy(&length, tail.data() + tail.size() - tail_bytes, sizeof length);
  if (length > most || length + tail_bytes + 4 > size) {
    throw DamagedFile(fmt::format("{} has a damaged footer: {} bytes long in a file of {}", name, length, size));
  }
  if (length + tail_bytes > tail.size()) {
    tail.resize(length + tail_bytes);
    source.read_at(size - tail.size(), std::as_writable_bytes(std::span(tail)), stop);
  }
  return parquet::FileMetaData::Make(tail.data() + tail.size() - tail_bytes - length, int64_t{length},
                                     reader_properties(arrow::default_memory_pool()));
}

}  // namespace

struct ParquetFile::Footer {
  std::shared_ptr<parquet::FileMetaData> metadata;
  int column = -1;
};

ParquetFile::ParquetFile(std::shared_ptr<const ByteSource> source, const std::string& column,
                         const std::stop_token& stop)
    : source_(std::move(source)), footer_(std::make_unique<Footer>()) {
  const std::string& name = source_->name();
  try {
    footer_->metadata = read_footer(*source_, stop);
    const parquet::FileMetaData& metadata = *footer_->metadata;
    const parquet::SchemaDescriptor& schema = *metadata.schema();
    footer_->column = schema.ColumnIndex(column);
    if (footer_->column < 0) {
      std::vector<std::string> columns;
      for (int i = 0; i < schema.num_columns(); ++i) columns.push_back(schema.Column(i)->path()->ToDotString());
      for (const std::string& path : columns) {
        if (!path.starts_with(column + ".")) continue;
        throw usage_error(fmt::format("column '{}' of {} holds lists or structures, not text", column, name),
                          "set data.text_column to a column of strings");
      }
      throw usage_error(fmt::format("{} has no column '{}'", name, column), suggestion(column, columns));
    }
    const parquet::ColumnDescriptor& text = *schema.Column(footer_->column);
    if (text.physical_type() != parquet::Type::BYTE_ARRAY || text.max_repetition_level() > 0) {
      throw usage_error(
          fmt::format("column '{}' of {} is {}, not text", column, name,
                      text.max_repetition_level() > 0 ? "a list" : parquet::TypeToString(text.physical_type())),
          "set data.text_column to a column of strings");
    }
    int64_t rows = 0;
    for (int g = 0; g < metadata.num_row_groups(); ++g) {
      const auto group = metadata.RowGroup(g);
      const auto chunk = group->ColumnChunk(footer_->column);
      const int64_t bytes = chunk->total_compressed_size();
      if (group->num_rows() < 0 || bytes < 0 || chunk->num_values() != group->num_rows()) {
        throw DamagedFile(fmt::format("{} has a damaged footer: row group {} has {} rows and {} values", name, g,
                                      group->num_rows(), chunk->num_values()));
      }
      int64_t offset = chunk->data_page_offset();
      if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0) {
        offset = std::min(offset, chunk->dictionary_page_offset());
      }
      row_groups_.push_back(
          {group->num_rows(), static_cast<uint64_t>(std::max<int64_t>(offset, 0)), static_cast<uint64_t>(bytes)});
      rows += group->num_rows();
    }
    if (rows != metadata.num_rows()) {
      throw DamagedFile(fmt::format("{} has a damaged footer: its row groups have {} rows together, not {}", name, rows,
                                    metadata.num_rows()));
    }
  } catch (const Error&) {
    throw;
  } catch (const DamagedFile&) {
    throw;
  } catch (const std::exception& error) {
    throw DamagedFile(fmt::format("{} has a damaged footer: {}", name, one_line(error.what())));
  }
}

ParquetFile::~ParquetFile() = default;

std::unique_ptr<UnitReader> ParquetFile::read(size_t row_group, uint64_t max_document_bytes,
                                              std::stop_token stop) const {
  const RowGroup& group = row_groups_.at(row_group);
  const uint64_t offset = std::min(group.offset, source_->size());
  return std::make_unique<RowGroupReader>(
      shared_from_this(), read_ahead(source_, offset, std::min(group.bytes, source_->size() - offset)),
      footer_->metadata, static_cast<int>(row_group), footer_->column, group.rows, max_document_bytes, std::move(stop));
}

}  // namespace mythos

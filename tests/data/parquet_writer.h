// Writes Parquet files of one text column for tests.
#pragma once

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace mythos::test {

using Texts = std::vector<std::optional<std::string>>;

struct ParquetStyle {
  enum class Type { string, large_string, dictionary, binary, integer } type = Type::string;
  parquet::Compression::type codec = parquet::Compression::SNAPPY;
  parquet::Encoding::type encoding = parquet::Encoding::PLAIN;
  bool dictionary_pages = true;
  bool second_page_format = false;
  bool nullable = true;
  std::string column = "text";
  int64_t page_bytes = 1 << 20;
};

inline void ok(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <class Builder>
std::shared_ptr<arrow::Array> build(const Texts& texts) {
  Builder builder;
  for (const auto& text : texts) ok(text ? builder.Append(*text) : builder.AppendNull());
  std::shared_ptr<arrow::Array> array;
  ok(builder.Finish(&array));
  return array;
}

inline std::shared_ptr<arrow::Array> array_of(const Texts& texts, ParquetStyle::Type type) {
  switch (type) {
    case ParquetStyle::Type::string:
      return build<arrow::StringBuilder>(texts);
    case ParquetStyle::Type::large_string:
      return build<arrow::LargeStringBuilder>(texts);
    case ParquetStyle::Type::dictionary:
      return build<arrow::StringDictionary32Builder>(texts);
    case ParquetStyle::Type::binary:
      return build<arrow::BinaryBuilder>(texts);
    case ParquetStyle::Type::integer:
      break;
  }
  arrow::Int64Builder builder;
  for (size_t i = 0; i < texts.size(); ++i) ok(builder.Append(static_cast<int64_t>(i)));
  std::shared_ptr<arrow::Array> array;
  ok(builder.Finish(&array));
  return array;
}

/// A file with an `id` column and the text column; one row group for each list.
inline void write_parquet(const std::string& path, const std::vector<Texts>& row_groups,
                          const ParquetStyle& style = {}) {
  const auto type = array_of({}, style.type)->type();
  const auto schema =
      arrow::schema({arrow::field("id", arrow::int64()), arrow::field(style.column, type, style.nullable)});
  parquet::WriterProperties::Builder properties;
  properties.compression(style.codec)->data_pagesize(style.page_bytes)->enable_page_checksum()->write_batch_size(16);
  if (style.second_page_format) properties.data_page_version(parquet::ParquetDataPageVersion::V2);
  if (!style.dictionary_pages) properties.disable_dictionary()->encoding(style.column, style.encoding);
  const auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  const auto file = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  auto writer = parquet::arrow::FileWriter::Open(*schema, arrow::default_memory_pool(), file, properties.build(),
                                                 arrow_properties)
                    .ValueOrDie();
  for (const Texts& texts : row_groups) {
    ok(writer->NewRowGroup());
    ok(writer->WriteColumnChunk(*array_of(texts, ParquetStyle::Type::integer)));
    ok(writer->WriteColumnChunk(*array_of(texts, style.type)));
  }
  ok(writer->Close());
  ok(file->Close());
}

}  // namespace mythos::test

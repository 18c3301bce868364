// Parquet: types, codecs, damage.
#include "data/parquet.h"

#include "fixtures.h"
#include "parquet_writer.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace mythos::test {
namespace {

using Codec = parquet::Compression;

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Texts sample_texts() {
  Texts texts{
      "plain", std::nullopt, "", "caf\xC3\xA9 \xE4\xB8\xAD", std::string("nul\0here", 8), "\xFF\xFE bytes \xC0\x80"};
  texts.emplace_back(std::string(30'000, 'x'));
  for (int i = 0; i < 700; ++i) texts.emplace_back("document " + std::to_string(i % 50));
  return texts;
}

std::vector<std::string> present(const std::vector<Texts>& groups) {
  std::vector<std::string> documents;
  for (const Texts& texts : groups) {
    for (const auto& text : texts) {
      if (text && !text->empty()) documents.push_back(*text);
    }
  }
  return documents;
}

TEST(Parquet, every_codec) {
  const TempFolder folder;
  const std::vector<Texts> groups{sample_texts(), {}, sample_texts()};
  for (const auto codec : {Codec::UNCOMPRESSED, Codec::SNAPPY, Codec::GZIP, Codec::BROTLI, Codec::ZSTD, Codec::LZ4}) {
    ParquetStyle style;
    style.codec = codec;
    style.page_bytes = 1000;
    write_parquet(folder / "a.parquet", groups, style);
    EXPECT_EQ(all_documents(options_for(folder / "a.parquet", 1)), present(groups)) << codec;
  }
}

TEST(Parquet, every_type_encoding_and_page_format) {
  const TempFolder folder;
  const std::vector<Texts> groups{sample_texts(), sample_texts()};
  const auto expect_same = [&](const ParquetStyle& style) {
    write_parquet(folder / "a.parquet", groups, style);
    EXPECT_EQ(all_documents(options_for(folder / "a.parquet", 1)), present(groups));
  };
  using Type = ParquetStyle::Type;
  for (const auto type : {Type::string, Type::large_string, Type::dictionary, Type::binary}) {
    for (const bool second : {false, true}) {
      ParquetStyle style;
      style.type = type;
      style.second_page_format = second;
      style.page_bytes = 2000;
      expect_same(style);
    }
  }
  using Encoding = parquet::Encoding;
  for (const auto encoding : {Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY}) {
    ParquetStyle style;
    style.dictionary_pages = false;
    style.encoding = encoding;
    style.page_bytes = 2000;
    expect_same(style);
  }
}

TEST(Parquet, a_column_that_cannot_be_null) {
  const TempFolder folder;
  ParquetStyle style;
  style.nullable = false;
  write_parquet(folder / "a.parquet", {{"a", "", "b"}, {"c"}}, style);
  EXPECT_EQ(all_documents(options_for(folder / "a.parquet", 1)), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Parquet, the_column_is_chosen_by_name) {
  const TempFolder folder;
  ParquetStyle style;
  style.column = "content";
  write_parquet(folder / "a.parquet", {{"a"}}, style);
  auto options = options_for(folder / "a.parquet", 1);
  options.text_column = "content";
  EXPECT_EQ(all_documents(options), std::vector<std::string>{"a"});
  options.text_column = "contents";
  const auto missing = error_of([&] { Corpus corpus(options); }, ExitCode::usage);
  EXPECT_CONTAINS(missing, "no column 'contents'");
  EXPECT_CONTAINS(missing, "did you mean 'content'");
  options.text_column = "id";
  EXPECT_CONTAINS(error_of([&] { Corpus corpus(options); }, ExitCode::usage), "INT64, not text");
  options.on_bad_data = OnBadData::skip;  // a wrong setting is no bad data
  EXPECT_CONTAINS(error_of([&] { Corpus corpus(options); }, ExitCode::usage), "not text");
}

// D13: half a file, or something else under its name.
TEST(Parquet, D13_truncated_files_say_so) {
  const TempFolder folder;
  write_parquet(folder / "whole.parquet", {sample_texts()});
  const std::string whole = contents(folder / "whole.parquet");
  const auto refused = [&](std::string_view text) {
    const auto path = folder.write("half.parquet", text);
    auto options = options_for(path, 1);
    const auto line = error_of([&] { Corpus corpus(options); }, ExitCode::failed);
    EXPECT_CONTAINS(line, "half.parquet");
    options.on_bad_data = OnBadData::skip;
    EXPECT_CONTAINS(error_of([&] { Corpus corpus(options); }, ExitCode::usage), "no documents");
    return line;
  };
  EXPECT_CONTAINS(refused(""), "it has 0 bytes");
  EXPECT_CONTAINS(refused("<html>403 Forbidden</html>"), "does not begin with PAR1");
  for (const size_t n : {whole.size() - 1, whole.size() / 2, size_t{100}}) {
    EXPECT_CONTAINS(refused(whole.substr(0, n)), "end without a footer");
  }
  // The middle is missing.
  EXPECT_CONTAINS(refused(whole.substr(0, 50) + whole.substr(whole.size() - 8)), "damaged footer");

  // Beside good files it is left out and the others are read.
  write_parquet(folder / "good.parquet", {{"a", "b"}});
  folder.write("half.parquet", whole.substr(0, whole.size() / 2));
  fs::remove(folder / "whole.parquet");
  auto options = options_for(folder.string(), 1);
  options.on_bad_data = OnBadData::skip;
  EXPECT_EQ(all_documents(options), (std::vector<std::string>{"a", "b"}));
  const Corpus corpus(options);
  EXPECT_EQ(corpus.totals().documents, 2);
  EXPECT_EQ(corpus.files_skipped(), 1);
}

// Three row groups of readable documents, about 50 kB.
std::vector<Texts> fifty_kilobytes() {
  std::vector<Texts> groups(3);
  for (int g = 0; g < 3; ++g) {
    for (int d = 0; d < 60; ++d) {
      groups[static_cast<size_t>(g)].push_back(counting(100'000 * (g + 1) + 1000 * d, 36));
    }
  }
  return groups;
}

// D10: a flipped byte anywhere is an error that names the file, or changes nothing.
TEST(Parquet, D10_flipped_bytes_never_pass_unnoticed) {
  const TempFolder folder;
  const auto groups = fifty_kilobytes();
  const auto expected = present(groups);
  for (const auto codec : {Codec::UNCOMPRESSED, Codec::SNAPPY}) {
    ParquetStyle style;
    style.codec = codec;
    style.dictionary_pages = false;
    style.page_bytes = 4000;
    write_parquet(folder / "a.parquet", groups, style);
    const std::string whole = contents(folder / "a.parquet");
    if (codec == Codec::UNCOMPRESSED) {
      EXPECT_GT(whole.size(), 45'000U);
    }
    int errors = 0;
    for (size_t at = 0; at < whole.size(); at += 97) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
      const auto path = folder.write("flipped.parquet", flipped);
      auto options = options_for(path, 1);
      try {
        EXPECT_EQ(all_documents(options), expected) << "byte " << at;
      } catch (const Error& error) {
        ++errors;
        EXPECT_CONTAINS(error.line(), "flipped.parquet");
      }
    }
    EXPECT_GT(errors, codec == Codec::SNAPPY ? 100 : 400);
  }
}

// Skipping leaves the rest of the row group out, counts it, and reads the others.
TEST(Parquet, a_damaged_row_group_is_left_out_and_counted) {
  const TempFolder folder;
  const auto groups = fifty_kilobytes();
  ParquetStyle style;
  style.codec = Codec::UNCOMPRESSED;
  style.dictionary_pages = false;
  style.page_bytes = 4000;
  write_parquet(folder / "a.parquet", groups, style);
  std::string bytes = contents(folder / "a.parquet");
  // In the text of document 30 of row group 1.
  bytes[bytes.find(counting(230'000, 3))] = 'X';
  const auto path = folder.write("a.parquet", bytes);

  auto options = options_for(path, 1);
  const auto stopped = error_of([&] { all_documents(options); }, ExitCode::failed);
  EXPECT_CONTAINS(stopped, "a.parquet, row group 1");
  EXPECT_CONTAINS(stopped, "on_bad_data");

  options.on_bad_data = OnBadData::skip;
  DocumentReader reader(std::make_shared<const Corpus>(options), options.on_bad_data);
  std::vector<std::string> documents;
  for (std::string text; reader.next(text);) documents.push_back(text);
  EXPECT_GT(reader.skipped(), 0);
  EXPECT_EQ(reader.skipped() + reader.documents(), 180);
  EXPECT_EQ(reader.entries(), 180);
  const auto all = present(groups);
  // All of groups 0 and 2, and the begin of group 1.
  const auto in_second = std::ssize(documents) - 120;
  EXPECT_GE(in_second, 0);
  EXPECT_LE(in_second, 30);
  std::vector<std::string> expected(all.begin(), all.begin() + 60 + in_second);
  expected.insert(expected.end(), all.begin() + 120, all.end());
  EXPECT_EQ(documents, expected);

  // The same through the loader; and it resumes behind the damage.
  options.seq_len = 35;
  RowLoader loader(options, number_encoder());
  const auto rows = take(loader, 35);
  EXPECT_EQ(std::ssize(rows), std::ssize(documents));
  EXPECT_EQ(loader.totals().skipped, reader.skipped());
  RowLoader half(options, number_encoder());
  take(half, 35, 60 + in_second);
  const Json saved = half.position();
  RowLoader resumed(options, number_encoder(), &saved);
  EXPECT_EQ(take(resumed, 35), std::vector<Row>(rows.begin() + 60 + in_second, rows.end()));
  EXPECT_EQ(resumed.totals(), loader.totals());
}

// A mount that vanishes or a file that shrinks is no bad data to be skipped.
TEST(Parquet, a_file_that_cannot_be_read_stops_whatever_the_policy) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet", {sample_texts(), sample_texts()});
  auto options = options_for(folder / "a.parquet", 1);
  options.on_bad_data = OnBadData::skip;
  const auto corpus = std::make_shared<const Corpus>(options);
  DocumentReader reader(corpus, OnBadData::skip);
  fs::resize_file(folder / "a.parquet", 30);
  std::string text;
  const auto line = error_of([&] {
    while (reader.next(text)) continue;
  });
  EXPECT_CONTAINS(line, "a.parquet");
  EXPECT_CONTAINS(line, "ended at byte");
}

TEST(Parquet, a_document_above_the_limit_is_bad_data) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet", {{"a", std::string(5000, 'x'), "b"}});
  auto options = options_for(folder / "a.parquet", 1);
  options.max_document_bytes = 1000;
  EXPECT_CONTAINS(error_of([&] { all_documents(options); }), "row group 0, row 1: a document of 5000 bytes");
  options.on_bad_data = OnBadData::skip;
  EXPECT_EQ(all_documents(options), (std::vector<std::string>{"a", "b"}));
  options.max_document_bytes = 5000;
  EXPECT_EQ(std::ssize(all_documents(options)), 3);
}

}  // namespace
}  // namespace mythos::test

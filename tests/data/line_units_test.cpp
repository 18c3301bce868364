// Text and JSONL files as units: compressed, far away, damaged, gone on with.
#include "base/file.h"
#include "data/data_file.h"
#include "data/line_reader.h"
#include "fixtures.h"
#include "storage/storage.h"

#include <sys/wait.h>

#include <atomic>
#include <cstdlib>

namespace mythos::test {
namespace {

// A file that says it is far away, and counts what is read of it.
class Counting : public ByteSource {
 public:
  Counting(std::string path, bool remote) : remote_(remote) {
    const uint64_t size = fs::file_size(path);
    inner_ = Storage().open({path, "x", size, ""});
  }
  [[nodiscard]] const std::string& name() const override { return inner_->name(); }
  [[nodiscard]] uint64_t size() const override { return inner_->size(); }
  [[nodiscard]] bool is_remote() const override { return remote_; }
  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token stop) const override {
    if (fail_at.load() >= 0 && offset + into.size() > static_cast<uint64_t>(fail_at.load())) {
      fail_at = -1;
      throw failure("the network broke");
    }
    bytes += into.size();
    lowest = std::min(lowest.load(), offset);
    inner_->read_at(offset, into, stop);
  }
  mutable std::atomic<uint64_t> bytes{0};
  mutable std::atomic<uint64_t> lowest{UINT64_MAX};
  mutable std::atomic<int64_t> fail_at{-1};

 private:
  bool remote_;
  std::shared_ptr<const ByteSource> inner_;
};

std::string document(int64_t i) {
  std::string text = "document " + std::to_string(i) + " ";
  text.append(static_cast<size_t>(i * 37 % 200), static_cast<char>('a' + i % 26));
  return text;
}

std::string many(int64_t n, bool lines) {
  std::string text;
  for (int64_t i = 0; i < n; ++i) text += lines ? Json{{"text", document(i)}}.dump() + "\n" : document(i) + "\n\n";
  return text;
}

bool compress(const std::string& command, const std::string& path) {
  return std::system((command + " '" + path + "' 2>/dev/null").c_str()) == 0;
}

std::vector<std::string> documents_of(UnitReader& reader, std::vector<std::string>* problems = nullptr) {
  std::vector<std::string> texts;
  Entry entry;
  while (reader.next(entry)) {
    if (entry.kind == Entry::Kind::damaged && problems != nullptr) problems->push_back(entry.problem);
    if (entry.kind == Entry::Kind::text) texts.emplace_back(entry.text);
  }
  return texts;
}

std::vector<std::string> expected(int64_t part, int64_t n) {
  std::vector<std::string> texts;
  for (int64_t i = 1000 * part; i < std::min(n, 1000 * (part + 1)); ++i) texts.push_back(document(i));
  return texts;
}

// Every kind of file gives the same units, in any order of asking.
TEST(LineUnits, compressed_and_far_away_files_give_the_same_units) {
  const TempFolder folder;
  constexpr int64_t n = 4321;
  for (const bool lines : {false, true}) {
    const std::string name = lines ? "a.jsonl" : "a.txt";
    const std::string path = folder.write(name, many(n, lines));
    ASSERT_TRUE(compress("gzip -k", path));
    std::vector<std::string> paths{path, path + ".gz"};
    if (compress("zstd -q -k", path)) paths.push_back(path + ".zst");
    for (const std::string& file : paths) {
      for (const bool remote : {false, true}) {
        const auto source = std::make_shared<Counting>(file, remote);
        const auto units = open_line_units(file, [&] { return source; }, {lines, "text", 1 << 20});
        EXPECT_EQ(units->in_order_only(), file != path);
        // In order, each twice, then any.
        for (const int64_t part : {0, 1, 1, 3, 4, 2, 0, 4}) {
          ASSERT_TRUE(units->has(part, {}));
          EXPECT_EQ(documents_of(*units->read(part, {})), expected(part, n)) << file << remote << part;
        }
        EXPECT_FALSE(units->has(5, {}));
        EXPECT_EQ(units->count({}), 5);
        EXPECT_EQ(units->info(4, {}).documents, 321);
      }
    }
  }
}

TEST(LineUnits, a_far_away_file_is_read_once) {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", many(5000, true));
  const auto source = std::make_shared<Counting>(path, true);
  const auto units = open_line_units(path, [&] { return source; }, {true, "text", 1 << 20});
  for (const int64_t part : {1, 0, 3, 2, 4}) EXPECT_EQ(documents_of(*units->read(part, {})), expected(part, 5000));
  EXPECT_EQ(units->count({}), 5);
  EXPECT_EQ(source->bytes, fs::file_size(path));
}

TEST(LineUnits, a_bookmark_goes_on_without_reading_what_is_before) {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", many(9000, true));
  for (const bool remote : {false, true}) {
    const auto first =
        open_line_units(path, [&] { return std::make_shared<Counting>(path, remote); }, {true, "text", 1 << 20});
    ASSERT_TRUE(first->has(6, {}));
    const Json bookmark = first->bookmark(6);
    ASSERT_TRUE(bookmark.is_object());
    const auto source = std::make_shared<Counting>(path, remote);
    const auto second = open_line_units(path, [&] { return source; }, {true, "text", 1 << 20});
    second->find(6, Json::parse(bookmark.dump()));
    EXPECT_EQ(documents_of(*second->read(6, {})), expected(6, 9000));
    EXPECT_EQ(documents_of(*second->read(8, {})), expected(8, 9000));
    EXPECT_EQ(source->lowest, bookmark["offset"].get<uint64_t>());
    EXPECT_EQ(second->count({}), 9);
    // What is before is there all the same, if somebody asks.
    EXPECT_EQ(documents_of(*second->read(2, {})), expected(2, 9000));
    EXPECT_EQ(documents_of(*second->read(7, {})), expected(7, 9000));
  }
}

TEST(LineUnits, a_broken_read_is_begun_anew) {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", many(3000, false));
  const auto source = std::make_shared<Counting>(path, true);
  const auto units = open_line_units(path, [&] { return source; }, {false, "", 1 << 20});
  source->fail_at = 100'000;
  EXPECT_THROW(units->has(2, {}), Error);
  for (int64_t part = 0; part < 3; ++part) EXPECT_EQ(documents_of(*units->read(part, {})), expected(part, 3000));
  EXPECT_FALSE(units->has(3, {}));
}

TEST(LineUnits, a_cut_compressed_file_gives_what_is_before_the_break) {
  const TempFolder folder;
  for (const bool lines : {false, true}) {
    const std::string path = folder.write(lines ? "a.jsonl" : "a.txt", many(2500, lines));
    ASSERT_TRUE(compress("gzip -k", path));
    const std::string whole = read_file(path + ".gz");
    const std::string cut = folder.write(lines ? "cut.jsonl.gz" : "cut.txt.gz", whole.substr(0, whole.size() * 2 / 3));
    const auto units =
        open_line_units(cut, [&] { return std::make_shared<Counting>(cut, false); }, {lines, "text", 1 << 20});
    const int64_t n = units->count({});
    ASSERT_GE(n, 2);
    for (int again = 0; again < 2; ++again) {
      std::vector<std::string> problems;
      std::vector<std::string> texts;
      for (int64_t part = 0; part < n; ++part) {
        for (auto& text : documents_of(*units->read(part, {}), &problems)) texts.push_back(std::move(text));
      }
      ASSERT_EQ(problems.size(), 1U);
      EXPECT_CONTAINS(problems[0], "cut.");
      ASSERT_GT(texts.size(), 1000U);
      ASSERT_LT(texts.size(), 2500U);
      for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(texts[i], document(static_cast<int64_t>(i)));
    }
  }
}

// A compressed source trains like the plain one, resumed at any row too.
TEST(LineUnits, rows_of_compressed_text_are_those_of_plain_text) {
  const TempFolder folder;
  std::string text;
  for (int64_t d = 0; d < 3500; ++d) text += Json{{"text", counting(5 * d, 1 + d % 5)}}.dump() + "\n";
  folder.write("plain/a.jsonl", text);
  folder.write("zipped/a.jsonl", text);
  ASSERT_TRUE(compress("gzip", folder / "zipped/a.jsonl"));
  for (const int64_t epochs : {1, 0}) {
    auto plain = options_for(folder / "plain", 7, 3, epochs);
    auto zipped = options_for(folder / "zipped", 7, 3, epochs);
    const int64_t limit = epochs == 0 ? 3000 : INT64_MAX;
    const auto rows = all_rows(plain, limit);
    ASSERT_GT(rows.size(), 1000U);
    EXPECT_EQ(all_rows(zipped, limit), rows);
    for (const int64_t stop : {0, 1, 500, 1200}) {
      RowLoader loader(zipped, number_encoder());
      take(loader, 7, stop);
      const Json saved = Json::parse(loader.position().dump());
      RowLoader resumed(zipped, number_encoder(), &saved);
      EXPECT_EQ(resumed.position(), saved);
      const auto rest = take(resumed, 7, 300);
      for (size_t i = 0; i < rest.size(); ++i) ASSERT_EQ(rest[i], rows[static_cast<size_t>(stop) + i]);
    }
  }
}

// Units of long documents are not held in memory: they are read from the file anew.
TEST(LineUnits, units_too_large_to_hold_are_read_line_by_line) {
  const TempFolder folder;
  std::string text;
  const std::string filling(70'000, 'x');
  for (int64_t i = 0; i < 1200; ++i) text += "{\"text\": \"" + std::to_string(i) + filling + "\"}\n";
  const std::string path = folder.write("a.jsonl", text);
  ASSERT_TRUE(compress("gzip -1", path));
  const auto units = open_line_units(path + ".gz", [&] { return std::make_shared<Counting>(path + ".gz", false); },
                                     {true, "text", 1 << 20});
  for (const int64_t part : {0, 1, 0}) {
    ASSERT_TRUE(units->has(part, {}));
    const auto reader = units->read(part, {});
    Entry entry;
    int64_t i = 1000 * part;
    for (; reader->next(entry); ++i) ASSERT_EQ(entry.text, std::to_string(i) + filling);
    EXPECT_EQ(i, part == 0 ? 1000 : 1200);
  }
  EXPECT_EQ(units->count({}), 2);
}

// Blank and short lines without number take no memory worth speaking of, and count as they should.
TEST(LineUnits, lines_without_number_in_a_compressed_file) {
  const TempFolder folder;
  const std::string blanks(3'000'000, '\n');
  std::string short_lines;
  for (int i = 0; i < 2'000'000; ++i) short_lines += "a\n";
  const std::string path = folder.write("a.txt", "first\n" + blanks + "second\n\n" + short_lines + "\nlast\n" + blanks);
  ASSERT_TRUE(compress("gzip -1", path));
  const auto units = open_line_units(path + ".gz", [&] { return std::make_shared<Counting>(path + ".gz", false); },
                                     {false, "", 1 << 20});
  for (int again = 0; again < 2; ++again) {
    std::vector<std::string> problems;
    ASSERT_TRUE(units->has(0, {}));
    EXPECT_EQ(documents_of(*units->read(0, {}), &problems), (std::vector<std::string>{"first", "second", "last"}));
    ASSERT_EQ(problems.size(), 1U);  // the short lines are one document, longer than allowed
    EXPECT_CONTAINS(problems[0], "line 3000004:");
  }
}

TEST(LineUnits, plain_text_under_a_compressed_name_says_so) {
  const TempFolder folder;
  auto options = options_for(folder.write("a.txt.gz", "this is not compressed at all"), 1);
  EXPECT_CONTAINS(error_of([&] { all_documents(options); }, ExitCode::failed), "a.txt.gz");
}

}  // namespace
}  // namespace mythos::test

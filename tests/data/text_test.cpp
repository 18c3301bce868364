// Text and JSONL files: what a document is, and where units begin.
#include "data/inspect.h"
#include "data/json_line.h"
#include "data/line_reader.h"
#include "fixtures.h"
#include "storage/storage.h"

#include <algorithm>

namespace mythos::test {
namespace {

using Texts = std::vector<std::string>;

Texts text_documents(const TempFolder& folder, std::string_view text) {
  return all_documents(options_for(folder.write("a.txt", text), 1));
}

TEST(Text, blank_lines_separate_documents) {
  const TempFolder folder;
  EXPECT_EQ(text_documents(folder, "one\ntwo\n\nthree\n"), (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(text_documents(folder, "\n \t\n\none\n\n\n\n  two\n \nthree"), (Texts{"one", "  two", "three"}));
}

TEST(Text, line_ends_and_byte_order_mark_are_no_text) {
  const TempFolder folder;
  EXPECT_EQ(text_documents(folder, "\xEF\xBB\xBFone\r\ntwo\r\n\r\nthree\r\n"), (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(text_documents(folder, "\xEF\xBB\xBF\r\none"), (Texts{"one"}));
  // A CR inside a line, and a mark that is not at the begin, are.
  EXPECT_EQ(text_documents(folder, "a\rb\n\xEF\xBB\xBF"), (Texts{"a\rb\n\xEF\xBB\xBF"}));
}

// T7, T8: bytes are passed on as they are.
TEST(Text, bytes_that_are_not_utf8_and_nul_survive) {
  const TempFolder folder;
  const std::string bytes("foo\0bar \xED\xA0\xBD \xFF\xFE \xC0\x80 \xF0\x9F\x98", 20);
  EXPECT_EQ(text_documents(folder, bytes), Texts{bytes});
  EXPECT_EQ(text_documents(folder, std::string("\0", 1)), Texts{std::string("\0", 1)});
  const std::string line = "{\"text\": \"" + std::string("\xFF\xFE \xED\xA0\xBD", 6) + "a\\u0000b\"}\n";
  EXPECT_EQ(all_documents(options_for(folder.write("a.jsonl", line), 1)),
            Texts{std::string("\xFF\xFE \xED\xA0\xBD", 6) + std::string("a\0b", 3)});
}

TEST(Text, a_unit_is_a_thousand_documents) {
  const TempFolder folder;
  for (const int64_t n : {1, 999, 1000, 1001, 2000, 2500}) {
    std::string text = "\n\n";
    std::string lines = "\n";
    Texts expected;
    for (int64_t d = 0; d < n; ++d) {
      expected.push_back("document " + std::to_string(d) + (d % 3 == 0 ? "\nsecond line" : ""));
      text += expected.back() + (d % 2 == 0 ? "\n\n" : "\n\n \n");
      lines += Json{{"id", d}, {"text", expected.back()}}.dump() + (d % 5 == 0 ? "\n\n" : "\r\n");
    }
    for (const auto& source : {folder.write("a.txt", text), folder.write("a.jsonl", lines)}) {
      const auto options = options_for(source, 1);
      const Corpus corpus(options);
      const auto units = units_of(corpus);
      ASSERT_EQ(std::ssize(units), (n + 999) / 1000);
      EXPECT_EQ(corpus.totals().documents, n);
      EXPECT_EQ(all_documents(options), expected);
      // Every unit by itself.
      for (int64_t g = 0; g < std::ssize(units); ++g) {
        const auto reader = corpus.read(0, g);
        Entry entry;
        for (int64_t d = 1000 * g; d < std::min(n, 1000 * (g + 1)); ++d) {
          ASSERT_TRUE(reader->next(entry));
          ASSERT_EQ(entry.text, expected[static_cast<size_t>(d)]);
        }
        EXPECT_FALSE(reader->next(entry));
        const auto skipping = corpus.read(0, g);
        skipping->skip(std::min(n, 1000 * (g + 1)) - 1000 * g - 1);
        ASSERT_TRUE(skipping->next(entry));
        EXPECT_EQ(entry.text, expected[static_cast<size_t>(std::min(n, 1000 * (g + 1)) - 1)]);
      }
    }
  }
}

TEST(Jsonl, bad_lines_are_named_or_left_out) {
  const TempFolder folder;
  const auto source = folder.write("a.jsonl",
                                   "{\"text\": \"a\"}\n"
                                   "\n"
                                   "{\"text\": \"b\"\n"        // 3
                                   "{\"text\": null}\n"        // empty
                                   "{\"text\": \"\"}\n"        // empty
                                   "{\"text\": 5}\n"           // 6
                                   "{\"other\": \"x\"}\n"      // 7
                                   "[\"text\"]\n"              // 8
                                   "{\"text\": \"c\"} more\n"  // 9
                                   "{\"text\": \"d\"}");
  auto options = options_for(source, 1);
  const auto line = error_of([&] { all_documents(options); }, ExitCode::failed);
  EXPECT_CONTAINS(line, "a.jsonl, line 3: it ends in the middle");
  options.on_bad_data = OnBadData::skip;
  DocumentReader reader(std::make_shared<const Corpus>(options), OnBadData::skip);
  Texts documents;
  for (std::string text; reader.next(text);) documents.push_back(text);
  EXPECT_EQ(documents, (Texts{"a", "d"}));
  EXPECT_EQ(reader.skipped(), 5);
  EXPECT_EQ(reader.entries(), 9);
  EXPECT_EQ(reader.bytes_read(), reader.bytes_read());
}

TEST(Jsonl, line_numbers_hold_in_later_units) {
  const TempFolder folder;
  std::string text;
  for (int i = 1; i <= 1500; ++i) text += i == 1234 ? "{broken\n" : "{\"text\": \"x\"}\n";
  EXPECT_CONTAINS(error_of([&] { all_documents(options_for(folder.write("a.jsonl", text), 1)); }), "line 1234:");
}

TEST(Jsonl, a_missing_column_is_a_wrong_setting) {
  const TempFolder folder;
  auto options = options_for(folder.write("a.jsonl", "{\"id\": 1, \"content\": \"x\"}\n"), 1);
  options.text_column = "contnt";
  options.on_bad_data = OnBadData::skip;
  const auto line = error_of([&] { Corpus corpus(options); }, ExitCode::usage);
  EXPECT_CONTAINS(line, "no column 'contnt'");
  EXPECT_CONTAINS(line, "did you mean 'content'");
}

TEST(Lines, long_lines_are_passed_over_without_being_kept) {
  const TempFolder folder;
  const std::string long_line(3 << 20, 'y');
  for (const char* name : {"a.txt", "a.jsonl"}) {
    const bool json = std::string_view(name) == "a.jsonl";
    const auto wrap = [&](const std::string& text) { return json ? "{\"text\":\"" + text + "\"}\n" : text + "\n\n"; };
    auto options = options_for(folder.write(name, wrap("one") + wrap(long_line) + wrap("two") + wrap("three")), 1);
    options.max_document_bytes = 1 << 20;
    const auto line = error_of([&] { all_documents(options); });
    EXPECT_CONTAINS(line, json ? "line 2: a document of 3145739 bytes" : "line 3: a document of 3145728 bytes");
    options.on_bad_data = OnBadData::skip;
    EXPECT_EQ(all_documents(options), (Texts{"one", "two", "three"}));
    options.max_document_bytes = 4 << 20;
    EXPECT_EQ(std::ssize(all_documents(options)), 4);
  }
  // A document too long by its many lines; the next one is whole.
  std::string text;
  for (int i = 0; i < 100; ++i) text += "0123456789\n";
  auto options = options_for(folder.write("b.txt", "first\n\n" + text + "\nlast\n"), 1);
  options.max_document_bytes = 1098;
  options.on_bad_data = OnBadData::skip;
  EXPECT_EQ(all_documents(options), (Texts{"first", "last"}));
  options.max_document_bytes = 1099;  // 100 lines and 99 line ends
  EXPECT_EQ(std::ssize(all_documents(options)), 3);
}

// Every begin and end, against a simple split; buffers of 256 KiB meet lines of all lengths.
TEST(Lines, parts_of_a_file_and_lines_across_buffers) {
  const TempFolder folder;
  std::string text;
  std::vector<std::string> expected;
  for (const size_t n : {0UL, 1UL, 262'143UL, 262'144UL, 262'145UL, 5UL, 600'000UL, 0UL, 3UL}) {
    expected.emplace_back(n, static_cast<char>('a' + expected.size()));
    text += expected.back() + "\n";
  }
  const auto path = folder.write("a.txt", text);
  const auto source = Storage().open({path, "a.txt", text.size(), ""});
  LineReader reader(stream_of(source, 0, text.size()), 0, 1 << 30);
  Line line;
  uint64_t offset = 0;
  for (const std::string& want : expected) {
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line.text, want);
    EXPECT_EQ(line.offset, offset);
    EXPECT_EQ(line.bytes, want.size());
    offset += want.size() + 1;
  }
  EXPECT_FALSE(reader.next(line));
  LineReader part(stream_of(source, 3, 10), 3, 1 << 30);
  ASSERT_TRUE(part.next(line));
  EXPECT_EQ(line.text, "ccccccc");
  EXPECT_FALSE(part.next(line));
  LineReader none(stream_of(source, 5, 5), 5, 10);
  EXPECT_FALSE(none.next(line));
}

std::pair<JsonLine::Result, std::string> parsed(std::string_view line) {
  JsonLine json;
  const auto result = json.find(line, "text");
  return {result, result == JsonLine::Result::text ? std::string(json.text()) : json.why()};
}

TEST(JsonLine, finds_the_column_among_everything_else) {
  using R = JsonLine::Result;
  const auto text = [](std::string_view line) {
    const auto [result, value] = parsed(line);
    EXPECT_EQ(result, R::text) << line << ": " << value;
    return value;
  };
  EXPECT_EQ(text(R"({"text":"a"})"), "a");
  EXPECT_EQ(
      text(
          R"( { "x" : [1, -2.5e+3, {"text": "no"}, [], {}, "\"]}"] , "text" : "yes" , "y":{"z":[true,false,null]} } )"),
      "yes");
  EXPECT_EQ(text(R"({"te\u0078t":"by escape"})"), "by escape");
  EXPECT_EQ(text(R"({"text":"first","text":"last"})"), "last");
  EXPECT_EQ(text(R"({"text":"\"\\\/\b\f\n\r\t"})"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(text(R"({"text":"\u00e9\u4E2D\ud83d\udc4d"})"), "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x91\x8D");
  EXPECT_EQ(text(R"({"text":"\ud83d"})"), "\xEF\xBF\xBD");
  EXPECT_EQ(text(R"({"text":"\ud83dx\udc4d\ud83d\n"})"), "\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD\n");
  EXPECT_EQ(text(R"({"a":NaN,"b":-Infinity,"text":""})"), "");
  EXPECT_EQ(parsed(R"({"text":null})").first, R::null);
  EXPECT_EQ(parsed(R"({"a":"b"})").first, R::missing);
  EXPECT_EQ(parsed("{}").first, R::missing);
}

TEST(JsonLine, everything_else_is_damaged) {
  const std::string good = R"({"a":[1,{"b":"c\u0041"}],"text":"x\n","z":-0.5e1})";
  EXPECT_EQ(parsed(good).first, JsonLine::Result::text);
  // Every begin of a line, and a few that are whole but wrong.
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(parsed(std::string_view(good).substr(0, n)).first, JsonLine::Result::damaged) << n;
  }
  for (const char* bad : {"",
                          "5",
                          "\"text\"",
                          "[]",
                          "null",
                          R"({"text":"a"}})",
                          R"({"text":"a",})",
                          R"({"text":"a" "b":1})",
                          R"({"text" "a"})",
                          R"({text:"a"})",
                          R"({"text":"\x"})",
                          R"({"text":"\u12g4"})",
                          R"({"text":tru})",
                          R"({"a":01,"text":"b"})",
                          R"({"a":1.,"text":"b"})",
                          R"({"a":+1,"text":"b"})",
                          R"({"a":[1,],"text":"b"})",
                          R"({"a":[1 2],"text":"b"})",
                          R"({"a":{"b"},"text":"b"})",
                          R"({"a":{"b":1,},"text":"b"})",
                          R"({"a":[},"text":"b"})",
                          R"({,"text":"b"})",
                          "{\"text\":\"a\tb\"}",
                          R"({"text":["a"]})",
                          R"({"text":nul})",
                          R"({"a":,"text":"b"})",
                          R"({"a":[,1],"text":"b"})"}) {
    EXPECT_EQ(parsed(bad).first, JsonLine::Result::damaged) << bad;
  }
  // Depth costs no stack.
  const std::string deep(1'000'000, '[');
  EXPECT_CONTAINS(parsed("{\"a\":" + deep).second, "too deep");
  const std::string fine = "{\"a\":" + std::string(500, '[') + std::string(500, ']') + ",\"text\":\"b\"}";
  EXPECT_EQ(parsed(fine).first, JsonLine::Result::text);
}

// Random changes to a line: a result, never a read outside (sanitizers watch).
TEST(JsonLine, random_changes_are_harmless) {
  const std::string good = R"({"a":[1,{"b":"c\u0041"}],"text":"x\ud83d\udc4d","z":-0.5e1,"n":null})";
  uint64_t state = 1;
  const auto random = [&](size_t bound) {
    return static_cast<size_t>((state = state * 6364136223846793005U + 1) >> 33) % bound;
  };
  for (int i = 0; i < 20'000; ++i) {
    std::string line = good.substr(0, 1 + random(good.size()));
    for (size_t n = random(4); n > 0; --n) line[random(line.size())] = static_cast<char>(random(256));
    parsed(std::string(line));
  }
}

TEST(Inspect, counts_samples_and_estimates) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 2500; ++i) text += "{\"text\": \"1 2 3 4\"}\n";
  const auto options = options_for(folder.write("a.jsonl", text), 1);
  const Corpus corpus(options);
  const auto encoder = number_encoder();
  const auto report = inspect(corpus, &encoder);
  EXPECT_EQ(report.files, 1);
  EXPECT_EQ(report.units.value, 3);
  EXPECT_EQ(report.documents.value, 2500);
  EXPECT_EQ(report.sampled, 2500);
  EXPECT_DOUBLE_EQ(report.tokens->value, 10'000);
  EXPECT_DOUBLE_EQ(report.tokens->error, 0);
  EXPECT_DOUBLE_EQ(report.text_bytes.value, 17'500);
  EXPECT_EQ(report.samples, (Texts{"1 2 3 4", "1 2 3 4", "1 2 3 4"}));
  const Json json = to_json(report);
  EXPECT_EQ(json["estimated_tokens"], 10'000);
  EXPECT_FALSE(to_json(inspect(corpus, nullptr)).contains("estimated_tokens"));
  // Samples that are not UTF-8, and one cut in the middle of a character.
  std::string cut;
  for (int i = 0; i < 300; ++i) cut += "\xE4\xB8\xAD";
  const auto odd = options_for(folder.write("b.txt", "\xFF\xFE\n\n" + cut), 1);
  const auto samples = inspect(Corpus(odd), nullptr);
  EXPECT_NO_THROW(static_cast<void>(to_json(samples).dump()));
  EXPECT_EQ(samples.samples.at(1), cut.substr(0, 399) + "...");
}

}  // namespace
}  // namespace mythos::test

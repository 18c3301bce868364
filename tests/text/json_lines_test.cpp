#include "text/json_lines.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "text/encode_lines.h"
#include "text_testing.h"

namespace mythos {
namespace {

using testing::error_of;
using namespace std::string_literals;

std::string field(std::string_view line) { return json_text_field(line, "text"); }
// Gives the input in parts of `part` bytes.
LineStreams streams(std::string_view input, std::string& out, size_t part = 7) {
  return {[input, part](char* bytes, size_t size, const std::atomic<bool>&) mutable {
            const size_t n = input.substr(0, std::min(part, size)).copy(bytes, size);
            input.remove_prefix(n);
            return n;
          },
          [&out](std::string_view bytes) { out += bytes; }};
}
std::string run(const std::string& input) {
  std::string out;
  encode_json_lines(streams(input, out), testing::o200k());
  return out;
}

TEST(JsonText, FindsTheFieldAmongOthers) {
  EXPECT_EQ(field(R"({"text":"a"})"), "a");
  EXPECT_EQ(field(R"( { "id" : -1.5e+3 , "m":{"text":"no","x":[1,[],{},[{"y":null}]]} ,"ok":true, "text" : "yes" } )"),
            "yes");
  EXPECT_EQ(field(R"({"text":"first","text":"last"})"), "last");
  EXPECT_EQ(field(R"({"te\u0078t":"x"})"), "x");
  EXPECT_EQ(field(R"({"text":""})"), "");
}

TEST(JsonText, EscapesAndBytes) {
  EXPECT_EQ(field(R"({"text":"\"\\\/\b\f\n\r\t\u0041\u00e9\u4e2d\u0000"})"), "\"\\/\b\f\n\r\tAé中\0"s);
  EXPECT_EQ(field(R"({"text":"\ud83d\udc4d"})"), "\U0001F44D");
  EXPECT_EQ(field("{\"text\":\"\xFF\xED\xA0\xBD\"}"), "\xFF\xED\xA0\xBD");
}

TEST(JsonText, T7_LoneSurrogatesBecomeTheReplacementCharacter) {
  EXPECT_EQ(field(R"({"text":"a\ud83db"})"), "a\uFFFDb");
  EXPECT_EQ(field(R"({"text":"\udc4d"})"), "\uFFFD");
  EXPECT_EQ(field(R"({"text":"\ud83d"})"), "\uFFFD");
  EXPECT_EQ(field(R"({"text":"\ud83d\ud83d\udc4d"})"), "\uFFFD\U0001F44D");
  EXPECT_EQ(field(R"({"text":"\ud83d\n"})"), "\uFFFD\n");
  EXPECT_EQ(field(R"({"text":"\ud83d\u0041"})"), "\uFFFDA");
}

TEST(JsonText, WhatIsNotJsonIsRefused) {
  for (const char* bad : {"",
                          "x",
                          "[]",
                          "\"text\"",
                          "{",
                          "{\"text\"}",
                          "{\"text\":}",
                          "{\"text\":\"a}",
                          "{\"text\":\"a\"",
                          "{\"text\":\"a\"}x",
                          "{\"text\":\"a\",}",
                          "{,}",
                          "{text:\"a\"}",
                          "{\"a\":01,\"text\":\"\"}",
                          "{\"a\":tru,\"text\":\"\"}",
                          "{\"a\":[1,],\"text\":\"\"}",
                          "{\"a\":[1}],\"text\":\"\"}",
                          "{\"a\":{\"b\"},\"text\":\"\"}",
                          "{\"a\":-,\"text\":\"\"}",
                          "{\"a\":1.,\"text\":\"\"}",
                          "{\"a\":1e,\"text\":\"\"}",
                          "{\"text\":\"\\x\"}",
                          "{\"text\":\"\\u12\"}",
                          "{\"text\":\"\\u12g4\"}",
                          "{\"text\":\"\\ud83d\\u\"}",
                          "{\"text\":\"a\nb\"}",
                          "{\"text\":\"\\",
                          "{\"a\":"}) {
    EXPECT_HAS(error_of([&] { field(bad); }), "not valid JSON") << bad;
  }
  EXPECT_HAS(error_of([] { field("{\"txt\":\"a\"}"); }), "has no \"text\"");
  EXPECT_HAS(error_of([] { field("{\"text\":7}"); }), "not a string");
  EXPECT_HAS(error_of([] { field("{\"a\":" + std::string(1'000'000, '[')); }), "nested too deeply");
}

TEST(JsonLines, OneLineInOneLineOut) {
  EXPECT_EQ(run("{\"text\":\"\"}\n{\"text\":\"The capital of Japan is\"}\n\n{\"text\":\"a\"}"),
            "{\"ids\":[]}\n{\"ids\":[976,9029,328,10198,382]}\n{\"ids\":[64]}\n");
  EXPECT_EQ(run("{\"text\":\"a\"}\r\n"), "{\"ids\":[64]}\n");
  EXPECT_EQ(run(""), "");
}

TEST(JsonLines, TheGivenVectorsGoThrough) {
  for (const auto& v : testing::read_vectors("o200k_vectors.jsonl")) {
    const nlohmann::json line = {{"text", v.text}};
    EXPECT_EQ(nlohmann::json::parse(run(line.dump() + "\n"))["ids"], nlohmann::json(v.ids));
    EXPECT_EQ(nlohmann::json::parse(run(line.dump(-1, ' ', true) + "\n"))["ids"], nlohmann::json(v.ids));
  }
}

TEST(JsonLines, ErrorsNameTheLine) {
  EXPECT_HAS(error_of([] { run("{\"text\":\"a\"}\n\n{\"text\":3}\n"); }), "line 3: ");
  std::string out;
  EXPECT_THROW(encode_json_lines(streams("{\"text\":\"a\"}\n\n{\"text\":3}\n", out), testing::o200k()), Error);
  EXPECT_EQ(out, "{\"ids\":[64]}\n");
}

TEST(JsonLines, ManyThreadsKeepTheOrder) {
  std::string input, expected;
  Random random(7);
  for (int i = 0; i < 3000; ++i) {
    const std::string text(random.below(i % 100 == 0 ? 100'000 : 200), static_cast<char>('a' + i % 26));
    input += nlohmann::json({{"text", text}}).dump() + "\n";
    expected += nlohmann::json({{"ids", testing::o200k().encode(text)}}).dump() + "\n";
  }
  for (const int threads : {1, 2, 5}) {
    for (const size_t part : {size_t{1000}, size_t{1} << 20}) {
      std::string out;
      EXPECT_EQ(encode_json_lines(streams(input, out, part), testing::o200k(), threads), 3000);
      EXPECT_TRUE(out == expected) << threads << " " << part;
    }
  }
}

TEST(JsonLines, ManyThreadsStopAtTheFirstBadLine) {
  std::string input;
  for (int i = 1; i <= 20'000; ++i) input += i == 7000 || i == 7100 ? "{\"text\":}\n" : "{\"text\":\"a\"}\n";
  for (const int threads : {1, 4}) {
    std::string out;
    EXPECT_HAS(error_of([&] { encode_json_lines(streams(input, out, 500), testing::o200k(), threads); }),
               "line 7000: ");
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 6999);
  }
}

// One thread meets the bad line while another waits for more, which does not come.
TEST(JsonLines, AnErrorEndsTheWaitForMore) {
  bool first = true;
  const LineStreams waiting = {[&](char* bytes, size_t size, const std::atomic<bool>& given_up) {
                                 if (std::exchange(first, false)) return "bad\n"s.copy(bytes, size);
                                 while (!given_up) std::this_thread::yield();
                                 return size_t{0};
                               },
                               [](std::string_view) {}};
  EXPECT_HAS(error_of([&] { encode_json_lines(waiting, testing::o200k(), 3); }), "line 1: ");
}

TEST(JsonLines, WhatCannotBeReadOrWrittenEndsTheWork) {
  std::string out;
  const std::string input = "{\"text\":\"a\"}\n";
  for (const int threads : {1, 3}) {
    LineStreams broken = streams(input, out);
    broken.write = [](std::string_view) { throw failure("cannot write"); };
    EXPECT_HAS(error_of([&] { encode_json_lines(broken, testing::o200k(), threads); }), "cannot write");
    broken = streams(input, out);
    broken.read = [](char*, size_t, const std::atomic<bool>&) -> size_t { throw failure("cannot read"); };
    EXPECT_HAS(error_of([&] { encode_json_lines(broken, testing::o200k(), threads); }), "cannot read");
  }
}

}  // namespace
}  // namespace mythos

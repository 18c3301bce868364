#include "text/json_lines.h"

#include <sstream>

#include "text_testing.h"

namespace mythos {
namespace {

using testing::error_of;
using namespace std::string_literals;

std::string field(std::string_view line) { return json_text_field(line, "text"); }
std::string run(const std::string& input) {
  std::istringstream in(input);
  std::ostringstream out;
  encode_json_lines(in, out, testing::o200k());
  return out.str();
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
  std::istringstream in("{\"text\":\"a\"}\n");
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  EXPECT_HAS(error_of([&] { encode_json_lines(in, out, testing::o200k()); }), "cannot write");
}

}  // namespace
}  // namespace mythos

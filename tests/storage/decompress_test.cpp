// .gz and .zst files as gzip and zstd themselves write them, and what can happen to such files.
#include "storage/decompress.h"

#include "../base/scratch.h"
#include "base/file.h"
#include "base/random.h"
#include "storage/storage.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

namespace mythos {
namespace {

// A file in memory.
class Memory : public ByteSource {
 public:
  explicit Memory(std::string bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) const override {
    if (failures > 0) {
      --failures;
      throw failure("the network is away");
    }
    ASSERT_LE(offset + into.size(), bytes_.size());
    largest = std::max(largest, into.size());
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }
  mutable size_t largest = 0;
  mutable int failures = 0;

 private:
  std::string bytes_;
  std::string name_ = "memory.gz";
};

std::string rest(ByteStream& stream, size_t step = 1 << 16) {
  std::string text;
  std::string buffer(step, '\0');
  while (const size_t n = stream.read(std::as_writable_bytes(std::span(buffer)))) text.append(buffer, 0, n);
  EXPECT_EQ(stream.read(std::as_writable_bytes(std::span(buffer))), 0U) << "after the end";
  return text;
}

std::string expand(const std::string& bytes, Codec codec, size_t step = 1 << 16) {
  const auto stream = decompressed(std::make_shared<Memory>(bytes), codec);
  return rest(*stream, step);
}

// What the message says, or nothing if it is read without complaint.
std::optional<std::string> damage(const std::string& bytes, Codec codec, std::string* text = nullptr) {
  try {
    const std::string all = expand(bytes, codec);
    if (text != nullptr) *text = all;
    return std::nullopt;
  } catch (const DamagedStream& error) {
    EXPECT_LE(error.offset(), bytes.size());
    return error.what();
  }
}

std::string prose(size_t size, uint64_t seed = 1) {
  Random random(seed);
  std::string text;
  while (text.size() < size) text += (random.below(9) == 0 ? "\n" : " ") + std::to_string(random.below(3000));
  text.resize(size);
  return text;
}

class DecompressTest : public ::testing::TestWithParam<Codec> {
 protected:
  void SetUp() override {
    const char* tool = GetParam() == Codec::gzip ? "gzip" : "zstd";
    if (std::system(fmt::format("command -v {} >/dev/null", tool).c_str()) != 0) {
      GTEST_SKIP() << tool << " is not installed: run scripts/setup --test";
    }
  }
  // Compresses with the tool itself.
  std::string packed(const std::string& text, const std::string& options = "") {
    const auto in = scratch_ / "in";
    const auto out = scratch_ / "out";
    std::ofstream(in, std::ios::binary) << text;
    const std::string tool = GetParam() == Codec::gzip ? "gzip -c -n" : "zstd -q -c";
    const std::string command = fmt::format("{} {} < {} > {}", tool, options, in.string(), out.string());
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return read_file(out);
  }
  Scratch scratch_;
};

TEST_P(DecompressTest, GivesWhatTheToolWasGiven) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{3} << 20}) {
    const std::string text = prose(size);
    EXPECT_TRUE(expand(packed(text), GetParam()) == text) << size;
  }
  const std::string text = prose(10'000);
  for (const size_t step : {size_t{1}, size_t{7}, size_t{4096}}) {
    EXPECT_TRUE(expand(packed(text), GetParam(), step) == text) << step;
  }
  const std::string zeros(20 << 20, '\0');  // 1,000 times and more what is stored
  EXPECT_TRUE(expand(packed(zeros), GetParam(), 999) == zeros);
}

TEST_P(DecompressTest, JoinedFilesFollowEachOther) {
  const std::string a = prose(1000, 1);
  const std::string b = prose(2 << 20, 2);
  const std::string empty = packed("");
  const std::string joined = empty + packed(a) + empty + empty + packed(b) + packed(a) + empty;
  EXPECT_TRUE(expand(joined, GetParam()) == a + b + a);
  EXPECT_TRUE(expand(packed(a) + packed(a), GetParam(), 1) == a + a);
  EXPECT_EQ(expand(empty, GetParam()), "");
}

TEST_P(DecompressTest, ReadsAMegabyteAtATime) {
  Random random(3);
  std::string noise(5 << 20, '\0');
  for (char& c : noise) c = static_cast<char>(random.below(256));
  const auto source = std::make_shared<Memory>(packed(noise, "-1"));
  const auto stream = decompressed(source, GetParam());
  source->failures = 1;
  std::array<std::byte, 10> some{};
  EXPECT_THROW(stream->read(some), Error);  // and goes on where it was
  EXPECT_TRUE(rest(*stream) == noise);
  EXPECT_EQ(source->largest, size_t{1} << 20);
}

TEST_P(DecompressTest, CutAnywhereItIsNeverJustShort) {
  const std::string text = prose(300);
  const std::string whole = packed(text) + packed(text);
  const size_t first = packed(text).size();
  for (size_t size = 0; size < whole.size(); ++size) {
    std::string got;
    const auto problem = damage(whole.substr(0, size), GetParam(), &got);
    if (size == first) {  // a whole file
      EXPECT_FALSE(problem) << *problem;
      EXPECT_EQ(got, text);
    } else {
      ASSERT_TRUE(problem) << "cut to " << size << " bytes it looks whole";
      EXPECT_EQ(problem->find("memory.gz is damaged at byte "), 0U) << *problem;
    }
  }
  const auto problem = damage(whole.substr(0, first + 20), GetParam());
  EXPECT_NE(problem.value_or("").find("cut short"), std::string::npos) << problem.value_or("");
}

TEST_P(DecompressTest, AFlippedBitIsSeenOrDoesNotMatter) {
  const std::string text = prose(400);
  const std::string whole = packed(text);
  int seen = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      std::string got;
      if (damage(bytes, GetParam(), &got)) {
        ++seen;
      } else {
        EXPECT_EQ(got, text) << "byte " << at << " bit " << bit;
      }
    }
  }
  EXPECT_GT(seen, static_cast<int>(whole.size()) * 2);
}

TEST_P(DecompressTest, WhatFollowsMustBeCompressedToo) {
  const std::string whole = packed(prose(500));
  for (const std::string& tail : {std::string("garbage"), std::string(8, '\0'), std::string("x")}) {
    EXPECT_TRUE(damage(whole + tail, GetParam())) << tail;
  }
  const auto problem = damage(whole + "garbage", GetParam()).value_or("");
  EXPECT_NE(problem.find(fmt::format("at byte {}: something that is not", whole.size())), std::string::npos) << problem;
}

TEST_P(DecompressTest, AWrongExtensionIsSaid) {
  const auto problem = [](const std::string& bytes) { return damage(bytes, GetParam()).value_or(""); };
  const std::string name = GetParam() == Codec::gzip ? "gzip" : "zstd";
  EXPECT_EQ(problem("{\"text\": \"plain\"}\n"),
            "memory.gz is damaged at byte 0: this is not " + name + " data; it begins like plain text");
  EXPECT_NE(problem("PAR1....PAR1").find("like a Parquet file"), std::string::npos);
  EXPECT_NE(problem("").find("the file is empty"), std::string::npos);
  const std::string other = GetParam() == Codec::gzip ? std::string("\x28\xb5\x2f\xfd\x04\x00", 6) : "\x1f\x8b\x08";
  EXPECT_NE(problem(other).find("it begins like a " + std::string(name == "gzip" ? "zstd" : "gzip")),
            std::string::npos);
}

TEST_P(DecompressTest, DamageIsToldAgain) {
  const auto stream = decompressed(std::make_shared<Memory>(packed(prose(500)) + "garbage"), GetParam());
  EXPECT_THROW(rest(*stream), DamagedStream);
  std::array<std::byte, 10> some{};
  EXPECT_THROW(stream->read(some), DamagedStream);
}

INSTANTIATE_TEST_SUITE_P(Codecs, DecompressTest, ::testing::Values(Codec::gzip, Codec::zstd),
                         [](const auto& tested) { return tested.param == Codec::gzip ? "gzip" : "zstd"; });

TEST(Zstd, SkippableFramesAndWindows) {
  if (std::system("command -v zstd >/dev/null") != 0) GTEST_SKIP() << "zstd is not installed";
  const Scratch scratch;
  const std::string skippable("\x53\x2a\x4d\x18\x04\x00\x00\x00gone", 12);
  const auto pack = [&](const std::string& options, const std::string& text) {
    std::ofstream(scratch / "in", std::ios::binary) << text;
    const std::string command =
        fmt::format("zstd -q -f {} {} -o {}", options, (scratch / "in").string(), (scratch / "out.zst").string());
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_file(scratch / "out.zst");
  };
  EXPECT_EQ(expand(skippable + pack("", "text") + skippable, Codec::zstd), "text");
  EXPECT_EQ(expand(pack("--long=27 --no-check", prose(1000)), Codec::zstd), prose(1000));
  // A frame header that asks for a window of 2 GB: magic, descriptor without sizes, window exponent 10 + 21.
  const std::string hungry("\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", 9);
  const auto problem = damage(hungry, Codec::zstd).value_or("");
  EXPECT_NE(problem.find("window of more than 128 MB"), std::string::npos) << problem;
}

TEST(Plain, ReadsFromAnOffset) {
  const auto source = std::make_shared<Memory>("0123456789");
  EXPECT_EQ(rest(*plain(source, 4), 3), "456789");
  EXPECT_EQ(rest(*plain(source, 10)), "");
  EXPECT_EQ(rest(*decompressed(source, Codec::none)), "0123456789");
  EXPECT_THROW(plain(source, 11), Error);
  std::stop_source stop;
  stop.request_stop();
  std::array<std::byte, 3> some{};
  EXPECT_THROW(plain(source, 0)->read(some, stop.get_token()), Stopped);
}

TEST(CodecOf, GoesByTheExtension) {
  EXPECT_EQ(codec_of("a/b.jsonl.gz"), Codec::gzip);
  EXPECT_EQ(codec_of("s3://b/x.TXT.GZ"), Codec::gzip);
  EXPECT_EQ(codec_of("https://h/x.jsonl.zst?download=true"), Codec::zstd);
  EXPECT_EQ(codec_of("x.parquet"), Codec::none);
  EXPECT_EQ(codec_of("x.gz.txt"), Codec::none);
}

}  // namespace
}  // namespace mythos

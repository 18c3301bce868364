#include "base/safetensors.h"

#include "base/random.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>

namespace mythos {
namespace {
namespace fs = std::filesystem;

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mythos_safetensors_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
    path_ = dir_ / "t.safetensors";
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write(std::string_view bytes) const {
    // Written over in place: some file systems sync a file that was cut to nothing and written anew.
    std::ofstream(path_, std::ios::binary | std::ios::app).flush();
    std::fstream(path_, std::ios::binary | std::ios::in | std::ios::out)
        .write(bytes.data(), static_cast<int64_t>(bytes.size()));
    fs::resize_file(path_, bytes.size());
  }

  // A file of this header text and that many data bytes, with any length in front.
  static std::string raw(std::string_view header, size_t data, std::optional<uint64_t> length = std::nullopt) {
    const uint64_t n = length.value_or(header.size());
    std::string bytes(sizeof(n), '\0');
    std::memcpy(bytes.data(), &n, sizeof(n));
    return bytes + std::string(header) + std::string(data, 'x');
  }

  // The error of opening, which must be typed and name the file.
  std::string error_of(std::string_view bytes) const {
    write(bytes);
    try {
      SafetensorsFile::open(path_);
    } catch (const FormatError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find(path_.string()), std::string::npos) << text;
      EXPECT_LT(text.size(), 1000U) << text;
      return text.substr(text.find(": ") + 2);
    }
    return "no error";
  }

  fs::path dir_;
  fs::path path_;
};

template <class T, size_t N>
std::span<const std::byte> bytes_of(const std::array<T, N>& values) {
  return std::as_bytes(std::span(values));
}

TEST_F(SafetensorsTest, WritesAndReadsBack) {
  const std::array<float, 6> a = {1, 2, 3, 4, 5, 6};
  const std::array<int64_t, 1> b = {-7};
  const std::vector<TensorBytes> tensors = {{{"a", DType::F32, {2, 3}}, bytes_of(a)},
                                            {{"scalar \"quoted\" \u00e9\n", DType::I64, {}}, bytes_of(b)},
                                            {{"empty", DType::BF16, {0, 5}}, {}}};
  write_safetensors(path_, tensors, {{"z", "last"}, {"a", "tab\t and \"quotes\""}});
  const auto file = SafetensorsFile::open(path_);
  EXPECT_EQ(file.data_begin() % 64, 0U);
  EXPECT_EQ(file.file_bytes(), file.data_begin() + 32);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"a", "tab\t and \"quotes\""}, {"z", "last"}}));
  ASSERT_EQ(file.entries().size(), 3U);
  EXPECT_EQ(file.entries()[0].name, "a");
  for (const TensorBytes& t : tensors) {
    const auto& e = file.at(t.name);
    EXPECT_EQ(e.dtype, t.dtype);
    EXPECT_EQ(e.shape, t.shape);
    EXPECT_EQ(e.numel(), TensorInfo(t).numel());
    const auto data = file.data(e);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), t.data.begin(), t.data.end()));
  }
  EXPECT_EQ(file.find("b"), nullptr);
  EXPECT_THROW((void)file.at("b"), FormatError);

  // The same again is the same file, byte for byte; metadata keeps the order given.
  const std::string first = read_file(path_);
  write_safetensors(path_, tensors, {{"z", "last"}, {"a", "tab\t and \"quotes\""}});
  EXPECT_EQ(read_file(path_), first);
  EXPECT_LT(first.find("\"z\""), first.find("\"a\""));
}

TEST_F(SafetensorsTest, HeaderOfAFixedSize) {
  const std::array<float, 1> a = {1};
  const std::vector<TensorBytes> tensors = {{{"a", DType::F32, {1}}, bytes_of(a)}};
  write_safetensors(path_, tensors, {}, 4096);
  EXPECT_EQ(fs::file_size(path_), 4100U);
  EXPECT_EQ(SafetensorsFile::open(path_).data_begin(), 4096U);
  // Too small, and not a multiple of 8: refused, and what was there stays.
  EXPECT_THROW(write_safetensors(path_, tensors, {}, 56), Error);
  EXPECT_THROW(write_safetensors(path_, tensors, {}, 4095), Error);
  EXPECT_EQ(fs::file_size(path_), 4100U);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
}

TEST_F(SafetensorsTest, RefusesToWriteWhatCannotBeRead) {
  const std::array<float, 2> a = {1, 2};
  const auto write_all = [&](std::vector<TensorBytes> tensors) { write_safetensors(path_, tensors, {}); };
  EXPECT_THROW(write_all({{{"a", DType::F32, {3}}, bytes_of(a)}}), Error);
  EXPECT_THROW(write_all({{{"a", DType::F32, {-2}}, bytes_of(a)}}), Error);
  EXPECT_THROW(write_all({{{"a", DType::F32, {2}}, bytes_of(a)}, {{"a", DType::F32, {2}}, bytes_of(a)}}), Error);
  EXPECT_THROW(write_all({{{"a\xff", DType::F32, {2}}, bytes_of(a)}}), Error);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(SafetensorsTest, TensorBytesNeverOverflow) {
  const auto bytes = [](DType dtype, std::vector<int64_t> shape) { return tensor_bytes(dtype, shape); };
  EXPECT_EQ(bytes(DType::F32, {}), 4);
  EXPECT_EQ(bytes(DType::F4, {3, 2}), 3);
  EXPECT_EQ(bytes(DType::F6_E2M3, {4}), 3);
  EXPECT_EQ(bytes(DType::F4, {3}), std::nullopt);
  EXPECT_EQ(bytes(DType::U8, {INT64_MAX, 2}), std::nullopt);
  EXPECT_EQ(bytes(DType::F32, {int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(bytes(DType::F32, {-1, -1}), std::nullopt);
  EXPECT_EQ(bytes(DType::F32, {0, INT64_MAX}), std::nullopt);  // 0 bytes, but its strides have no number
  EXPECT_EQ(bytes(DType::F32, {7, 0}), 0);
  for (int i = 0; i <= static_cast<int>(DType::U64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from(to_string(dtype)), dtype);
    EXPECT_GT(bits_of(dtype), 0);
  }
}

// A header's length is not trusted for anything before it is compared with the file.
TEST_F(SafetensorsTest, C7HeaderLengths) {
  EXPECT_EQ(error_of(""), "it has 0 bytes, fewer than the 8 that tell its header's length");
  EXPECT_EQ(error_of("\x02"), "it has 1 bytes, fewer than the 8 that tell its header's length");
  EXPECT_EQ(error_of(raw("", 0)), "its header is not a JSON object");
  EXPECT_EQ(error_of(raw("{", 0)), "its header is not a JSON object");
  EXPECT_EQ(error_of(raw("{}", 0, 1)), "its header is not a JSON object");
  EXPECT_EQ(error_of(raw("{}", 0, UINT64_MAX)),
            "its header's length is 18446744073709551615 bytes, more than the 100000000 allowed");
  EXPECT_EQ(error_of(raw("{}", 0, UINT64_MAX - 7)),
            "its header's length is 18446744073709551608 bytes, more than the 100000000 allowed");
  EXPECT_EQ(error_of(raw("{}", 0, 3)), "its header of 3 bytes does not fit its 10 bytes");
  EXPECT_EQ(error_of(raw("{}", 0, 100'000'000)), "its header of 100000000 bytes does not fit its 10 bytes");
  // 101 MB that are really there, as a hole.
  write(raw("{}", 0, 101'000'000));
  fs::resize_file(path_, 101'000'008);
  EXPECT_THROW(SafetensorsFile::open(path_), FormatError);
  EXPECT_EQ(error_of(raw("{}", 0)), "no error");
  EXPECT_EQ(error_of(raw("{}       ", 0)), "no error");
}

TEST_F(SafetensorsTest, C7Offsets) {
  const auto two = [&](std::string_view a, std::string_view b, size_t data) {
    return error_of(raw(fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":{}}},)"
                                    R"("b":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})",
                                    a, b),
                        data));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "no error");
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "no error");
  EXPECT_EQ(two("[4,0]", "[4,8]", 8), "tensor 'a' ends at 0 before it begins at 4");
  EXPECT_EQ(two("[0,4]", "[2,6]", 8), "tensor 'b' begins at 2, but 'a' ends at 4: the bytes overlap");
  EXPECT_EQ(two("[0,4]", "[0,4]", 8), "tensor 'b' begins at 0, but 'a' ends at 4: the bytes overlap");
  EXPECT_EQ(two("[0,4]", "[6,10]", 10), "tensor 'b' begins at 6, but 'a' ends at 4: the bytes between belong to none");
  EXPECT_EQ(two("[4,8]", "[8,12]", 12),
            "tensor 'a' begins at 4, but the data begins at 0: the bytes between belong to none");
  EXPECT_EQ(two("[0,4]", "[18446744073709551612,18446744073709551615]", 8),
            "tensor 'b' has 3 bytes, but its shape [1] of F32 needs 4");
  EXPECT_EQ(two("[0,4]", "[4,18446744073709551615]", 8),
            "tensor 'b' has 18446744073709551611 bytes, but its shape [1] of F32 needs 4");
  EXPECT_EQ(two("[0,4]", "[4,1e300]", 8), "tensor 'b' has the number 1e300 in its data_offsets");
  EXPECT_EQ(two("[0,4]", "[4,8.0]", 8), "tensor 'b' has the number 8.0 in its data_offsets");
  EXPECT_EQ(two("[0,4]", "[-4,0]", 8), "tensor 'b' has the number -4 in its data_offsets");
  EXPECT_EQ(two("[0,4]", "[4,99999999999999999999]", 8),
            "tensor 'b' has the number 99999999999999999999 in its data_offsets");
  EXPECT_EQ(two("[0,4]", "[4]", 8), "tensor 'b' has fewer than two data_offsets");
  EXPECT_EQ(two("[0,4]", "[4,8,12]", 8), "tensor 'b' has more than two data_offsets");
  EXPECT_EQ(two("[0,4]", "null", 8), "tensor 'b' has null in its data_offsets");
  EXPECT_EQ(two("[0,4]", "[4,\"8\"]", 8), "tensor 'b' has the text '8' in its data_offsets");
}

TEST_F(SafetensorsTest, C7ShapesAndDtypes) {
  const auto one = [&](std::string_view dtype, std::string_view shape) {
    return error_of(raw(fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":[0,8]}}}})", dtype, shape), 8));
  };
  EXPECT_EQ(one("\"F32\"", "[2]"), "no error");
  EXPECT_EQ(one("\"F64\"", "[]"), "no error");
  EXPECT_EQ(one("\"F32\"", "[3]"), "tensor 'a' has 8 bytes, but its shape [3] of F32 needs 12");
  EXPECT_EQ(one("\"F32\"", "[4294967296,4294967296]"),
            "tensor 'a' has the shape [4294967296, 4294967296] of F32, which no file can hold");
  // Wraps around to exactly 8 bytes where products are not checked.
  EXPECT_EQ(one("\"U8\"", "[8,2305843009213693953]"),
            "tensor 'a' has the shape [8, 2305843009213693953] of U8, which no file can hold");
  EXPECT_EQ(one("\"F32\"", "[18446744073709551615]"), "tensor 'a' has the size 18446744073709551615 in its shape");
  EXPECT_EQ(one("\"F32\"", "[-2]"), "tensor 'a' has the number -2 in its shape");
  EXPECT_EQ(one("\"F32\"", "[[2]]"), "tensor 'a' has an array in its shape");
  EXPECT_EQ(one("\"F32\"", "{}"), "tensor 'a' has an object in its shape");
  EXPECT_EQ(one("\"F31\"", "[2]"), "tensor 'a' has the unknown dtype 'F31'");
  EXPECT_EQ(one("3", "[2]"), "tensor 'a' has the number 3 as its dtype");
  std::string many = "[1";
  for (int i = 0; i < 100000; ++i) many += ",1";
  EXPECT_EQ(one("\"F32\"", many + "]"), "tensor 'a' has more than 64 dimensions");
}

TEST_F(SafetensorsTest, C7Json) {
  const std::string good = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  EXPECT_EQ(error_of(raw("[]", 0)), "its header is not a JSON object");
  EXPECT_EQ(error_of(raw("{]}", 0)), "its header is not JSON at byte 10");
  EXPECT_EQ(error_of(raw(R"({"a":1})", 0)), "'a' is the number 1, not an object");
  EXPECT_EQ(error_of(raw(R"({"a":[]})", 0)), "'a' is an array, not an object");
  EXPECT_EQ(error_of(raw(R"({"a":{}})", 0)), "tensor 'a' lacks its dtype");
  EXPECT_EQ(error_of(raw(R"({"a":{"dtype":"U8","shape":[1]}})", 0)), "tensor 'a' lacks its data_offsets");
  EXPECT_EQ(error_of(raw(R"({"a":{"dtype":"U8","dtype":"U8"}})", 0)), "tensor 'a' has two dtype");
  EXPECT_EQ(error_of(raw(R"({"a":{"b":{}}})", 0)), "tensor 'a' has the unknown field 'b'");
  EXPECT_EQ(error_of(raw("{\"a\":{" + good + "},\"a\":{" + good + "}}", 1)), "tensor 'a' is there twice");
  EXPECT_EQ(error_of(raw("{\"a\":{" + good + "}} {}", 1)), "its header is not JSON at byte 63");
  EXPECT_EQ(error_of(raw("{\"a\":{" + good + "}}\n", 1)), "its header is not a JSON object");
  EXPECT_EQ(error_of(raw(std::string("{\"a\":{" + good + "}}").append(1, '\0').append("}"), 1)),
            "its header has a zero byte");
  EXPECT_EQ(error_of(raw("\xef\xbb\xbf{}", 0)), "its header is not a JSON object");
  EXPECT_EQ(error_of(raw("{\"\xff\":{" + good + "}}", 1)).substr(0, 27), "its header is not JSON at b");
  EXPECT_EQ(error_of(raw("{\"\xed\xa0\xbd\":{" + good + "}}", 1)).substr(0, 27), "its header is not JSON at b");
  EXPECT_EQ(error_of(raw(R"({"\ud83d":{)" + good + "}}", 1)).substr(0, 27), "its header is not JSON at b");
  // Names in messages: cut, no control characters.
  EXPECT_EQ(error_of(raw(R"({"\u001b[31m":1})", 0)), "'?[31m' is the number 1, not an object");
  EXPECT_EQ(error_of(raw("{\"" + std::string(100'000, 'n') + "\":1}", 0)).size(), 156U);

  EXPECT_EQ(error_of(raw(R"({"__metadata__":{"k":"v"}})", 0)), "no error");
  EXPECT_EQ(error_of(raw(R"({"__metadata__":{"k":1}})", 0)), "its metadata 'k' is the number 1, not a text");
  EXPECT_EQ(error_of(raw(R"({"__metadata__":{"k":{}}})", 0)), "its metadata 'k' is an object, not a text");
  EXPECT_EQ(error_of(raw(R"({"__metadata__":{"k":"v","k":"w"}})", 0)), "its metadata names 'k' twice");
  EXPECT_EQ(error_of(raw(R"({"__metadata__":{},"__metadata__":{}})", 0)), "its header names __metadata__ twice");
  EXPECT_EQ(error_of(raw(R"({"__metadata__":"x"})", 0)), "'__metadata__' is the text 'x', not an object");

  for (const char* open : {"[", "{\"a\":", "{\"__metadata__\":", "{\"a\":["}) {
    std::string deep = "{\"a\":";
    while (deep.size() < 5'000'000) deep += open;
    EXPECT_NE(error_of(raw(deep + "}", 0)), "no error");
  }
}

TEST_F(SafetensorsTest, C7MemoryStaysBounded) {
  std::string names = "{\"__metadata__\":{}";
  for (int i = 0; i < 250'000; ++i) {
    names += fmt::format(R"(,"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i);
  }
  // In a process of its own, so that what other tests took does not count.
  const pid_t child = ::fork();
  if (child == 0) {
    rusage usage{};
    const bool refused = error_of(raw(names + "}", 0)) == "it has more than 200000 tensors";
    [[maybe_unused]] const bool small = ::getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_maxrss < (200L << 10);
#if defined(__SANITIZE_ADDRESS__)
    ::_exit(refused ? 0 : 1);
#else
    ::_exit(refused ? (small ? 0 : 2) : 1);
#endif
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(SafetensorsTest, C9TruncatedOrTooLong) {
  const std::vector<std::byte> data(40'000, std::byte{7});
  write_safetensors(path_,
                    std::vector<TensorBytes>{{{"a", DType::U8, {20'000}}, std::span(data).first(20'000)},
                                             {{"b", DType::U8, {20'000}}, std::span(data).last(20'000)}},
                    {});
  const std::string whole = read_file(path_);
  const size_t size = whole.size();
  EXPECT_EQ(error_of(whole), "no error");
  for (const size_t cut : {size_t{1}, size_t{4096}, size / 2, size - 300}) {
    EXPECT_EQ(error_of(whole.substr(0, size - cut)),
              fmt::format("it has {} bytes and its header describes {}: tensor 'b' is cut off", size - cut, size));
  }
  EXPECT_EQ(error_of(whole.substr(0, 100)), "its header of 184 bytes does not fit its 100 bytes");
  EXPECT_EQ(error_of(whole + "y"),
            fmt::format("it has {} bytes and its header describes {}: 1 too many", size + 1, size));
}

TEST_F(SafetensorsTest, WhatTheSystemRefusesIsNotAFormatError) {
  const auto open = [](const fs::path& path) {
    try {
      SafetensorsFile::open(path);
    } catch (const FormatError&) {
      return "format";
    } catch (const Error&) {
      return "system";
    }
    return "none";
  };
  EXPECT_STREQ(open(path_), "system");
  EXPECT_STREQ(open(dir_), "system");
}

// Thousands of seeded mutations of a small valid file: each opens to entries that lie within the file, or is refused
// with a FormatError. Nothing crashes, hangs or throws anything else.
TEST_F(SafetensorsTest, FuzzMutations) {
  const std::array<float, 4> a = {1, 2, 3, 4};
  const std::array<uint8_t, 3> b = {1, 2, 3};
  write_safetensors(
      path_,
      std::vector<TensorBytes>{{{"model.a", DType::F32, {2, 2}}, bytes_of(a)}, {{"b", DType::U8, {3}}, bytes_of(b)}},
      {{"step", "12"}, {"text", "caf\u00e9 \\ \n"}});
  const std::string seed_file = read_file(path_);
  static constexpr std::array<std::string_view, 16> words = {
      "[",       "]",    "{", "}",  "\"",          ",", ":", "null", "-1", "1e300", "18446744073709551615",
      "\\u0000", "\xff", "0", "U8", "__metadata__"};
  int opened = 0;
  constexpr int rounds = 6000;
  for (int round = 0; round < rounds; ++round) {
    Random random(derive_seed(1, static_cast<uint64_t>(round), "safetensors fuzz"));
    std::string bytes = seed_file;
    for (uint64_t n = random.below(3) + 1; n > 0; --n) {
      const size_t at = random.below(bytes.size());
      switch (random.below(5)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
          break;
        case 1:
          bytes.insert(at, words[random.below(words.size())]);
          break;
        case 2:
          bytes.erase(at, random.below(9) + 1);
          break;
        case 3: {
          const std::string_view word = words[random.below(words.size())];
          bytes.replace(at, word.size(), word);
          break;
        }
        default:
          bytes.insert(at, bytes.substr(random.below(bytes.size()), random.below(40)));
      }
      if (bytes.empty()) bytes = "x";
    }
    // Half of them get a right length, so that the mutation reaches the JSON.
    if (random.below(2) == 0 && bytes.size() > 8) {
      const uint64_t length = std::min<uint64_t>(bytes.size() - 8, seed_file.size() - 8 - 19);
      std::memcpy(bytes.data(), &length, sizeof(length));
    }
    write(bytes);
    try {
      const auto file = SafetensorsFile::open(path_);
      ++opened;
      size_t sum = 0;
      for (const auto& e : file.entries()) sum += file.data(e).size();
      EXPECT_EQ(file.data_begin() + sum, file.file_bytes());
    } catch (const FormatError& e) {
      EXPECT_NE(std::string_view(e.what()).find(path_.string()), std::string_view::npos);
    }
  }
  EXPECT_GT(opened, 20);
  EXPECT_LT(opened, rounds / 2);
}

// The files of the golden comparison are written by another program.
TEST_F(SafetensorsTest, ReadsForeignFiles) {
  const fs::path golden = fs::path(MYTHOS_TEST_DIR) / "golden";
  std::error_code ec;
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(golden, ec)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = SafetensorsFile::open(entry.path());
    EXPECT_FALSE(file.entries().empty()) << entry.path();
    ++seen;
  }
  if (seen == 0) GTEST_SKIP() << "no golden files here";
}

}  // namespace
}  // namespace mythos

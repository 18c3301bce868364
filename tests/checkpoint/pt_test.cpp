// Reading .pt files: what torch.save writes, and what it would never write.
#include "base/crc32.h"
#include "checkpoint/pt_file.h"
#include "pt_testing.h"

#include <cstring>
#include <tuple>

namespace mythos {
namespace {

using namespace testing;
using Kind = PickleValue::Kind;

class PtTest : public CheckpointTest {
 protected:
  [[nodiscard]] fs::path file() const { return root_ / "x.pt"; }
  // What reading a file with this pickle says.
  [[nodiscard]] std::string said(const std::string& pickle,
                                 std::vector<std::pair<std::string, std::string>> entries = {}) const {
    write_pt(file(), pickle, std::move(entries));
    return error_line([&] { PtFile f(file()); });
  }
  [[nodiscard]] std::string said_of(const std::string& bytes) const {
    write_bytes(file(), bytes);
    return error_line([&] { PtFile f(file()); });
  }
  static void expect_within(const std::string& line, std::string_view part) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
  }
};

template <class T>
std::vector<T> numbers(const PtFile& file, const PickleValue* value) {
  std::deque<std::vector<std::byte>> copies;
  const auto bytes = file.bytes(*value, copies);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(Crc32, IsTheOneOfZip) {
  EXPECT_EQ(crc32(std::as_bytes(std::span("123456789", 9))), 0xCBF43926U);
  const std::string text(1000, 'x');
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(crc32(bytes.subspan(333), crc32(bytes.first(333))), crc32(bytes));
  EXPECT_EQ(crc32({}), 0U);
}

// C13: what plain loaders stumble over, in every protocol.
TEST(PtFixtures, C13EveryKindOfValueInEveryProtocol) {
  for (const int protocol : {2, 3, 4, 5}) {
    const PtFile f(fmt::format("{}/checkpoint/pt/protocol_{}.pt", MYTHOS_TEST_DIR, protocol));
    f.check();
    const auto at = [&](std::string_view key) { return f.pickle().find(f.root(), key); };
    ASSERT_NE(at("one"), nullptr) << protocol;
    EXPECT_EQ(numbers<float>(f, f.pickle().find(*at("one"), "key")), (std::vector<float>{1.5F, -2.5F}));
    EXPECT_EQ(numbers<float>(f, f.pickle().find(*at("ordered"), "a")), (std::vector<float>{1, 2, 3, 4}));
    EXPECT_EQ(numbers<float>(f, at("transposed")), (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
    EXPECT_EQ(at("transposed")->shape, (std::vector<int64_t>{4, 3}));
    EXPECT_EQ(numbers<float>(f, at("front")), (std::vector<float>{0, 1, 2, 3}));
    EXPECT_EQ(numbers<float>(f, at("back")), (std::vector<float>{4, 5, 6, 7, 8, 9, 10, 11}));
    EXPECT_EQ(f.dtype(*at("bf16")), DType::BF16);
    EXPECT_EQ(numbers<uint16_t>(f, at("bf16")), (std::vector<uint16_t>{0x3F00, 0xC040}));
    EXPECT_EQ(f.dtype(*at("half")), DType::F16);
    EXPECT_EQ(f.number(*at("int64"), "int64"), 1099511627776.0);
    EXPECT_TRUE(numbers<float>(f, at("empty")).empty());
    EXPECT_EQ(numbers<float>(f, at("parameter")), std::vector<float>{7});
    EXPECT_EQ(at("shape")->items.size(), 2U);
    EXPECT_EQ(at("step")->integer, 12);
    EXPECT_EQ(at("large")->integer, int64_t{1} << 40);
    EXPECT_EQ(at("negative")->integer, -5);
    EXPECT_EQ(at("rate")->real, 0.25);
    EXPECT_EQ(at("name")->text, "caf\u00e9");
    EXPECT_EQ(at("nothing")->kind, Kind::none);
    EXPECT_EQ(at("list")->items.size(), 3U);
    EXPECT_EQ(at("not there"), nullptr);
  }
}

TEST(PtFixtures, C13TheOldFormatIsNamed) {
  const std::string line = error_line([] { PtFile f(MYTHOS_TEST_DIR "/checkpoint/pt/before_1_6.pt"); });
  EXPECT_NE(line.find("before 1.6"), std::string::npos) << line;
}

// C12: what would run code is refused by its name, and nothing runs.
TEST_F(PtTest, C12NamesThatRunCodeAreRefused) {
  const fs::path proof = root_ / "proof";
  const std::string command = "touch " + proof.string();
  const std::string argument = "X" + little(static_cast<uint32_t>(command.size())) + command + "\x85R.";
  for (const char* name : {"posix\nsystem", "os\nsystem", "builtins\neval", "builtins\nexec", "subprocess\nPopen",
                           "torch\nload", "torch.hub\nload", "numpy\nload", "webbrowser\nopen",
                           "open_mythos.main\nOpenMythos", "torch._utils\n_rebuild_tensor_v3", "__builtin__\neval"}) {
    std::string shown = name;
    shown[shown.find('\n')] = '.';
    const std::string line = said(
        "\x80\x02"
        "c" +
        std::string(name) + "\n" + argument);
    expect_within(line, shown);
    expect_within(line, "refused");
  }
  EXPECT_FALSE(fs::exists(proof));
}

TEST_F(PtTest, C12ANamePutTogetherFromTheMemoIsRefused) {
  // "posix" and "system" are remembered as texts and only then become a name.
  const std::string line =
      said(std::string("\x80\x04\x8c\x05posix\x94\x8c\x06system\x94"
                       "0h\0h\x01\x93\x8c\x01x\x85R.",
                       29));
  expect_within(line, "POP");
  expect_within(said(std::string("\x80\x04(\x8c\x05posix\x94\x8c\x06system\x94th\0h\x01\x93\x8c\x01x\x85R.", 30)),
                "posix.system");
}

TEST_F(PtTest, C12CallsAndObjectsOfHarmlessNamesAreRefused) {
  expect_within(said("\x80\x02"
                     "ctorch\nFloatStorage\n)R."),
                "torch.FloatStorage");
  expect_within(said("\x80\x02"
                     "ccollections\nOrderedDict\n)\x81."),
                "collections.OrderedDict");
  expect_within(said("\x80\x02K\x01)R."), "it calls a whole number");
  expect_within(said("\x80\x02(cposix\nsystem\no."), "posix.system");
  expect_within(said("\x80\x02(iposix\nsystem\n."), "INST");
  expect_within(said("\x80\x02}K\x01"
                     "b."),
                "built from a whole number");
  expect_within(said("\x80\x02]}b."), "builds a list");
}

TEST_F(PtTest, C12NamesThatLeaveTheArchiveAreRefused) {
  for (const char* name : {"../evil", "x/../../evil", "/etc/passwd", "x\\..\\evil", "x/.."}) {
    expect_within(said("\x80\x02}.", {{name, "1"}}), "leaves its folder");
  }
}

// Pickles that would take more than they are.
TEST_F(PtTest, StacksMemosAndDepthsAreBounded) {
  EXPECT_EQ(said("\x80\x02" + std::string(100'000, '(') + "N" + std::string(100'000, 't') + "."), "no error");
  EXPECT_EQ(said("\x80\x02" + std::string(100'000, ']') + std::string(99'999, 'a') + "."), "no error");
  expect_within(said("\x80\x02Nr" + little<uint32_t>(0xFFFFFFF0U) + "."), "remembers");
  expect_within(said("\x80\x02Nj" + little<uint32_t>(7) + "."), "never had a value 7");
  expect_within(said("\x80\x02" + std::string(2'100'000, 'N') + "."), "2000000 values");
  expect_within(said("\x80\x02X" + little<uint32_t>(0xFFFFFFF0U) + "a."), "too long");
  expect_within(said("\x80\x04\x8d" + little<uint64_t>(~uint64_t{0}) + "a."), "too long");
  expect_within(said("\x80\x02"
                     "a."),
                "takes a value");
  expect_within(said("\x80\x02(a."), "takes a value");
  expect_within(said("\x80\x02t."), "no mark");
  expect_within(said("\x80\x02NN."), "left over");
  expect_within(said("\x80\x02(N."), "left over");
  expect_within(said("\x80\x02"), "cut off");
  expect_within(said("\x80\x07N."), "protocol");
  expect_within(said("\x80\x02\xFFN."), "not an opcode");
  expect_within(said("\x80\x02](K\x01K\x01u."), "sets items of a list");
  expect_within(said("\x80\x02}(K\x01u."), "a key has no value");
  // A list of many, made into a dict again and again.
  std::string copies = "\x80\x02](";
  for (int i = 0; i < 1000; ++i) copies += "K\x01K\x02\x86";
  copies += "eq";
  copies += '\0';
  for (int i = 0; i < 20'000; ++i) copies += std::string("ccollections\nOrderedDict\nh\0\x85R", 29);
  expect_within(said(copies + "."), "over and over");
}

TEST_F(PtTest, ADictInItselfIsRead) {
  EXPECT_EQ(said(std::string("\x80\x02}q\0X\1\0\0\0ah\0s.", 15)), "no error");
  EXPECT_EQ(error_line([&] { describe(file()); }), "no error");
}

// One tensor "w" of `storage` elements in an archive whose storage 0 has `bytes`.
std::string tensor_pickle(const std::string& shape, const std::string& strides, int storage, int offset = 0,
                          const std::string& type = "FloatStorage") {
  return "\x80\x02}X" + little<uint32_t>(1) + "wctorch._utils\n_rebuild_tensor_v2\n((X" + little<uint32_t>(7) +
         "storagectorch\n" + type + "\nX" + little<uint32_t>(1) + "0X" + little<uint32_t>(3) + "cpuJ" +
         little<uint32_t>(static_cast<uint32_t>(storage)) + "tQJ" + little<uint32_t>(static_cast<uint32_t>(offset)) +
         "(" + shape + "t(" + strides + "t\x89}tRs.";
}

TEST_F(PtTest, TensorsStayWithinTheirStorage) {
  const std::string six(24, '\1');
  const auto said_with = [&](const std::string& pickle) {
    write_pt(file(), pickle, {{"x/data/0", six}});
    return error_line([&] {
      const PtFile f(file());
      std::deque<std::vector<std::byte>> copies;
      std::ignore = f.bytes(*f.pickle().find(f.root(), "w"), copies);
    });
  };
  EXPECT_EQ(said_with(tensor_pickle("K\2K\3", "K\3K\1", 6)), "no error");
  EXPECT_EQ(said_with(tensor_pickle("K\2", "K\5", 6)), "no error");
  expect_within(said_with(tensor_pickle("K\2K\3", "K\4K\1", 6)), "beyond its storage");
  expect_within(said_with(tensor_pickle("K\2", "K\6", 6)), "beyond its storage");
  expect_within(said_with(tensor_pickle("K\6", "K\1", 6, 1)), "beyond its storage");
  expect_within(said_with(tensor_pickle("K\7", std::string("K\0", 2), 6)), "beyond its storage");
  expect_within(said_with(tensor_pickle("K\1", "K\1", 6, -1)), "impossible");
  expect_within(said_with(tensor_pickle("J\xff\xff\xff\xff", "K\1", 6)), "whole numbers");
  const std::string huge = "J\xff\xff\xff\x7f";
  expect_within(said_with(tensor_pickle(huge + huge + huge, huge + huge + huge, 6)), "impossible");
  expect_within(said_with(tensor_pickle("K\2K\2", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\1", 6)), "beyond its");
  expect_within(said_with(tensor_pickle("K\2K\3", "K\1", 6)), "impossible");
  std::string rank;
  for (int i = 0; i < 9; ++i) rank += "K\1";
  expect_within(said_with(tensor_pickle(rank, rank, 6)), "too many dimensions");
  expect_within(said_with(tensor_pickle("K\7", "K\1", 7)), "has 24 bytes");
  expect_within(said_with(tensor_pickle("K\1", "K\1", 6, 0, "DoubleStorage")), "has 24 bytes");
  expect_within(said_with(tensor_pickle("K\1", "K\1", 6, 0, "QInt8Storage")), "torch.QInt8Storage");
  write_pt(file(), tensor_pickle("K\6", "K\1", 6));
  expect_within(error_line([&] {
                  const PtFile f(file());
                  std::deque<std::vector<std::byte>> copies;
                  std::ignore = f.bytes(*f.pickle().find(f.root(), "w"), copies);
                }),
                "not in the archive");
}

// C9: a file that is shorter or longer than it was.
TEST_F(PtTest, C9CutOffAndExtendedFilesAreRefused) {
  const std::string whole = read_file(MYTHOS_TEST_DIR "/checkpoint/pt/protocol_2.pt");
  for (const size_t keep : {whole.size() - 1, whole.size() - 22, whole.size() - 4096 % whole.size(), whole.size() / 2,
                            size_t{30}, size_t{4}, size_t{0}}) {
    EXPECT_NE(said_of(whole.substr(0, keep)), "no error") << keep;
  }
  EXPECT_NE(said_of(whole + "x"), "no error");
  EXPECT_NE(said_of(std::string(2, 'x') + whole), "no error");
}

// C7 for archives: every number of the format that could be a lie.
TEST_F(PtTest, C7NumbersOfTheArchiveAreNotBelieved) {
  write_pt(file(), "\x80\x02}.", {{"x/data/0", std::string(64, 'a')}});
  const std::string whole = read_file(file());
  const size_t end = whole.rfind("PK\x05\x06");
  const size_t directory = whole.find("PK\x01\x02");
  const size_t second = whole.rfind("PK\x01\x02");
  ASSERT_NE(end, std::string::npos);
  ASSERT_NE(directory, second);
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string changed = whole;
    changed.replace(at, bytes.size(), bytes);
    return said_of(changed);
  };
  expect_within(with(end + 16, little<uint32_t>(0x7FFFFFFF)), "directory");             // begins after the end
  expect_within(with(end + 12, little<uint32_t>(0x7FFFFFFF)), "directory");             // longer than the file
  expect_within(with(end + 10, little<uint16_t>(60'000)), "cannot hold");               // more entries than fit
  expect_within(with(end + 10, little<uint16_t>(3)), "cannot hold");                    // one more
  expect_within(with(end + 10, little<uint16_t>(0xFFFF)), "zip64");                     // a large one, without record
  expect_within(with(second + 24, little<uint32_t>(0x7FFFFFFF)), "is not compressed");  // two sizes
  expect_within(with(second + 20, little<uint32_t>(70) + little<uint32_t>(70)), "not within");  // into the directory
  expect_within(with(second + 42, little<uint32_t>(0x7FFFFFFF)), "not within");                 // beyond the end
  expect_within(with(second + 42, little<uint32_t>(0)), "another one");                         // where the first is
  expect_within(with(second + 42, little<uint32_t>(1)), "does not begin");
  expect_within(with(second + 20, little<uint32_t>(0xFFFFFFFF)), "is not compressed");  // zip64 without its field
  expect_within(with(second + 10, little<uint16_t>(8)), "compressed");                  // deflate
  expect_within(with(second + 8, little<uint16_t>(1)), "encrypted");
  expect_within(with(second + 28, little<uint16_t>(60'000)), "cut off");
  // Two entries over the same bytes: the first one grows into the second.
  expect_within(with(directory + 20, little<uint32_t>(100) + little<uint32_t>(100)), "overlaps");
  // Twice the same name, which Python takes the last of.
  write_archive(file(), {{"x/data.pkl", "\x80\x02}."}, {"x/data.pkl", "\x80\x02]."}});
  expect_within(error_line([&] { PtFile f(file()); }), "two entries");
  // A flipped bit of the pickle.
  std::string flipped = whole;
  flipped[whole.find("\x80\x02}.") + 2] = ']';
  expect_within(said_of(flipped), "checksum");
  // And of a tensor.
  flipped = whole;
  flipped[whole.find("aaaa")] = 'b';
  write_bytes(file(), flipped);
  expect_within(error_line([&] { PtFile(file()).check(); }), "x/data/0");
}

TEST_F(PtTest, OtherFilesAreNamed) {
  expect_within(said_of(""), "empty");
  expect_within(said_of("{\"a\":1}"), "not a .pt file");
  write_archive(file(), {{"x/other", "1"}});
  expect_within(error_line([&] { PtFile f(file()); }), "without a data.pkl");
  expect_within(said("\x80\x02}.", {{"x/byteorder", "big"}}), "byte order");
  expect_within(error_line([&] { PtFile f(root_ / "none.pt"); }), "none.pt");
}

// A large archive's records, in a sparse file: sizes and offsets that do not fit 32 bits.
TEST_F(PtTest, Zip64IsWrittenAndReadBack) {
  ZipWriter zip(file(), 0);
  for (int i = 0; i < 66'000; ++i) zip.add(fmt::format("x/data/{}", i), "");
  zip.add("x/data.pkl", "\x80\x02}.");
  zip.commit();
  const ZipFile read(file());
  EXPECT_EQ(read.entries().size(), 66'001U);
  PtFile(file()).check();
}

// Seeded damage of every kind: an answer or an error, never a crash. That of the pickle is read without the checksum
// before it, or with a right one.
TEST_F(PtTest, FuzzedFilesAreReadOrRefused) {
  const std::string whole = read_file(MYTHOS_TEST_DIR "/checkpoint/pt/protocol_2.pt");
  const size_t pickle_begin = whole.find("\x80\x02}q");
  const size_t pickle_end = whole.find("PK", pickle_begin);
  ASSERT_NE(pickle_begin, std::string::npos);
  int read = 0;
  int refused = 0;
  Random random(11);
  const auto use = [&](const fs::path& path) {
    try {
      const PtFile f(path);
      std::deque<std::vector<std::byte>> copies;
      const PickleValue& root = f.root();
      for (size_t i = 0; i < root.items.size(); ++i) {
        const PickleValue& v = f.pickle()[root.items[i]];
        if (v.kind == Kind::tensor) std::ignore = f.bytes(v, copies);
      }
      describe(path);
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  };
  for (int round = 0; round < 2000; ++round) {  // the archive
    std::string bytes = whole;
    const auto place = [&] { return static_cast<size_t>(random.below(bytes.size())); };
    switch (random.below(4)) {
      case 0:
        for (uint64_t n = 1 + random.below(4); n > 0; --n) bytes[place()] ^= static_cast<char>(1U << random.below(8));
        break;
      case 1:
        bytes.resize(place());
        break;
      case 2:
        bytes.insert(place(), bytes.substr(place(), random.below(64)));
        break;
      default:
        bytes.erase(place(), random.below(64));
    }
    write_bytes(file(), bytes);
    use(file());
  }
  const std::string pickle = whole.substr(pickle_begin, pickle_end - pickle_begin);
  const std::string bytes_of_storage(48, '\0');
  for (int round = 0; round < 6000; ++round) {  // the pickle, behind a right checksum
    std::string bytes = pickle;
    const auto place = [&] { return static_cast<size_t>(random.below(bytes.size())); };
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      switch (random.below(4)) {
        case 0:
          bytes[place()] ^= static_cast<char>(1U << random.below(8));
          break;
        case 1:
          bytes[place()] = static_cast<char>(random.below(256));
          break;
        case 2:
          bytes.insert(place(), bytes.substr(place(), random.below(32)));
          break;
        default:
          bytes.erase(place(), random.below(8));
      }
    }
    if (round % 40 == 0) {  // with tensors behind it
      write_pt(file(), bytes, {{"x/data/0", bytes_of_storage}, {"x/data/2", bytes_of_storage}});
      use(file());
      continue;
    }
    try {
      std::ignore = Pickle::read(std::as_bytes(std::span(bytes)), "it");
      ++read;
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 20);
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace mythos

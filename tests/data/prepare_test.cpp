// Prepared data: trains like the source it was made from, and survives everything on the way.
#include "data/prepare.h"
#include "base/file.h"
#include "base/random.h"
#include "fixtures.h"
#include "parquet_writer.h"

#include <sys/mount.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <map>

namespace mythos::test {
namespace {

constexpr int64_t seq_len = 5;

std::vector<Texts> units(int64_t n, int64_t first) {
  std::vector<Texts> groups;
  for (int64_t u = 0; u < n; ++u) {
    Texts& texts = groups.emplace_back();
    for (int64_t d = 0; d < 6; ++d) {
      texts.push_back(d == 2   ? std::nullopt
                      : d == 4 ? std::optional<std::string>("")
                               : counting(first + 10 * u + d, 1 + d));
    }
  }
  return groups;
}

// Several files of every kind; more units than a token file holds.
void write_source(const TempFolder& folder) {
  fs::create_directories(folder / "src");
  write_parquet(folder / "src/a.parquet", units(70, 1));
  write_parquet(folder / "src/b.parquet", units(3, 10'000));
  std::string text;
  for (int64_t d = 0; d < 2100; ++d) text += counting(20'000 + d, 1 + d % 4) + "\n\n";
  folder.write("src/c.txt", text);
  folder.write("src/d.jsonl", jsonl({"40000 40001", "no number at all", "40002"}) + "{damaged\n" + jsonl({"40003"}));
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != ".lock") files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

DataOptions source_options(const TempFolder& folder) {
  auto options = options_for(folder / "src", seq_len, 4, 0);
  options.on_bad_data = OnBadData::skip;
  return options;
}

TEST(Prepare, gives_the_same_rows_and_positions_as_streaming) {
  const TempFolder folder;
  write_source(folder);
  for (const int64_t n_ids : {int64_t{60'000}, int64_t{1} << 20}) {  // two and four bytes an id
    Encoder encoder = number_encoder();
    encoder.n_ids = n_ids;
    auto options = source_options(folder);
    options.workers = 3;
    const std::string out = folder / ("out" + std::to_string(n_ids));
    const auto report = prepare(options, encoder, out);
    EXPECT_FALSE(report.was_done);
    EXPECT_EQ(report.info.skipped, 1);
    EXPECT_EQ(report.info.documents, 73 * 6 + 2100 + 5);
    for (const bool shuffle : {false, true}) {
      for (const int64_t held_out : {0, 7}) {
        auto streamed = options;
        streamed.prefetch = 0;
        streamed.shuffle = shuffle;
        streamed.document_separator = held_out > 0;
        streamed.validation_documents = held_out;
        auto prepared = streamed;
        prepared.sources = {out};
        prepared.decode = [](std::span<const int32_t> ids) {
          std::string text;
          for (const int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
          return text;
        };
        RowLoader one(streamed, encoder);
        RowLoader other(prepared, encoder);
        EXPECT_EQ(validation_documents(open_sources(prepared), prepared),
                  validation_documents(open_sources(streamed), streamed));
        Row a(seq_len + 1);
        Row b(seq_len + 1);
        Json saved;
        for (int i = 0; i < 2500; ++i) {
          ASSERT_TRUE(one.next(a));
          ASSERT_TRUE(other.next(b));
          ASSERT_EQ(a, b) << "row " << i;
          if (i == 700) saved = one.position();
        }
        EXPECT_EQ(one.totals(), other.totals());
        // A streaming run can go on with the prepared files, and the other way round.
        RowLoader changed(prepared, encoder, &saved);
        RowLoader same(streamed, encoder, &saved);
        const Json back = other.position();
        RowLoader returned(streamed, encoder, &back);
        for (int i = 0; i < 200; ++i) {
          ASSERT_TRUE(changed.next(a) && same.next(b));
          ASSERT_EQ(a, b);
          ASSERT_TRUE(other.next(a) && returned.next(b));
          ASSERT_EQ(a, b);
        }
      }
    }
  }
}

TEST(Prepare, does_not_depend_on_workers_and_is_done_once) {
  const TempFolder folder;
  write_source(folder);
  auto options = source_options(folder);
  const Encoder encoder = number_encoder();
  prepare(options, encoder, folder / "one");
  options.workers = 4;
  prepare(options, encoder, folder / "four");
  const auto files = files_in(folder / "one");
  EXPECT_EQ(files, files_in(folder / "four"));
  EXPECT_EQ(files.size(), 2U + 2 * 5);
  EXPECT_TRUE(prepare(options, encoder, folder / "one").was_done);
  EXPECT_EQ(files_in(folder / "one"), files);
}

// Killed at any time, and again: the next start goes on, and the end is the same.
TEST(Prepare, goes_on_after_kills) {
  const TempFolder folder;
  write_source(folder);
  auto options = source_options(folder);
  options.workers = 2;
  Encoder encoder = number_encoder();
  prepare(options, encoder, folder / "undisturbed");
  Encoder slow = encoder;
  slow.encode = [&](std::string_view text, std::vector<int32_t>& out) {
    ::usleep(100);
    encoder.encode(text, out);
  };
  Random random(5);
  for (int kill = 0; kill < 8; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        prepare(options, slow, folder / "killed");
      } catch (...) {
      }
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(20'000 + random.below(150'000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    if (!fs::exists(folder / "killed/preparing.json")) continue;
    if (fs::exists(folder / "killed/prepared.json")) break;
    auto unfinished = options;
    unfinished.sources = {folder / "killed"};
    EXPECT_CONTAINS(error_of([&] { Corpus corpus(unfinished); }, ExitCode::usage), "not prepared to its end");
  }
  const auto report = prepare(options, encoder, folder / "killed");
  EXPECT_EQ(files_in(folder / "killed"), files_in(folder / "undisturbed"));
  EXPECT_GE(report.tokens_before, 0);
}

TEST(Prepare, a_stop_keeps_what_is_whole) {
  const TempFolder folder;
  write_source(folder);
  auto options = source_options(folder);
  const Encoder encoder = number_encoder();
  Encoder slow = encoder;
  slow.encode = [&](std::string_view text, std::vector<int32_t>& out) {
    ::usleep(1000);
    encoder.encode(text, out);
  };
  struct Stop {};
  const auto stop_late = [](const PrepareProgress& p) {
    if (p.documents >= 64 * 6) throw Stop{};
  };
  EXPECT_THROW(prepare(options, slow, folder / "out", stop_late), Stop);
  EXPECT_TRUE(fs::exists(folder / "out/00000-00000.index"));
  EXPECT_FALSE(fs::exists(folder / "out/prepared.json"));
  const auto report = prepare(options, encoder, folder / "out");
  EXPECT_GT(report.tokens_before, 0);
  prepare(options, encoder, folder / "whole");
  EXPECT_EQ(files_in(folder / "out"), files_in(folder / "whole"));
}

TEST(Prepare, other_data_and_other_tokenizers_are_refused) {
  const TempFolder folder;
  write_source(folder);
  auto options = source_options(folder);
  const Encoder encoder = number_encoder();
  prepare(options, encoder, folder / "out");
  Encoder other = encoder;
  other.fingerprint = "letters";
  EXPECT_CONTAINS(error_of([&] { prepare(options, other, folder / "out"); }, ExitCode::refused), "another tokenizer");
  auto elsewhere = options;
  elsewhere.sources = {folder / "src/a.parquet"};
  EXPECT_CONTAINS(error_of([&] { prepare(elsewhere, encoder, folder / "out"); }, ExitCode::refused), "another source");
  EXPECT_CONTAINS(error_of([&] { prepare(options, encoder, folder / "src"); }, ExitCode::refused), "not empty");
  EXPECT_CONTAINS(error_of([&] { prepare(options, encoder, folder / "src/c.txt"); }, ExitCode::usage), "not a folder");
  auto prepared = options;
  prepared.sources = {folder / "out"};
  EXPECT_CONTAINS(error_of([&] { prepare(prepared, encoder, folder / "again"); }, ExitCode::usage), "prepared already");
  EXPECT_CONTAINS(error_of([&] { RowLoader(prepared, other); }, ExitCode::usage), "prepared with another tokenizer");
  auto missing = options;
  missing.sources = {folder / "nothing"};
  EXPECT_CONTAINS(error_of([&] { prepare(missing, encoder, folder / "new"); }, ExitCode::usage), "no file or folder");
  EXPECT_FALSE(fs::exists(folder / "new"));
}

// Flipped, cut and missing token files are noticed, and made again.
TEST(Prepare, damage_is_noticed_and_can_be_repaired) {
  const TempFolder folder;
  write_source(folder);
  auto options = source_options(folder);
  const Encoder encoder = number_encoder();
  prepare(options, encoder, folder / "good");
  const auto good = files_in(folder / "good");
  Random random(1);
  int n = 0;
  for (const auto& [name, bytes] : good) {
    if (!name.ends_with(".index") && !name.ends_with(".tokens")) continue;
    if (bytes.empty()) continue;
    std::string flipped = bytes;
    flipped[random.below(flipped.size())] ^= 0x10;
    for (const std::string& bad : {flipped, bytes.substr(0, bytes.size() / 2), std::string()}) {
      const std::string out = folder / ("bad" + std::to_string(n++));
      fs::copy(folder / "good", out);
      write_file_atomically(fs::path(out) / name, bad);
      auto prepared = options;
      prepared.sources = {out};
      prepared.epochs = 1;
      const auto line = error_of([&] { all_rows(prepared); }, ExitCode::failed);
      EXPECT_CONTAINS(line, name.substr(0, 11));
      EXPECT_CONTAINS(line, "mythos data prepare");
      if (name.ends_with(".tokens") && bad.size() == bytes.size()) {
        fs::remove(fs::path(out) / name);  // as the message says
      }
      prepare(options, encoder, out);
      EXPECT_EQ(files_in(out), good) << name;
    }
  }
  EXPECT_GT(n, 20);
}

TEST(Prepare, a_full_disk_is_one_sentence_and_can_be_gone_on_with) {
  const TempFolder folder;
  write_source(folder);
  fs::create_directories(folder / "small");
  if (::mount("tmpfs", (folder / "small").c_str(), "tmpfs", 0, "size=16k") != 0) GTEST_SKIP() << "needs root";
  auto options = source_options(folder);
  const Encoder encoder = number_encoder();
  const auto line = error_of([&] { prepare(options, encoder, folder / "small/out"); }, ExitCode::failed);
  EXPECT_CONTAINS(line, "No space left");
  EXPECT_EQ(::mount("tmpfs", (folder / "small").c_str(), "tmpfs", MS_REMOUNT, "size=16m"), 0);
  prepare(options, encoder, folder / "small/out");
  prepare(options, encoder, folder / "large");
  EXPECT_EQ(files_in(folder / "small/out"), files_in(folder / "large"));
  ::umount((folder / "small").c_str());
}

}  // namespace
}  // namespace mythos::test

// Training data from a hub on loopback: the same rows as from the disk, whatever the network does.
#include "../support/hub_server.h"
#include "base/signals.h"
#include "fixtures.h"
#include "parquet_writer.h"
#include "storage/storage.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <thread>

namespace mythos::test {
namespace {

constexpr int64_t seq_len = 30;
constexpr int64_t units_of_file = 6;

class Stream : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    data_ = *folder_ / "datasets/own/text/data";
    fs::create_directories(data_);
    int64_t id = 1;
    for (int f = 0; f < 3; ++f) {
      std::vector<Texts> units;
      for (int64_t u = 0; u < units_of_file; ++u) {
        Texts& texts = units.emplace_back();
        for (int d = 0; d < 120; ++d) {
          texts.push_back(counting(id, 40 + d));
          id += 40 + d;
        }
      }
      ParquetStyle style;
      style.codec = parquet::Compression::UNCOMPRESSED;
      style.dictionary_pages = false;
      write_parquet(data_ + fmt::format("/part-{}.parquet", f), units, style);
    }
    server_ = std::make_unique<Server>(folder_->string());
    ::setenv("HF_ENDPOINT", server_->url("").c_str(), 1);
    ::setenv("HF_HOME", (*folder_ / "home").c_str(), 1);
    for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HF_HUB_OFFLINE"}) ::unsetenv(name);
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }
  void SetUp() override {
    server_->reset();
    clear_stop_request();
  }

  static DataOptions local(int64_t lanes = 4) {
    auto options = options_for(data_, seq_len, lanes, 0);
    options.prefetch = 2;
    options.workers = 2;
    return options;
  }
  static DataOptions hub(int64_t lanes = 4) {
    auto options = local(lanes);
    options.sources = {"hf://datasets/own/text/data"};
    HttpOptions http;
    http.stall_seconds = 0.3;
    http.first_backoff = 0.01;
    http.most_backoff = 0.05;
    http.contact_patience = 5;
    http.read_patience = 10;
    options.storage = std::make_shared<Storage>(http);
    return options;
  }
  // Bytes of files that were sent since the last time, by file.
  static std::map<std::string, int64_t> bytes_sent() {
    std::map<std::string, int64_t> bytes;
    for (const Json& request : server_->log()) {
      const std::string path = request.at("path");
      const size_t at = path.find("part-");
      if (at != std::string::npos) bytes[path.substr(at, 14)] += request.at("sent").get<int64_t>();
    }
    return bytes;
  }

  static inline std::unique_ptr<TempFolder> folder_;
  static inline std::unique_ptr<Server> server_;
  static inline std::string data_;
};

TEST_F(Stream, rows_are_those_of_local_files) {
  for (const bool shuffle : {false, true}) {
    auto from_disk = local();
    auto from_hub = hub();
    from_disk.shuffle = from_hub.shuffle = shuffle;
    EXPECT_EQ(all_rows(from_hub, 3000), all_rows(from_disk, 3000));
  }
}

// The unit with the end of the held-out part comes again in later epochs, and anywhere under shuffle.
TEST_F(Stream, held_out_documents_shuffle_and_the_end_of_epochs) {
  for (const bool shuffle : {false, true}) {
    for (const int64_t lanes : {1, 3, 4}) {
      auto from_disk = local(lanes);
      auto from_hub = hub(lanes);
      for (auto* options : {&from_disk, &from_hub}) {
        options->shuffle = shuffle;
        options->validation_documents = 7;
        options->epochs = 3;
      }
      const auto expected = all_rows(from_disk);
      ASSERT_GT(expected.size(), 3000U);
      EXPECT_EQ(all_rows(from_hub), expected) << shuffle << lanes;
    }
  }
}

// Nothing is looked at before it is needed.
TEST_F(Stream, begins_without_looking_into_later_files) {
  const auto options = hub();
  RowLoader loader(options, number_encoder());
  take(loader, seq_len, 8);
  const auto bytes = bytes_sent();
  EXPECT_TRUE(bytes.contains("part-0.parquet"));
  EXPECT_FALSE(bytes.contains("part-2.parquet"));
}

TEST_F(Stream, resuming_reads_nothing_before_its_place) {
  const auto expected = all_rows(local(), 2600);
  for (const int64_t stop : {int64_t{0}, int64_t{333}, int64_t{1500}, int64_t{2100}}) {
    Json saved;
    {
      RowLoader loader(hub(), number_encoder());
      take(loader, seq_len, stop);
      saved = Json::parse(loader.position().dump());
    }
    bytes_sent();
    RowLoader resumed(hub(), number_encoder(), &saved);
    const auto rows = take(resumed, seq_len, 40);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], expected[static_cast<size_t>(stop) + i]);
    // The file that was in work: footers, the row groups of the lanes, and those fetched ahead.
    const auto bytes = bytes_sent();
    const auto size = static_cast<int64_t>(fs::file_size(data_ + "/part-0.parquet"));
    const int64_t in_work = saved["lane_positions"][0]["sources"][0].contains("at")
                                ? saved["lane_positions"][0]["sources"][0]["at"]["file"].get<int64_t>()
                                : 0;
    for (int64_t f = 0; f < in_work; ++f) {
      const auto name = fmt::format("part-{}.parquet", f);
      const int64_t sent = bytes.contains(name) ? bytes.at(name) : 0;
      EXPECT_LT(sent, size / 4) << name << " after a stop at row " << stop;
    }
    // Of that file: not the row groups that were done.
    int64_t lowest = INT64_MAX;
    for (const Json& lane : saved["lane_positions"]) {
      const Json& source = lane["sources"][0];
      if (source.contains("at") && source["at"]["file"] == in_work) {
        lowest = std::min(lowest, source["slot"].get<int64_t>() - source["at"]["file_slot"].get<int64_t>());
      }
    }
    if (lowest != INT64_MAX && lowest > 1) {
      const auto name = fmt::format("part-{}.parquet", in_work);
      EXPECT_LT(bytes.at(name), size - (lowest - 1) * size / units_of_file);
    }
  }
}

TEST_F(Stream, ranks_read_each_row_group_once_among_them) {
  std::map<std::string, int64_t> one;
  {
    auto options = hub();
    options.epochs = 1;
    options.prefetch = 0;
    all_rows(options);
    one = bytes_sent();
  }
  std::map<std::string, int64_t> together;
  for (int64_t rank = 0; rank < 4; ++rank) {
    auto options = hub();
    options.rank = rank;
    options.world = 4;
    options.prefetch = 0;
    RowLoader loader(options, number_encoder());
    take(loader, seq_len, 590);  // less than an epoch
    for (const auto& [file, bytes] : bytes_sent()) together[file] += bytes;
  }
  for (const auto& [file, bytes] : together) {
    // Every rank reads the footer and, to see that there is a row at all, the first row group.
    EXPECT_LT(bytes, one[file] + 4 * one[file] / units_of_file + 400'000) << file;
  }
}

// Each fault is met in the middle of the stream; not one document is lost or comes twice.
TEST_F(Stream, faults_change_nothing) {
  const auto expected = all_rows(local(), 2300);
  const std::vector<Json> faults{
      {{"kind", "status"}, {"status", 503}, {"times", 6}},
      {{"kind", "status"}, {"status", 429}, {"times", 5}, {"headers", {{"Retry-After", "0"}}}},
      {{"kind", "cut"}, {"times", 5}},
      {{"kind", "reset"}, {"after", 5000}, {"times", 5}},
      {{"kind", "stall"}, {"after", 1000}, {"times", 2}},
      {{"kind", "length"}, {"delta", -100}, {"times", 2}},
      {{"kind", "close"}, {"times", 4}},
  };
  for (const Json& kind : faults) {
    server_->reset();
    RowLoader loader(hub(), number_encoder());
    auto rows = take(loader, seq_len, 100);
    Json fault = kind;
    fault["path"] = "part-";
    fault["origin"] = "cdn";
    server_->fault(fault);
    for (Row& row : take(loader, seq_len, 2200)) rows.push_back(std::move(row));
    EXPECT_EQ(rows, expected) << kind.dump();
  }
}

TEST_F(Stream, signed_addresses_are_renewed) {
  const auto expected = all_rows(local(), 2300);
  server_->set("signed_uses", 2);
  EXPECT_EQ(all_rows(hub(), 2300), expected);
}

// The newest commit moves on while a run is stopped: it goes on with the commit that it began with.
TEST_F(Stream, the_commit_is_kept_on_resume) {
  const auto options = hub();
  Json saved;
  {
    RowLoader loader(options, number_encoder());
    take(loader, seq_len, 50);
    saved = Json::parse(loader.position().dump());
  }
  const std::string first = options.storage->commits().at("hf://datasets/own/text@main");
  EXPECT_EQ(commits_of(saved).at("hf://datasets/own/text@main"), first);
  server_->set("commits", {{"main", "ffffffffffffffffffffffffffffffffffffffff"}, {"before", first}});
  server_->log();
  const auto later = hub();
  later.storage->pin(commits_of(saved));
  RowLoader resumed(later, number_encoder(), &saved);
  take(resumed, seq_len, 20);
  EXPECT_EQ(later.storage->commits().at("hf://datasets/own/text@main"), first);
  for (const Json& request : server_->log()) {
    EXPECT_EQ(request.at("path").get<std::string>().find("ffffffff"), std::string::npos) << request.dump();
  }
}

// A loader ends at once, and a signal ends the wait for a row, while the server does not answer.
TEST_F(Stream, a_stall_does_not_hold_up_the_end) {
  auto options = hub();
  HttpOptions patient;
  patient.stall_seconds = 60;
  patient.read_patience = 600;
  options.storage = std::make_shared<Storage>(patient);
  const auto corpus = std::make_shared<const Corpus>(options);
  auto loader = std::make_unique<RowLoader>(corpus, options, number_encoder());
  server_->fault({{"path", "part-"}, {"origin", "cdn"}, {"kind", "stall"}, {"after", 100}, {"times", 1000}});
  Row row(seq_len + 1);
  std::thread signal([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::raise(SIGTERM);
  });
  install_stop_handlers();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(while (loader->next(row)){}, Stopped);
  signal.join();
  loader.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  clear_stop_request();
  // Without a signal: the destructor alone.
  server_->reset();
  auto second = std::make_unique<RowLoader>(corpus, options, number_encoder());
  server_->fault(
      {{"path", "part-"}, {"origin", "cdn"}, {"kind", "stall"}, {"after", 100}, {"times", 1000}, {"skip", 6}});
  EXPECT_TRUE(second->next(row));
  second.reset();
}

TEST_F(Stream, a_file_that_changes_is_an_error) {
  auto options = hub();
  server_->fault(
      {{"path", "part-0"}, {"origin", "cdn"}, {"kind", "etag"}, {"etag", "\"other\""}, {"times", 1000}, {"skip", 4}});
  const auto line = error_of(
      [&] {
        RowLoader loader(options, number_encoder());
        take(loader, seq_len, 3000);
      },
      ExitCode::failed);
  EXPECT_CONTAINS(line, "changed");
}

TEST_F(Stream, what_is_not_there_is_said_at_once) {
  auto options = hub();
  options.sources = {"hf://datasets/own/text/dat"};
  const auto near = error_of([&] { RowLoader(options, number_encoder()); }, ExitCode::usage);
  EXPECT_CONTAINS(near, "'data'");
  options.sources = {"hf://datasets/own/nothing"};
  EXPECT_CONTAINS(error_of([&] { RowLoader(options, number_encoder()); }), "own/nothing");
}

}  // namespace
}  // namespace mythos::test

// `mythos train` on a data set and a tokenizer of a hub: as a user starts it, with what can go wrong on the way.
#include "../support/hub_server.h"
#include "../support/program.h"
#include "../support/tiny.h"
#include "train_testing.h"

#include <regex>

namespace mythos::testing {
namespace {

using test::Server;

class Hub : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = std::make_unique<TemporaryFolder>();
    const auto documents = generated_documents(400'000);
    for (int f = 0; f < 2; ++f) {
      std::string lines;
      for (size_t d = static_cast<size_t>(f); d < documents.size(); d += 2) {
        lines += Json{{"text", documents[d]}, {"id", d}}.dump() + "\n";
      }
      fs::create_directories(*root_ / "datasets/own/text/sample/10BT");
      write_text(*root_ / fmt::format("datasets/own/text/sample/10BT/{:03}_00000.jsonl", f), lines);
    }
    fs::create_directories(*root_ / "models/own/tokenizer");
    small_tokenizer({documents.begin(), documents.begin() + 300}).save(*root_ / "models/own/tokenizer/tokenizer.json");
    server_ = std::make_unique<Server>(root_->path());
  }
  static void TearDownTestSuite() {
    server_.reset();
    root_.reset();
  }
  void SetUp() override {
    server_->reset();
    write_text(folder_ / "config.toml",
               std::string(tiny_model_toml) +
                   "[tokenizer]\npath = \"hf://own/tokenizer\"\n"
                   "[data]\nsource = \"hf://datasets/own/text/sample-10BT\"\nvalidation_documents = 4\n"
                   "[train]\ndevice = \"cpu\"\nthreads = 1\nseq_len = 16\nmicro_batch = 2\nglobal_batch_tokens = 64\n"
                   "steps = 24\nlr = 3e-3\nwarmup_steps = 4\nseed = 7\n[checkpoint]\nevery = 6\nbackground = "
                   "false\n[run]\ndir = \"" +
                   (folder_ / "run").string() + "\"\n");
  }

  [[nodiscard]] Program::Options environment(const std::string& token = "") const {
    Program::Options options;
    options.environment = {{"HF_ENDPOINT", server_->url("")},
                           {"HF_HOME", (folder_ / "home").string()},
                           {"HF_TOKEN", token},
                           {"http_proxy", ""}};
    return options;
  }
  [[nodiscard]] std::vector<std::string> train(const fs::path& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"train", (folder_ / "config.toml").string(), "--set", "run.dir=" + run.string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static fs::path last(const fs::path& run) { return TinyRun::checkpoint_of(run, 24); }
  static std::string weights(const fs::path& run) {
    const auto file = SafetensorsFile::open(last(run));
    std::string bytes;
    for (const auto& entry : file.entries()) {
      const auto data = file.data(entry);
      bytes += entry.name;
      bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
    }
    return bytes;
  }

  TemporaryFolder folder_;
  static inline std::unique_ptr<TemporaryFolder> root_;
  static inline std::unique_ptr<Server> server_;
};

// Killed, and gone on with while the newest commit has moved on: the undisturbed run's weights, on the old commit.
TEST_F(Hub, a_killed_run_goes_on_with_the_same_commit) {
  const auto whole = run_program(train(folder_ / "whole"), environment());
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.err.find("revision"), std::string::npos);
  {
    Program killed(train(folder_ / "run"), environment());
    killed.wait_until([&] { return fs::exists(TinyRun::checkpoint_of(folder_ / "run", 12)); });
    killed.signal(SIGKILL);
    killed.wait();
  }
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  server_->set("commits", {{"main", std::string(40, 'f')}, {"before", commit}});
  server_->log();
  const auto resumed = run_program(train(folder_ / "run"), environment());
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("own/text@main is " + commit), std::string::npos) << resumed.err;
  expect_same_state(last(folder_ / "run"), last(folder_ / "whole"));
}

TEST_F(Hub, a_second_start_needs_no_tokenizer_from_the_network) {
  ASSERT_EQ(run_program(train(folder_ / "run", {"--steps", "2"}), environment()).code, 0);
  server_->fault({{"path", "own/tokenizer/resolve"}, {"kind", "status"}, {"status", 500}});
  const auto again = run_program(train(folder_ / "run", {"--steps", "3", "--force"}), environment());
  EXPECT_EQ(again.code, 0) << again.err;
}

// P7 (a): a stop while the program waits for the network.
TEST_F(Hub, P7_a_stop_while_waiting_for_data_saves_and_ends) {
  Program program(train(folder_ / "run", {"--set", "train.steps=100000", "--set", "checkpoint.every=100000"}),
                  environment());
  const fs::path log = folder_ / "run/log.txt";
  ASSERT_TRUE(
      program.wait_until([&] { return fs::exists(log) && read_file(log).find("| step ") != std::string::npos; }));
  server_->log();
  server_->fault({{"path", "jsonl"}, {"kind", "stall"}, {"after", 10}, {"times", 100000}});
  // It trains on what it has; the next epoch it cannot read.
  ASSERT_TRUE(program.wait_until([&] {
    for (const Json& request : server_->log()) {
      if (request.at("path").get<std::string>().find("jsonl") != std::string::npos) return true;
    }
    return false;
  }));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
  EXPECT_NE(program.err().find("saved"), std::string::npos) << program.err();
}

// Patience that ends: what was trained is saved, and one sentence says what happened.
TEST_F(Hub, a_hub_that_stays_away_ends_the_run_with_a_checkpoint) {
  server_->fault({{"path", "jsonl"}, {"kind", "status"}, {"status", 503}, {"skip", 3}});
  const auto outcome = run_program(
      train(folder_ / "run", {"--set", "train.steps=100000", "--set", "data.retry_minutes=0.02"}), environment());
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("503"), std::string::npos) << outcome.err;
}

// A start that goes on waits as long as training would: here for 3 seconds, where a first start tries for 30.
TEST_F(Hub, a_run_that_goes_on_is_as_patient_as_one_that_trains) {
  ASSERT_EQ(run_program(train(folder_ / "run", {"--set", "train.max_hours=1e-9"}), environment()).code, 0);
  server_->fault({{"path", "datasets/own/text"}, {"kind", "status"}, {"status", 503}, {"times", 100000}});
  auto outcome = run_program(train(folder_ / "run", {"--force", "--set", "data.retry_minutes=0.05"}), environment());
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  const std::regex within("503.* given up after (one try|[0-9]+ tries in [0-9](\\.[0-9]+)? s)");
  EXPECT_TRUE(std::regex_search(outcome.err, within)) << outcome.err;
  server_->reset();
  server_->fault({{"path", "datasets/own/text"}, {"kind", "status"}, {"status", 503}, {"times", 2}});
  outcome = run_program(train(folder_ / "run"), environment());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Hub, tokens_are_never_written_down) {
  const auto bad = run_program(train(folder_ / "run"), environment("hf_secret_but_expired"));
  EXPECT_EQ(bad.code, 2) << bad.err;
  EXPECT_EQ(bad.err.find("hf_secret"), std::string::npos) << bad.err;
  EXPECT_NE(bad.err.find("HF_TOKEN"), std::string::npos) << bad.err;
  const auto good = run_program(train(folder_ / "run", {"--steps", "2"}), environment("hf_good_token"));
  ASSERT_EQ(good.code, 0) << good.err;
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(read_file(entry.path()).find("hf_good_token"), std::string::npos) << entry.path();
  }
  EXPECT_EQ(good.err.find("hf_good_token"), std::string::npos);
}

// A data set of its own on this machine under the same names: the run goes on with it.
TEST_F(Hub, a_run_can_go_on_with_prepared_data) {
  const auto whole = run_program(train(folder_ / "whole"), environment());
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(run_program(train(folder_ / "run", {"--set", "train.max_hours=1e-9"}), environment()).code, 0);
  const auto prepared = run_program({"data", "prepare", "hf://datasets/own/text/sample/10BT", "--tokenizer",
                                     "hf://own/tokenizer", "--out", (folder_ / "prepared").string(), "--json"},
                                    environment());
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  const auto rest = run_program(
      train(folder_ / "run", {"--set", "data.source=" + (folder_ / "prepared").string(), "--set", "train.max_hours=0"}),
      environment());
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(weights(folder_ / "run"), weights(folder_ / "whole"));
}

}  // namespace
}  // namespace mythos::testing

#include "report/events.h"

#include "../support/tensorboard.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace mythos::testing {
namespace {
namespace fs = std::filesystem;

class Events : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mythos_events_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::error_code ec;
    fs::remove_all(folder_, ec);
  }

  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& e : fs::directory_iterator(folder_)) found.push_back(e.path());
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path folder_;
};

class EventsRead : public Events {
 protected:
  void SetUp() override {
    if (const auto missing = TensorBoard::missing(); !missing.empty()) GTEST_SKIP() << missing;
    Events::SetUp();
  }
};

// RFC 3720, appendix B.4, and then masked.
TEST(MaskedCrc, is_that_of_the_format) {
  const auto unmasked = [](std::string_view bytes) {
    const uint32_t moved = masked_crc32c(bytes) - 0xA282EAD8U;
    return moved >> 17 | moved << 15;
  };
  EXPECT_EQ(unmasked("123456789"), 0xE3069283U);
  EXPECT_EQ(unmasked(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(unmasked(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(unmasked(""), 0U);
}

TEST_F(EventsRead, tensorboard_reads_what_was_written) {
  {
    EventWriter events(folder_, 0);
    events.text(0, "samples/0", "before all");
    for (int64_t step = 1; step <= 300; ++step) {
      events.scalars(step, {{"loss", 10.0 / static_cast<double>(step)}, {"speed/tokens_per_s", 5440.5}});
    }
    events.scalars(int64_t{1} << 40, {{"loss", -1.5e-30}});
    events.scalars(301, {{"not_finite", std::nan("")}});
    events.text(300, "samples/0", "Der Fluß | *fließt* \xF0\x9F\x91\x8D");
  }
  const Json read = TensorBoard::read(folder_);
  EXPECT_EQ(read["curves"]["not_finite"], Json::array({Json{301, "nan"}}));
  const Json& loss = read["curves"]["loss"];
  ASSERT_EQ(loss.size(), 301U);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(loss[i][0], i + 1);
    EXPECT_FLOAT_EQ(loss[i][1].get<float>(), 10.0F / static_cast<float>(i + 1));
  }
  EXPECT_EQ(loss[300][0], int64_t{1} << 40);
  EXPECT_FLOAT_EQ(loss[300][1].get<float>(), -1.5e-30F);
  EXPECT_EQ(read["curves"]["speed/tokens_per_s"][7][1], 5440.5);
  ASSERT_EQ(read["texts"]["samples/0"].size(), 2U);
  EXPECT_EQ(read["texts"]["samples/0"][0], (Json{0, "before all", "text"}));
  EXPECT_EQ(read["texts"]["samples/0"][1], (Json{300, "Der Fluß | *fließt* \xF0\x9F\x91\x8D", "text"}));
}

// Steps that a killed process had written beyond the checkpoint that the next one goes on from are gone.
TEST_F(EventsRead, curves_do_not_zigzag_after_a_resume) {
  for (const int64_t resumed_at : {0, 6, 9}) {
    EventWriter events(folder_, resumed_at);
    for (int64_t step = resumed_at + 1; step <= 14; ++step) {
      events.scalars(step, {{"loss", static_cast<double>(100 * resumed_at + step)}});
      if (step % 7 == 0) events.scalars(step, {{"held_out/loss", static_cast<double>(resumed_at)}});
    }
    events.flush();
  }
  const auto found = files();
  ASSERT_EQ(found.size(), 3U);
  // The last one was killed in the middle of a record.
  fs::resize_file(found[2], fs::file_size(found[2]) - 5);
  const Json read = TensorBoard::read(folder_);
  std::vector<int64_t> steps, values;
  for (const Json& point : read["curves"]["loss"]) {
    steps.push_back(point[0]);
    values.push_back(point[1]);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(values, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 607, 608, 609, 910, 911, 912, 913, 914}));
  EXPECT_EQ(read["curves"]["held_out/loss"], Json::array({Json{7, 6.0}})) << "the record that was cut off counts not";
}

TEST_F(EventsRead, going_back_within_a_process_takes_the_steps_back) {
  EventWriter events(folder_, 0);
  for (int64_t step = 1; step <= 9; ++step) events.scalars(step, {{"loss", 1.0}});
  events.going_back_to(4);
  for (int64_t step = 5; step <= 6; ++step) events.scalars(step, {{"loss", 2.0}});
  events.flush();
  const Json loss = TensorBoard::read(folder_)["curves"]["loss"];
  ASSERT_EQ(loss.size(), 6U);
  EXPECT_EQ(loss[3], (Json{4, 1.0}));
  EXPECT_EQ(loss[4], (Json{5, 2.0}));
}

TEST_F(Events, a_file_sorts_behind_those_that_are_there_whatever_the_clock_says) {
  std::ofstream(folder_ / "events.out.tfevents.4102444800.elsewhere.1") << "";  // written in 2100
  std::ofstream(folder_ / "events.out.tfevents.99999999999999999999.x") << "";  // no number of ours
  { const EventWriter events(folder_, 0); }
  { const EventWriter events(folder_, 3); }
  const auto found = files();
  ASSERT_EQ(found.size(), 4U);
  EXPECT_TRUE(found[1].filename().string().starts_with("events.out.tfevents.4102444801.")) << found[1];
  EXPECT_TRUE(found[2].filename().string().starts_with("events.out.tfevents.4102444802.")) << found[2];
}

TEST_F(EventsRead, what_was_flushed_is_whole_records_even_on_a_full_disk) {
  log::set_quiet(true);
  EventWriter events(folder_, 0);
  events.scalars(1, {{"loss", 1.0}});
  events.flush();
  const uint64_t before = fs::file_size(files()[0]);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{before + 20, old.rlim_max};  // in the middle of the next record
  ::setrlimit(RLIMIT_FSIZE, &limit);
  events.scalars(2, {{"loss", 2.0}});
  events.flush();
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(fs::file_size(files()[0]), before);
  events.scalars(3, {{"loss", 3.0}});
  events.flush();
  log::set_quiet(false);
  const Json loss = TensorBoard::read(folder_)["curves"]["loss"];
  EXPECT_EQ(loss, (Json::array({Json{1, 1.0}, Json{2, 2.0}, Json{3, 3.0}}))) << "what did not fit came later";
}

TEST_F(Events, a_folder_that_cannot_be_written_is_named) {
  std::ofstream(folder_ / "file") << "";
  try {
    const EventWriter events(folder_ / "file", 0);
    FAIL() << "written";
  } catch (const Error& e) {
    EXPECT_NE(e.line().find((folder_ / "file").string()), std::string::npos) << e.line();
  }
}

}  // namespace
}  // namespace mythos::testing

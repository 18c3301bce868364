// Notices that a spot machine is taken back.
#include "train/spot.h"

#include "metadata_service.h"
#include "train_testing.h"

#include <condition_variable>
#include <mutex>

namespace mythos::testing {
namespace {

const std::string notice = R"({"action": "terminate", "time": "2026-05-24T19:58:10Z"})";

// What a watch is told within a minute; nothing if `enough` requests came first.
std::optional<SpotNotice> told(const MetadataService& service, size_t enough = 1000) {
  std::mutex mutex;
  std::condition_variable wake;
  std::optional<SpotNotice> result;
  const SpotWatch watch(
      service.address(),
      [&](const SpotNotice& n) {
        const std::lock_guard lock(mutex);
        result = n;
        wake.notify_all();
      },
      0.005);
  std::unique_lock lock(mutex);
  for (int i = 0; i < 6000 && !result && service.log().size() < enough; ++i) {
    wake.wait_for(lock, std::chrono::milliseconds(10));
  }
  return result;
}

TEST(SpotNotice, IsReadFromItsDocumentAndFromNothingElse) {
  const auto n = spot_notice_from(notice);
  ASSERT_TRUE(n);
  EXPECT_EQ(n->action, "terminate");
  EXPECT_EQ(n->time, "2026-05-24T19:58:10Z");
  for (const char* other : {"", "{}", "[]", "<html>", R"({"action": 3})", R"({"action": "none"})", "\xFF\xFE"}) {
    EXPECT_FALSE(spot_notice_from(other)) << other;
  }
}

TEST(SpotNotice, IsLookedForOnMachinesOfEc2Alone) {
  const TemporaryFolder system;
  EXPECT_FALSE(is_ec2_machine(system.path()));
  fs::create_directories(system / "class/dmi/id");
  write_text(system / "class/dmi/id/sys_vendor", "QEMU\n");
  write_text(system / "class/dmi/id/board_asset_tag", "Not Specified\n");
  EXPECT_FALSE(is_ec2_machine(system.path()));
  write_text(system / "class/dmi/id/sys_vendor", "Amazon EC2\n");
  EXPECT_TRUE(is_ec2_machine(system.path()));
  write_text(system / "class/dmi/id/sys_vendor", "Xen\n");
  write_text(system / "class/dmi/id/product_uuid", "EC2E1916-9099-7CAF-FD21-012345ABCDEF\n");
  EXPECT_TRUE(is_ec2_machine(system.path()));
}

TEST(SpotNotice, TheSettingNamesAnAddress) {
  EXPECT_EQ(spot_address("off"), "");
  EXPECT_EQ(spot_address("http://127.0.0.1:1/"), "http://127.0.0.1:1");
  EXPECT_THROW(spot_address("on"), Error);
}

TEST(SpotWatch, AsksWithATokenUntilThereIsANotice) {
  const MetadataService service({.notice = notice, .after = 3});
  const auto n = told(service);
  ASSERT_TRUE(n);
  EXPECT_EQ(n->action, "terminate");
  const auto log = service.log();
  ASSERT_EQ(log.size(), 5U);
  EXPECT_EQ(log[0], "PUT /latest/api/token 200");
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(log[i], "GET /latest/meta-data/spot/instance-action 404");
  EXPECT_EQ(log[4], "GET /latest/meta-data/spot/instance-action 200");
}

TEST(SpotWatch, RenewsATokenThatHasExpired) {
  const MetadataService service({.notice = notice, .after = 4, .expire_after = 2});
  EXPECT_TRUE(told(service));
  const auto log = service.log();
  EXPECT_EQ(std::count(log.begin(), log.end(), "PUT /latest/api/token 200"), 3);
  EXPECT_EQ(std::count(log.begin(), log.end(), "GET /latest/meta-data/spot/instance-action 401"), 2);
}

TEST(SpotWatch, AsksAServiceWithoutTokensWithoutOne) {
  const MetadataService service({.notice = notice, .knows_tokens = false});
  EXPECT_TRUE(told(service));
}

TEST(SpotWatch, TakesNothingElseForANotice) {
  const MetadataService service({.notice = "<html>a captive portal</html>"});
  EXPECT_FALSE(told(service, 10));
}

TEST(SpotWatch, AServiceThatIsNotThereIsSaidOnceAndHarmsNothing) {
  const TemporaryFolder folder;
  log::set_quiet(true);
  log::set_file(folder / "log");
  {
    const SpotWatch watch(
        "http://127.0.0.1:1", [](const SpotNotice&) { FAIL(); }, 0.001);
    for (int i = 0; i < 6000 && read_file(folder / "log").empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  log::set_file("");
  EXPECT_EQ(lines_of(folder / "log").size(), 1U);
}

class SpotTest : public TrainTest {};

TEST_F(SpotTest, ANoticeSavesAndEndsLikeSIGTERM) {
  const MetadataService service({.notice = notice});
  const auto p = program(
      {"train.steps=100000", "checkpoint.every=100000", "run.spot_notice=" + service.address(),
       "run.notify=echo \"$MYTHOS_EVENT at $MYTHOS_STEP: $MYTHOS_MESSAGE\" > " + (tiny_.folder() / "told").string()});
  EXPECT_EQ(p->wait(), 128 + SIGTERM) << p->err();
  const std::string text = p->err();
  EXPECT_NE(text.find("Amazon takes this spot machine back (terminate at 2026-05-24T19:58:10Z)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("the same command goes on"), std::string::npos) << text;
  const int64_t step = newest(tiny_.run());
  EXPECT_EQ(static_cast<int64_t>(steps_in(tiny_.run() / "metrics.jsonl").size()), step);
  EXPECT_EQ(read_file(tiny_.folder() / "told"),
            fmt::format("stop at {}: Amazon takes this spot machine back (terminate at 2026-05-24T19:58:10Z)\n", step));
}

}  // namespace
}  // namespace mythos::testing

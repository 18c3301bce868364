// Checkpoints on S3, against a real server (moto) with the faults a network has.
#include "../support/s3_environment.h"
#include "base/signals.h"
#include "checkpoint/s3_target.h"
#include "checkpoint/store.h"
#include "support.h"

namespace mythos {
namespace {
using namespace mythos::testing;
using test::S3Server;
using Steps = std::vector<int64_t>;

class S3StoreTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    if (!S3Server::missing().empty()) GTEST_SKIP() << S3Server::missing();
    server_ = std::make_unique<S3Server>();
    server_->ask({{"do", "bucket"}, {"name", "runs"}});
    environment_ = std::make_unique<Environment>(s3_environment(*server_));
  }
  void TearDown() override {
    environment_.reset();
    server_.reset();
    CheckpointTest::TearDown();
  }
  // Impatient, for what never comes back.
  static CheckpointStore store(int64_t keep_last = 3, int64_t keep_every = 0, const std::string& at = "s3://runs/x") {
    return {CheckpointTarget::at(at, 0.3), keep_last, keep_every};
  }
  static std::vector<std::string> objects(const std::string& at = "s3://runs/x") {
    std::vector<std::string> out;
    for (const auto& e : S3Folder(at).list()) out.push_back(e.name);
    return out;
  }
  // Two parts and a bit: more than one request, and more than is held back.
  static std::vector<std::byte> large() { return std::vector<std::byte>(size_t{45} << 20, std::byte{7}); }

  std::unique_ptr<S3Server> server_;
  std::unique_ptr<Environment> environment_;
};

TEST_F(S3StoreTest, SavesKeepsAndFinds) {
  CheckpointStore s = store(2, 40);
  EXPECT_EQ(s.newest(), std::nullopt);
  s.prepare();
  EXPECT_EQ(objects(), std::vector<std::string>{}) << "the probe is gone again";
  for (int64_t step = 10; step <= 60; step += 10) {
    const auto path = s.save(small_meta(step), Numbers(static_cast<uint64_t>(step)).tensors);
    EXPECT_EQ(path, "s3://runs/x/" + checkpoint_name(step));
  }
  EXPECT_EQ(s.list(), (Steps{40, 50, 60}));
  const auto newest = s.newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->meta.step, 60);
  EXPECT_EQ(newest->path(), "s3://runs/x/step_0000060.safetensors");
  EXPECT_TRUE(holds(*newest, Numbers(60)));
  newest->verify();
  EXPECT_NO_THROW(s.require_room(int64_t{1} << 60, 10, 100));
}

// C2 and C9 on S3: objects that are cut off, damaged, or something else.
TEST_F(S3StoreTest, DamagedOnesAreNamedAndDoNotCountAnyMore) {
  CheckpointStore s = store(5);
  for (const int64_t step : {10, 20, 30}) s.save(small_meta(step), Numbers(static_cast<uint64_t>(step)).tensors);
  server_->put("runs", "x/step_0000040.safetensors", "");
  server_->put("runs", "x/step_0000050.safetensors", "half a checkpoint");
  EXPECT_TRUE(holds(*s.newest(CheckpointStore::Damaged::leave), Numbers(30)));
  EXPECT_EQ(s.list(), (Steps{10, 20, 30, 40, 50}));
  EXPECT_TRUE(holds(*s.newest(), Numbers(30)));
  EXPECT_EQ(s.list(), (Steps{10, 20, 30}));
  EXPECT_NE(logged().find("s3://runs/x/step_0000050.safetensors does not count any more"), std::string::npos);
  s.set_aside_newer(10);
  EXPECT_EQ(s.newest()->meta.step, 10);
  // Saved again they count again.
  s.save(small_meta(40), Numbers(41).tensors);
  EXPECT_EQ(s.list(), (Steps{10, 40}));
  EXPECT_TRUE(holds(*s.newest(), Numbers(41)));
  // None good is no fresh start.
  for (const int64_t step : {10, 40}) server_->put("runs", "x/" + checkpoint_name(step), "x");
  EXPECT_NE(error_line([&] { (void)s.newest(); }).find("no checkpoint in s3://runs/x is good"), std::string::npos);
}

TEST_F(S3StoreTest, AnUploadCutInTheMiddleLeavesNothing) {
  const S3Folder folder("s3://runs/x", 0.3);
  for (const bool fast : {false, true}) {
    server_->ask(
        {{"do", "fault"}, {"path", "partNumber=2"}, {"times", 1000}, {"status", 500}, {"code", "InternalError"}});
    const std::string line = error_line([&] {
      const auto sink = folder.upload("step", fast);
      sink->write(large());
      sink->commit();
    });
    EXPECT_NE(line.find("cannot write s3://runs/x/step"), std::string::npos) << line;
    EXPECT_EQ(objects(), std::vector<std::string>{});
    bool called_off = false;
    for (const Json& r : server_->ask({{"do", "requests"}})) {
      called_off = called_off || (r["method"] == "DELETE" && r["query"].get<std::string>().starts_with("uploadId"));
    }
    EXPECT_TRUE(called_off);
    server_->ask({{"do", "clear"}});
    // Given up by us.
    folder.upload("step", fast)->write(large());
    EXPECT_EQ(objects(), std::vector<std::string>{});
    // And then it works.
    const auto sink = folder.upload("step", fast);
    sink->write(large());
    EXPECT_EQ(objects(), std::vector<std::string>{});
    sink->commit();
    ASSERT_EQ(objects(), std::vector<std::string>{"step"});
    std::vector<std::byte> back(large().size());
    folder.open({"step", back.size(), ""})->read_at(0, back);
    EXPECT_EQ(back, large());
    folder.remove("step");
  }
}

// What passes is waited for; what stays is one sentence, and the earlier ones are there when the server is back.
TEST_F(S3StoreTest, AServerThatVanishes) {
  CheckpointStore s = store();
  s.save(small_meta(10), Numbers(10).tensors);
  server_->ask({{"do", "fault"},
                {"path", "step_0000020"},
                {"method", "PUT"},
                {"times", 1},
                {"status", 503},
                {"code", "SlowDown"}});
  s.save(small_meta(20), Numbers(20).tensors);
  EXPECT_EQ(s.list(), (Steps{10, 20}));
  const S3Folder folder("s3://runs/x", 0.3);
  auto sink = folder.upload("step_0000030.safetensors", false);
  sink->write(large());
  server_.reset();
  EXPECT_NE(error_line([&] { sink->commit(); }).find("no connection to"), std::string::npos);
  sink.reset();
  for (const auto& work : std::vector<std::function<void()>>{[&] { s.save(small_meta(30), Numbers(30).tensors); },
                                                             [&] { (void)s.newest(); }, [&] { s.prepare(); }}) {
    const std::string line = error_line(work);
    EXPECT_NE(line.find("no connection to"), std::string::npos) << line;
    EXPECT_EQ(line.find("wJalr"), std::string::npos) << line;
  }
  EXPECT_NO_THROW(s.prune());
}

TEST_F(S3StoreTest, ABucketThatIsNotThereOrMayNotBeWritten) {
  EXPECT_NE(error_line([&] { store(3, 0, "s3://nowhere/x").prepare(); }).find("there is no such bucket"),
            std::string::npos);
  EXPECT_NE(error_line([&] { (void)store(3, 0, "s3://nowhere/x").newest(); }).find("there is no such bucket"),
            std::string::npos);
  EXPECT_NE(error_line([&] { store(3, 0, "s3://").prepare(); }).find("names no folder on S3"), std::string::npos);
  server_->ask({{"do", "fault"},
                {"path", "write_test"},
                {"method", "PUT"},
                {"times", 1000},
                {"status", 403},
                {"code", "AccessDenied"},
                {"message", "Access Denied"}});
  const std::string line = error_line([&] { store().prepare(); });
  EXPECT_NE(line.find("access denied with the credentials in use"), std::string::npos) << line;
  EXPECT_NE(line.find("s3:PutObject"), std::string::npos) << line;
}

TEST_F(S3StoreTest, AStopDoesNotCutASave) {
  CheckpointStore s = store();
  install_stop_handlers();
  ::raise(SIGTERM);
  ASSERT_TRUE(stop_requested());
  s.save(small_meta(10), Numbers(10).tensors);
  clear_stop_request();
  EXPECT_TRUE(holds(*s.newest(), Numbers(10)));
}

TEST_F(S3StoreTest, AllOfItIsSetAside) {
  CheckpointStore s = store();
  for (const int64_t step : {10, 20}) s.save(small_meta(step), Numbers(1).tensors);
  EXPECT_EQ(s.set_all_aside(), "s3://runs/x.1");
  EXPECT_EQ(s.newest(), std::nullopt);
  EXPECT_EQ(store(3, 0, "s3://runs/x.1").list(), (Steps{10, 20}));
  s.save(small_meta(10), Numbers(1).tensors);
  EXPECT_EQ(s.set_all_aside(), "s3://runs/x.2");
}

TEST(NamelessFileTest, IsGoneWhenItIsClosed) {
  std::string path;
  {
    NamelessFile file(1000, "a test");
    const std::string text = "some bytes";
    file.write_at(990, std::as_bytes(std::span(text)));
    path = file.path();
    const std::string read = read_file(path);
    EXPECT_EQ(read.size(), 1000U);
    EXPECT_EQ(read.substr(990), text);
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_NE(error_line([] { NamelessFile file(uint64_t{1} << 60, "a checkpoint"); }).find("there is no room"),
            std::string::npos);
}

}  // namespace
}  // namespace mythos

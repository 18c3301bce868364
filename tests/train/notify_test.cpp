// run.notify, and what a run tells of itself.
#include "train/notify.h"

#include "train/gpu_sensors.h"
#include "train/status.h"
#include "train_testing.h"

#include <cstdlib>

namespace mythos::testing {
namespace {

class NotifyTest : public TrainTest {
 protected:
  void SetUp() override { log::set_file(tiny_.folder() / "log"); }
  // Appends what it was told to a file.
  std::string command() const {
    return "printf '%s|%s|%s|%s\\n' \"$MYTHOS_EVENT\" \"$MYTHOS_RUN\" \"$MYTHOS_STEP\" \"$MYTHOS_MESSAGE\" >> " +
           (tiny_.folder() / "told").string();
  }
  [[nodiscard]] std::string log() const { return read_file(tiny_.folder() / "log"); }
};

TEST_F(NotifyTest, TheCommandIsToldByItsEnvironment) {
  ::setenv("MYTHOS_EVENT", "something old", 1);
  {
    Notifier notifier(command(), "runs/x");
    notifier.send(RunEvent::rollback, 7, "a 'quoted' \"message\" $HOME; rm -rf x\nof two lines");
    notifier.send(RunEvent::low_disk, 8, "");
  }
  ::unsetenv("MYTHOS_EVENT");
  const std::string run = fs::absolute("runs/x").string();
  EXPECT_EQ(read_file(tiny_.folder() / "told"), "rollback|" + run +
                                                    "|7|a 'quoted' \"message\" $HOME; rm -rf x\nof two lines\n"
                                                    "low_disk|" +
                                                    run + "|8|\n");
  EXPECT_EQ(log(), "");
}

TEST_F(NotifyTest, OutputGoesToTheLogAndFailureIsAWarning) {
  { Notifier("echo to out; echo to err >&2; exit 3", tiny_.run()).send(RunEvent::finish, 1, "m"); }
  EXPECT_EQ(log(),
            "run.notify: to out\nrun.notify: to err\n"
            "warning: run.notify of 'finish' failed with exit code 3; the run is not affected\n");
}

TEST_F(NotifyTest, ACommandThatHangsIsEndedWithAllItStarted) {
  const fs::path pids = tiny_.folder() / "pids";
  {
    Notifier notifier("sleep 600 & echo $! > " + pids.string() + "; sleep 600", tiny_.run(), 0.3);
    notifier.send(RunEvent::crash, 1, "m");
  }
  EXPECT_NE(log().find("took longer than 0.3 s and was ended"), std::string::npos) << log();
  const int pid = std::atoi(read_file(pids).c_str());
  ASSERT_GT(pid, 0);
  // Killed; who reaps it is another question.
  for (int i = 0; i < 6000; ++i) {
    const std::string stat =
        fs::exists("/proc/" + std::to_string(pid)) ? read_file("/proc/" + std::to_string(pid) + "/stat") : "Z";
    if (stat.find(") Z ") != std::string::npos || stat == "Z") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "what the command started still runs";
}

TEST_F(NotifyTest, WhatACommandLeavesInTheBackgroundIsNotWaitedFor) {
  const auto begin = std::chrono::steady_clock::now();
  { Notifier("sleep 100 & echo done", tiny_.run(), 90).send(RunEvent::finish, 1, "m"); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(80));
  EXPECT_EQ(log(), "run.notify: done\n");
}

TEST_F(NotifyTest, ALongOutputIsCut) {
  { Notifier("yes 0123456789 | head -c 3000000", tiny_.run()).send(RunEvent::finish, 1, "m"); }
  EXPECT_GT(log().size(), 64U << 10);
  EXPECT_LT(log().size(), 400U << 10);
}

TEST_F(NotifyTest, ARunTellsHowItEnded) {
  const std::string notify = "run.notify=" + command();
  const std::string run = fs::absolute(tiny_.run()).string();
  start({notify, "train.max_hours=1e-9"});
  EXPECT_EQ(read_file(tiny_.folder() / "told"), "stop|" + run + "|1|train.max_hours = 1e-09 is reached\n");
  fs::remove(tiny_.folder() / "told");
  start({notify});
  EXPECT_EQ(read_file(tiny_.folder() / "told"), "finish|" + run + "|24|config is done: 24 steps\n");
  fs::remove(tiny_.folder() / "told");
  start({notify});  // finished already
  EXPECT_FALSE(fs::exists(tiny_.folder() / "told"));
  const auto line = error_of(
      request({notify, "data.epochs=1", "train.steps=100000", "train.micro_batch=32", "train.global_batch_tokens=2048"},
              elsewhere()),
      ExitCode::failed);
  const std::string told = read_file(tiny_.folder() / "told");
  EXPECT_TRUE(told.starts_with("crash|" + fs::absolute(elsewhere()).string() + "|")) << told;
  EXPECT_NE(told.find("|the data ended after"), std::string::npos) << told;
  EXPECT_NE(log_of(elsewhere()).find("preflight"), std::string::npos);
  EXPECT_EQ(observe_run(elsewhere()).state, "failed");
}

TEST_F(NotifyTest, TheCommandMayStartTheRunAgain) {
  // The first end is a limit; the command goes on without it, in the same folder.
  const std::string again = std::string(MYTHOS_BINARY) + " train " + tiny_.config().string();
  Program::Options options;
  options.folder = tiny_.folder();
  const Outcome o = run_program(
      {"train", tiny_.config().string(), "--set", "train.max_hours=1e-9", "--set", "run.notify=sleep 1; " + again},
      options);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(newest(tiny_.run()), 24) << o.err;
}

TEST(GpuSensors, ReadADriverLibraryAndDoWithoutOne) {
  EXPECT_FALSE(GpuSensors(0, "/no/such/library.so").read());
  const TemporaryFolder folder;
  write_text(folder / "nvml.c", R"(
    static int started;
    int nvmlInit_v2(void) { started = 1; return 0; }
    int nvmlShutdown(void) { started = 0; return 0; }
    static char devices[4];
    int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) { if (!started || i > 3) return 2; *d = devices + i; return 0; }
    int nvmlDeviceGetHandleByUUID(const char* u, void** d) { *d = devices + 3; return u[0] == 'G' ? 0 : 2; }
    static unsigned index_of(void* d) { return (unsigned)((char*)d - devices); }
    int nvmlDeviceGetPowerUsage(void* d, unsigned* mw) { *mw = 300500 + 1000 * index_of(d); return 0; }
    int nvmlDeviceGetTemperature(void* d, int sensor, unsigned* c) { *c = 60 + index_of(d); return sensor == 0 ? 0 : 2; }
    int nvmlDeviceGetClockInfo(void* d, int kind, unsigned* mhz) { *mhz = kind == 1 ? 2520 : 9001; return kind == 2 ? 3 : 0; }
    int nvmlDeviceGetUtilizationRates(void* d, unsigned* both) { both[0] = 97; both[1] = 40; return 0; }
  )");
  const std::string library = folder / "libfake.so";
  if (std::system(("cc -shared -fPIC -o " + library + " " + (folder / "nvml.c").string()).c_str()) != 0)
    GTEST_SKIP() << "no C compiler here";
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const auto r = GpuSensors(1, library).read();
  ASSERT_TRUE(r);
  EXPECT_DOUBLE_EQ(r->power_watts.value(), 301.5);
  EXPECT_EQ(r->temperature_celsius, 61.0);
  EXPECT_EQ(r->sm_clock_mhz, 2520.0);
  EXPECT_FALSE(r->memory_clock_mhz) << "not supported there";
  EXPECT_EQ(r->utilisation, 0.97);
  EXPECT_EQ(
      to_json(*r).dump(),
      R"({"power_w":301.5,"temperature_c":61.0,"sm_clock_mhz":2520.0,"utilisation":0.97,"memory_utilisation":0.4})");
  EXPECT_FALSE(GpuSensors(9, library).read());
  ::setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
  EXPECT_EQ(GpuSensors(0, library).read()->temperature_celsius, 62.0);
  EXPECT_EQ(GpuSensors(1, library).read()->temperature_celsius, 60.0);
  ::setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c", 1);
  EXPECT_EQ(GpuSensors(0, library).read()->temperature_celsius, 63.0);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace mythos::testing

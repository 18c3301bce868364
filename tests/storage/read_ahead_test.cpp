// The window that is fetched in the background.
#include "storage_testing.h"

#include "storage/byte_source.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

namespace mythos::test {
namespace {

// A remote file in memory that counts, and can be held up or break.
class Fake : public ByteSource {
 public:
  explicit Fake(std::string bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
  [[nodiscard]] bool is_remote() const override { return true; }
  void read_at(uint64_t offset, std::span<std::byte> into, std::stop_token stop) const override {
    {
      std::unique_lock lock(mutex_);
      furthest = std::max(furthest, offset + into.size());
      calls.emplace_back(offset, into.size());
      asked.notify_all();
      if (offset >= held_from && !asked.wait(lock, stop, [&] { return offset < held_from; })) throw Stopped("stopped");
    }
    if (offset + into.size() > breaks_at) throw failure("it broke");
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return calls.size();
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_from = UINT64_MAX;
    asked.notify_all();
  }
  template <class Condition>
  void wait_for(Condition condition) const {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(asked.wait_for(lock, std::chrono::minutes(1), condition));
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable_any asked;
  mutable std::vector<std::pair<uint64_t, uint64_t>> calls;
  mutable uint64_t furthest = 0;
  uint64_t held_from = UINT64_MAX;
  uint64_t breaks_at = UINT64_MAX;

 private:
  std::string bytes_;
  std::string name_ = "fake";
};

constexpr size_t mega = size_t{1} << 20;

std::string part(const ByteSource& source, uint64_t at, size_t n) {
  std::string text(n, '\0');
  source.read_at(at, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(ReadAhead, gives_the_same_bytes_in_few_reads) {
  const std::string bytes = random_bytes(40 * mega + 12'345, 1);
  const auto fake = std::make_shared<Fake>(bytes);
  const auto ahead = read_ahead(fake, 1000, bytes.size() - 2000);
  EXPECT_EQ(ahead->name(), "fake");
  EXPECT_EQ(ahead->size(), bytes.size());
  EXPECT_TRUE(ahead->is_remote());
  Random random(5);
  for (uint64_t at = 1000; at < bytes.size() - 1000;) {
    const size_t n = std::min<size_t>(1 + random.below(900'000), bytes.size() - 1000 - at);
    ASSERT_EQ(std::memcmp(part(*ahead, at, n).data(), bytes.data() + at, n), 0) << at;
    at += n;
  }
  EXPECT_LE(fake->count(), 9U);  // 1, 2, 4 and then 8 MB
  for (const auto& [offset, n] : fake->calls) EXPECT_LE(n, 8 * mega);
}

TEST(ReadAhead, begins_at_once_and_stays_within_its_bounds) {
  const std::string bytes = random_bytes(60 * mega, 2);
  const auto fake = std::make_shared<Fake>(bytes);
  const auto ahead = read_ahead(fake, 0, bytes.size());
  fake->wait_for([&] { return fake->furthest >= 15 * mega; });  // without a read
  EXPECT_EQ(part(*ahead, 0, 100), bytes.substr(0, 100));
  fake->wait_for([&] { return fake->furthest >= 23 * mega; });
  {
    const std::lock_guard lock(fake->mutex_);
    EXPECT_LE(fake->furthest, 24 * mega + 100);
  }
  EXPECT_EQ(part(*ahead, 100, 30 * mega), bytes.substr(100, 30 * mega));  // more than fits at once
}

TEST(ReadAhead, other_reads_go_to_the_source) {
  const std::string bytes = random_bytes(8 * mega, 3);
  const auto fake = std::make_shared<Fake>(bytes);
  const auto ahead = read_ahead(fake, 2 * mega, 3 * mega);
  EXPECT_EQ(part(*ahead, 0, 10), bytes.substr(0, 10));
  EXPECT_EQ(part(*ahead, 7 * mega, 10), bytes.substr(7 * mega, 10));
  EXPECT_EQ(part(*ahead, mega, 6 * mega), bytes.substr(mega, 6 * mega));          // across the window
  EXPECT_EQ(part(*ahead, 2 * mega + 5, 100), bytes.substr(2 * mega + 5, 100));    // behind the reader
  EXPECT_EQ(part(*ahead, 3 * mega, 2 * mega), bytes.substr(3 * mega, 2 * mega));  // again
}

TEST(ReadAhead, a_leap_does_not_wait_for_what_it_leaps_over) {
  const std::string bytes = random_bytes(64 * mega, 4);
  const auto fake = std::make_shared<Fake>(bytes);
  const auto ahead = read_ahead(fake, 0, bytes.size());
  EXPECT_EQ(part(*ahead, 54 * mega, mega), bytes.substr(54 * mega, mega));
  EXPECT_EQ(part(*ahead, 55 * mega, 9 * mega), bytes.substr(55 * mega, 9 * mega));
  uint64_t read = 0;
  for (const auto& [offset, n] : fake->calls) read += n;
  EXPECT_LT(read, 45 * mega);
}

TEST(ReadAhead, many_threads_read_at_once) {
  const std::string bytes = random_bytes(20 * mega, 5);
  const auto fake = std::make_shared<Fake>(bytes);
  const auto ahead = read_ahead(fake, mega, 18 * mega);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        Random random(t);
        for (int i = 0; i < 60; ++i) {
          const uint64_t at = random.below(19 * mega);
          const size_t n = 1 + random.below(mega);
          if (part(*ahead, at, n) != bytes.substr(at, n)) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(ReadAhead, an_error_is_met_by_the_read_that_needs_its_bytes) {
  const std::string bytes = random_bytes(8 * mega, 6);
  const auto fake = std::make_shared<Fake>(bytes);
  fake->breaks_at = 2 * mega;
  const auto ahead = read_ahead(fake, 0, bytes.size());
  EXPECT_EQ(part(*ahead, 0, 1000), bytes.substr(0, 1000));
  EXPECT_EQ(error_of([&] { part(*ahead, mega, 10); }), "it broke");
  EXPECT_EQ(part(*ahead, 1000, 1000), bytes.substr(1000, 1000));
  EXPECT_EQ(error_of([&] { part(*ahead, 5 * mega, 10); }), "it broke");
}

TEST(ReadAhead, its_end_cancels_what_is_under_way) {
  const auto fake = std::make_shared<Fake>(random_bytes(4 * mega, 7));
  fake->held_from = 0;
  {
    const auto ahead = read_ahead(fake, 0, 4 * mega);
    fake->wait_for([&] { return !fake->calls.empty(); });
  }  // would hang here
  EXPECT_EQ(fake->count(), 1U);
}

TEST(ReadAhead, a_waiting_read_can_be_stopped) {
  const auto fake = std::make_shared<Fake>(random_bytes(4 * mega, 8));
  fake->held_from = 0;
  const auto ahead = read_ahead(fake, 0, 4 * mega);
  std::stop_source stop;
  std::jthread asker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  std::string buffer(10, '\0');
  EXPECT_THROW(ahead->read_at(0, std::as_writable_bytes(std::span(buffer)), stop.get_token()), Stopped);
  fake->let_go();
  EXPECT_NO_THROW(ahead->read_at(0, std::as_writable_bytes(std::span(buffer))));
}

TEST(ReadAhead, local_files_and_empty_windows_are_left_alone) {
  const TempFolder folder;
  folder.write("a.txt", "text");
  Storage storage;
  const auto local = storage.open(storage.list(folder / "a.txt", kinds).at(0));
  EXPECT_EQ(read_ahead(local, 0, 4), local);
  const std::shared_ptr<const ByteSource> fake = std::make_shared<Fake>("abc");
  EXPECT_EQ(read_ahead(fake, 3, 10), fake);
  EXPECT_EQ(read_ahead(fake, 9, 10), fake);
  EXPECT_EQ(part(*read_ahead(fake, 1, UINT64_MAX), 1, 2), "bc");
}

}  // namespace
}  // namespace mythos::test

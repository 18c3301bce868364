// A checkpoint that several processes write together.
#include "checkpoint/shared_file.h"

#include "checkpoint/store.h"
#include "support.h"

#include <signal.h>
#include <sys/wait.h>

#include <limits>
#include <thread>

namespace mythos {
namespace {
using namespace mythos::testing;

class SharedFileTest : public CheckpointTest {
 protected:
  // Every tensor cut at random places, and each piece given to one of the writers.
  static std::vector<std::vector<FilePiece>> cut(const Numbers& numbers, const CheckpointParts& parts, int64_t writers,
                                                 uint64_t seed) {
    std::vector<std::vector<FilePiece>> pieces(static_cast<size_t>(writers));
    Random random(derive_seed(seed, 0, "cuts"));
    for (size_t i = 0; i < numbers.tensors.size(); ++i) {
      uint64_t offset = parts.offsets[i];
      for (auto rest = numbers.tensors[i].data; !rest.empty();) {
        const auto piece = rest.first(std::min(rest.size(), size_t{1} + random.below(97)));
        pieces[random.below(static_cast<uint64_t>(writers))].push_back({offset, piece});
        offset += piece.size();
        rest = rest.subspan(piece.size());
      }
    }
    return pieces;
  }
};

TEST_F(SharedFileTest, HoldsWhatOneWriterWouldWrite) {
  CheckpointStore one(root_ / "one", 3), many(dir_, 3);
  one.prepare();
  many.prepare();
  ASSERT_TRUE(many.takes_parts());
  for (const int64_t writers : {1, 2, 5}) {
    const CheckpointMeta meta = small_meta(writers);
    const Numbers numbers(static_cast<uint64_t>(writers));
    const auto expected = one.save(meta, numbers.tensors);
    const auto file = many.begin_shared(meta, writers);
    const auto pieces = cut(numbers, checkpoint_parts(meta), writers, 7);
    std::vector<std::thread> others;
    for (int64_t w = writers - 1; w >= 0; --w) {
      others.emplace_back([&, w] { EXPECT_TRUE(write_part(file->temporary(), w, pieces[static_cast<size_t>(w)])); });
    }
    others.back().join();  // the first writer is done, others perhaps not
    others.pop_back();
    const auto path = many.save(meta, *file);
    for (auto& other : others) other.join();
    file->close();
    EXPECT_EQ(read_file(path), read_file(expected)) << writers;
  }
  EXPECT_EQ(names(), (std::vector<std::string>{checkpoint_name(1), checkpoint_name(2), checkpoint_name(5)}));
}

TEST_F(SharedFileTest, MetadataThatOutgrowsItsRoomMovesThePieces) {
  CheckpointStore one(root_ / "one", 3), many(dir_, 3);
  one.prepare();
  many.prepare();
  CheckpointMeta meta = small_meta(4);
  meta.config = "# " + std::string(300'000, 'x') + "\n";
  const Numbers numbers(3);
  const auto expected = one.save(meta, numbers.tensors);
  const auto file = many.begin_shared(meta, 2);
  const auto pieces = cut(numbers, checkpoint_parts(meta), 2, 8);
  for (int64_t w = 0; w < 2; ++w) EXPECT_TRUE(write_part(file->temporary(), w, pieces[static_cast<size_t>(w)]));
  EXPECT_EQ(read_file(many.save(meta, *file)), read_file(expected));
}

TEST_F(SharedFileTest, AWriterThatFailsLeavesWhatWasThere) {
  CheckpointStore store(dir_, 3);
  store.prepare();
  store.save(small_meta(1), Numbers(1).tensors);
  const std::string before = read_file(store.path_of(1));
  const CheckpointMeta meta = small_meta(2);
  const Numbers numbers(2);
  const auto pieces = cut(numbers, checkpoint_parts(meta), 2, 9);
  const auto fails = [&](const std::string& wanted, const std::function<void(SharedFile&)>& second) {
    const auto file = store.begin_shared(meta, 2);
    EXPECT_TRUE(write_part(file->temporary(), 0, pieces[0]));
    second(*file);
    try {
      store.save(meta, *file);
      ADD_FAILURE() << "no error for " << wanted;
    } catch (const Error& e) {
      EXPECT_NE(e.line().find(wanted), std::string::npos) << e.line();
    }
    file->close();
    EXPECT_EQ(store.list(), std::vector<int64_t>{1});
    EXPECT_EQ(read_file(store.path_of(1)), before);
    EXPECT_EQ(names(), std::vector<std::string>{checkpoint_name(1)});
  };
  // No file is as long as that.
  fails("rank 1 could not write its part: writing", [&](SharedFile& file) {
    EXPECT_TRUE(write_part(file.temporary(), 1,
                           std::vector<FilePiece>{{std::numeric_limits<uint64_t>::max() - 9, pieces[1][0].bytes}}));
  });
  fails("rank 1 could not write its part of", [&](SharedFile& file) {
    for (const std::string& name : names()) {
      if (name.find(".part1") != std::string::npos) fs::remove(dir_ / name);
    }
    (void)file;
  });
  fails("lost sight of", [&](SharedFile& file) { file.give_up(); });
  // A number that is none in another's part.
  auto bad = numbers;
  bad.values[3][1] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 0; i < bad.values.size(); ++i) bad.tensors[i].data = std::as_bytes(std::span(bad.values[i]));
  fails("not finite", [&](SharedFile& file) {
    const auto all = cut(bad, checkpoint_parts(meta), 1, 1);
    EXPECT_TRUE(write_part(file.temporary(), 1, all[0]));
  });
  // Without anybody's part but the first's, numbers are zeros: they are waited for.
  const auto file = store.begin_shared(meta, 2);
  EXPECT_TRUE(write_part(file->temporary(), 0, pieces[0]));
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_TRUE(write_part(file->temporary(), 1, pieces[1]));
  });
  store.save(meta, *file);
  late.join();
  EXPECT_NO_THROW(Checkpoint::open(store.path_of(2)).verify());
}

TEST_F(SharedFileTest, AKilledWriterLeavesNothingForTheNextStart) {
  CheckpointStore store(dir_, 3);
  store.prepare();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto file = CheckpointStore(dir_, 3).begin_shared(small_meta(3), 3);
    write_part(file->temporary(), 1, {});
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names().size(), 3U) << "the file and two notes";
  EXPECT_EQ(store.list(), std::vector<int64_t>{});
  store.prepare();
  EXPECT_EQ(names(), std::vector<std::string>{});
}

}  // namespace
}  // namespace mythos

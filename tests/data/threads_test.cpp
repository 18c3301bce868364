// Threads and ranks: the order of rows never depends on them.
#include "fixtures.h"
#include "parquet_writer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

namespace mythos::test {
namespace {

// `n` units of unequal size; every document has its own ids.
std::string unequal_units(const TempFolder& folder, int64_t n) {
  std::vector<Texts> units;
  int64_t id = 1;
  for (int64_t u = 0; u < n; ++u) {
    units.emplace_back();
    for (int64_t d = 0; d < 3 + (u * 5) % 7; ++d) {
      const int64_t length = 1 + (u + 3 * d) % 6;
      units.back().push_back(counting(id, length));
      id += length;
    }
  }
  const auto path = folder / "units.parquet";
  write_parquet(path, units);
  return path;
}

// An encoder that takes its time, differently for every call.
Encoder uneven_encoder(std::atomic<int>& calls) {
  auto encoder = number_encoder();
  encoder.encode = [&calls, plain = encoder.encode](std::string_view text, std::vector<int32_t>& out) {
    std::this_thread::sleep_for(std::chrono::microseconds((calls++ * 7919) % 200));
    plain(text, out);
  };
  return encoder;
}

TEST(Threads, the_order_depends_on_neither_workers_nor_prefetch) {
  const TempFolder folder;
  const auto source = unequal_units(folder, 19);
  for (const int64_t epochs : {0, 2}) {
    auto options = options_for(source, 3, 4, epochs);
    const auto expected = all_rows(options, 150);
    for (const int workers : {1, 2, 5}) {
      for (const int64_t prefetch : {0, 1, 2, 64}) {
        options.workers = workers;
        options.prefetch = prefetch;
        std::atomic<int> calls = 0;
        RowLoader loader(options, uneven_encoder(calls));
        EXPECT_EQ(take(loader, 3, 150), expected) << workers << " workers, prefetch " << prefetch;
        EXPECT_GE(loader.seconds_waited(), 0);
      }
    }
  }
}

TEST(Threads, what_fails_in_a_thread_surfaces_at_its_row) {
  const TempFolder folder;
  auto options = options_for(unequal_units(folder, 4), 3, 2, 0);
  const auto expected = all_rows(options, 40);
  const auto corpus = std::make_shared<const Corpus>(options);
  const int32_t bad_id = expected[17][2];
  auto encoder = number_encoder();
  encoder.encode = [plain = encoder.encode, bad_id](std::string_view text, std::vector<int32_t>& out) {
    plain(text, out);
    if (std::ranges::find(out, bad_id) != out.end()) throw std::runtime_error("broken tokenizer");
  };
  for (const int64_t prefetch : {0, 1, 8}) {
    options.prefetch = prefetch;
    options.workers = 2;
    RowLoader loader(corpus, options, encoder);
    Row row(4);
    size_t n = 0;
    const auto read = [&] {
      while (loader.next(row)) {
        ASSERT_EQ(row, expected[n++]);
      }
    };
    EXPECT_THROW(read(), std::runtime_error);
    // The document with that id may begin in an earlier row of its lane.
    EXPECT_LE(n, 17U);
    EXPECT_GE(n, 10U);
    const Json position = loader.position();
    EXPECT_EQ(position["rows"], n);
    EXPECT_THROW(loader.next(row), std::runtime_error);  // and stays
    RowLoader repaired(corpus, options, number_encoder(), &position);
    ASSERT_TRUE(repaired.next(row));
    EXPECT_EQ(row, expected[n]);
  }
}

TEST(Threads, ending_in_the_middle_joins) {
  const TempFolder folder;
  auto options = options_for(unequal_units(folder, 8), 3, 4, 0);
  options.workers = 3;
  options.prefetch = 1000;
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> calls = 0;
    RowLoader loader(options, uneven_encoder(calls));
    take(loader, 3, i);
  }
}

TEST(Threads, an_ended_stream_stays_ended) {
  const TempFolder folder;
  auto options = options_for(unequal_units(folder, 5), 3, 2);
  for (const int64_t prefetch : {0, 3}) {
    options.prefetch = prefetch;
    RowLoader loader(options, number_encoder());
    const auto n = std::ssize(take(loader, 3));
    Row row(4);
    EXPECT_FALSE(loader.next(row));
    EXPECT_FALSE(loader.next(row));
    EXPECT_EQ(loader.rows(), n);
  }
}

// D7: the ranks' rows are the one global sequence, dealt out.
TEST(Ranks, D7_shards_are_disjoint_and_complete) {
  const TempFolder folder;
  const auto source = unequal_units(folder, 37);
  for (const bool shuffle : {false, true}) {
    for (const int64_t epochs : {0, 1}) {
      for (const int64_t world : {1, 2, 3, 16}) {
        auto options = options_for(source, 2, 16, epochs);
        options.shuffle = shuffle;
        options.seed = 5;
        const auto whole = all_rows(options, 192);
        const auto per_rank = static_cast<size_t>(std::ssize(whole) / world);
        options.world = world;
        for (options.rank = 0; options.rank < world; ++options.rank) {
          const auto rows = all_rows(options, 192 / world);
          ASSERT_EQ(rows.size(), per_rank);
          for (size_t i = 0; i < rows.size(); ++i) {
            ASSERT_EQ(rows[i], whole[i * static_cast<size_t>(world) + static_cast<size_t>(options.rank)]);
          }
        }
      }
    }
  }
}

// Where ranks divide lanes, nobody reads another's documents.
TEST(Ranks, no_document_is_encoded_by_two_ranks) {
  const TempFolder folder;
  const auto source = unequal_units(folder, 64);
  std::multiset<std::string> encoded;
  for (int64_t rank = 0; rank < 4; ++rank) {
    auto options = options_for(source, 2, 8, 0);
    options.world = 4;
    options.rank = rank;
    auto encoder = number_encoder();
    bool counts = false;  // the constructor looks at the first row of the source
    encoder.encode = [&, plain = encoder.encode](std::string_view text, std::vector<int32_t>& out) {
      if (counts) encoded.emplace(text);
      plain(text, out);
    };
    RowLoader loader(options, encoder);
    counts = true;
    take(loader, 2, 20);
  }
  EXPECT_EQ(std::set<std::string>(encoded.begin(), encoded.end()).size(), encoded.size());
  EXPECT_GT(encoded.size(), 40U);
}

// D8: ranks with unequal amounts end at the same row.
TEST(Ranks, D8_all_ranks_end_together) {
  const TempFolder folder;
  std::vector<Texts> units(2);
  for (int64_t i = 0; i < 10; ++i) units[0].push_back(counting(100 + 2 * i, 2));
  for (int64_t i = 0; i < 7; ++i) units[1].push_back(counting(500 + 2 * i, 2));
  write_parquet(folder / "a.parquet", units);
  auto options = options_for(folder / "a.parquet", 1, 2);
  options.world = 2;
  options.prefetch = 2;
  std::vector<size_t> counts;
  for (options.rank = 0; options.rank < 2; ++options.rank) counts.push_back(all_rows(options).size());
  EXPECT_EQ(counts, (std::vector<size_t>{8, 8}));  // of 17

  options.world = 3;
  options.rank = 0;
  const auto few_units = error_of([&] { RowLoader(options, number_encoder()); }, ExitCode::usage);
  EXPECT_CONTAINS(few_units, "3 ranks cannot share 2 lanes");
  EXPECT_CONTAINS(few_units, "at most 2 ranks");
  const TempFolder other;
  auto few_lanes = options_for(unequal_units(other, 20), 1, 4);
  few_lanes.world = 6;
  EXPECT_CONTAINS(error_of([&] { RowLoader(few_lanes, number_encoder()); }, ExitCode::usage), "data.lanes to 6");
}

// A checkpoint of any number of ranks resumes on any other.
TEST(Ranks, positions_merge_and_resume_on_other_numbers_of_ranks) {
  const TempFolder folder;
  const auto source = unequal_units(folder, 37);
  auto options = options_for(source, 2, 12, 0);
  const auto whole = all_rows(options, 240);
  for (const int64_t before : {1, 2, 3, 4, 5}) {
    std::vector<Json> saved;
    options.world = before;
    const int64_t done = 60 / before * before;
    for (options.rank = 0; options.rank < before; ++options.rank) {
      RowLoader loader(options, number_encoder());
      take(loader, 2, done / before);
      saved.push_back(loader.position());
    }
    const Json merged = merge_positions(saved);
    EXPECT_EQ(merged["rows"], done);
    for (const int64_t after : {1, 2, 6, 7}) {
      options.world = after;
      for (options.rank = 0; options.rank < after; ++options.rank) {
        RowLoader loader(options, number_encoder(), &merged);
        const auto rows = take(loader, 2, 10);
        ASSERT_EQ(rows.size(), 10U);
        for (size_t i = 0; i < rows.size(); ++i) {
          ASSERT_EQ(
              rows[i],
              whole[static_cast<size_t>(done) + i * static_cast<size_t>(after) + static_cast<size_t>(options.rank)]);
        }
      }
    }
    if (before == 2) {
      // One rank's position alone lacks lanes.
      options.world = 1;
      options.rank = 0;
      EXPECT_CONTAINS(error_of([&] { RowLoader(options, number_encoder(), saved.data()); }), "merge");
    }
  }
  EXPECT_CONTAINS(error_of([] { merge_positions({}); }), "no data positions");
}

}  // namespace
}  // namespace mythos::test

// Several sources mixed by weight, and documents in another order.
#include "base/random.h"
#include "data/lane.h"
#include "data/shuffled.h"
#include "fixtures.h"
#include "parquet_writer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace mythos::test {
namespace {

// Units of documents of `n` equal ids.
void write_source(const std::string& path, int64_t units, int64_t documents, int64_t first) {
  std::vector<Texts> groups;
  for (int64_t u = 0; u < units; ++u) {
    Texts& texts = groups.emplace_back();
    for (int64_t d = 0; d < documents; ++d) {
      const auto id = std::to_string(first + documents * u + d);
      texts.push_back(id + " " + id + " " + id);
    }
  }
  write_parquet(path, groups);
}

size_t source_of(const Row& row) { return static_cast<size_t>(row[0] / 100'000); }

TEST(Mix, shares_are_kept_in_every_stretch) {
  const std::vector<double> weights{0.5, 0.3, 0.2};
  const std::vector<bool> open(3, true);
  for (const uint64_t begin : {uint64_t{0}, uint64_t{12'345}, uint64_t{1} << 40}) {
    for (const int64_t n : {100, 1000}) {
      std::vector<int64_t> counts(3, 0);
      for (int64_t i = 0; i < n; ++i) ++counts[source_of_row(begin + static_cast<uint64_t>(i), weights, open)];
      for (size_t s = 0; s < 3; ++s) {
        EXPECT_NEAR(static_cast<double>(counts[s]), weights[s] * static_cast<double>(n), 6.0) << n;
      }
    }
  }
  // A closed source gives nothing, and the others its share.
  std::vector<int64_t> counts(3, 0);
  for (uint64_t i = 0; i < 1000; ++i) ++counts[source_of_row(i, weights, {true, false, true})];
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(static_cast<double>(counts[0]), 714, 10);
}

TEST(Mix, rows_come_by_weight_and_do_not_depend_on_workers) {
  const TempFolder folder;
  write_source(folder / "a.parquet", 9, 50, 0);
  write_source(folder / "b.parquet", 2, 30, 100'000);
  write_source(folder / "c.parquet", 40, 10, 200'000);
  auto options = options_for("", 2, 4, 0);
  options.sources = {folder / "a.parquet", folder / "b.parquet", folder / "c.parquet"};
  options.weights = {2, 1, 1};
  const auto rows = all_rows(options, 400);
  std::vector<int64_t> counts(3, 0);
  for (const Row& row : rows) ++counts[source_of(row)];
  EXPECT_NEAR(static_cast<double>(counts[0]), 200, 4);
  EXPECT_NEAR(static_cast<double>(counts[1]), 100, 4);
  EXPECT_NEAR(static_cast<double>(counts[2]), 100, 4);
  // Each source by itself is read in its lanes' order, nothing twice in an epoch.
  std::set<int32_t> seen;
  for (const Row& row : rows) {
    if (source_of(row) == 2) {
      EXPECT_TRUE(seen.insert(row[0]).second);
    }
  }
  for (const int workers : {1, 3}) {
    auto threads = options;
    threads.prefetch = 3;
    threads.workers = workers;
    EXPECT_EQ(all_rows(threads, 400), rows);
  }
}

TEST(Mix, every_document_comes_once_where_epochs_end) {
  const TempFolder folder;
  write_source(folder / "a.parquet", 8, 20, 0);
  write_source(folder / "b.parquet", 3, 5, 100'000);
  auto options = options_for("", 2, 3, 1);
  options.sources = {folder / "a.parquet", folder / "b.parquet"};
  options.weights = {1, 3};
  std::map<int32_t, int> seen;
  for (const Row& row : all_rows(options)) ++seen[row[0]];
  EXPECT_EQ(seen.size(), 8U * 20 + 3 * 5);
  for (const auto& [id, n] : seen) EXPECT_EQ(n, 1) << id;
}

// Property: any number of ranks before and after a stop at any row, mixed, shuffled or not: the same rows.
TEST(Mix, resumes_on_any_number_of_ranks) {
  const TempFolder folder;
  write_source(folder / "a.parquet", 9, 13, 0);
  write_source(folder / "b.parquet", 5, 7, 100'000);
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    auto options = options_for("", 2, 6, 0);
    options.sources = {folder / "a.parquet", folder / "b.parquet"};
    options.shuffle = random.below(2) == 1;
    if (random.below(3) > 0) options.weights = {1.0 + static_cast<double>(random.below(3)), 1};
    const auto expected = all_rows(options, 120);
    std::vector<Row> rows;
    Json saved;
    while (std::ssize(rows) < 60) {
      const std::vector<int64_t> worlds{1, 2, 3, 6};
      options.world = worlds[random.below(worlds.size())];
      const auto steps = static_cast<int64_t>(random.below(7));
      std::vector<std::vector<Row>> by_rank;
      std::vector<Json> positions;
      for (options.rank = 0; options.rank < options.world; ++options.rank) {
        RowLoader loader(options, number_encoder(), saved.is_null() ? nullptr : &saved);
        by_rank.push_back(take(loader, 2, steps));
        positions.push_back(loader.position());
      }
      options.rank = 0;
      for (size_t i = 0; i < static_cast<size_t>(steps); ++i) {
        for (const auto& own : by_rank) rows.push_back(own[i]);
      }
      saved = Json::parse(merge_positions(positions).dump());
    }
    options.world = 1;
    RowLoader rest(options, number_encoder(), &saved);
    for (Row& row : take(rest, 2, 20)) rows.push_back(std::move(row));
    ASSERT_LE(rows.size(), expected.size());
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], expected[i]) << "row " << i << ", round " << round;
  }
}

TEST(Mix, held_out_documents_are_shared_out_by_weight) {
  const TempFolder folder;
  write_source(folder / "a.parquet", 3, 10, 0);
  write_source(folder / "b.parquet", 3, 10, 100'000);
  auto options = options_for("", 2, 2, 1);
  options.sources = {folder / "a.parquet", folder / "b.parquet"};
  options.weights = {3, 1};
  options.validation_documents = 8;
  const auto held_out = validation_documents(open_sources(options), options);
  ASSERT_EQ(held_out.size(), 8U);
  EXPECT_EQ(held_out[5], "5 5 5");
  EXPECT_EQ(held_out[6], "100000 100000 100000");
  std::set<int32_t> seen;
  for (const Row& row : all_rows(options)) seen.insert(row[0]);
  EXPECT_EQ(seen.size(), 52U);
  EXPECT_FALSE(seen.contains(5) || seen.contains(100'001));
  EXPECT_TRUE(seen.contains(6) && seen.contains(100'002));
}

TEST(Mix, wrong_weights_are_refused) {
  const TempFolder folder;
  write_source(folder / "a.parquet", 2, 2, 0);
  auto options = options_for(folder / "a.parquet", 1);
  for (const std::vector<double>& weights : {std::vector<double>{1, 2}, {0}, {-1}, {std::nan("")}, {HUGE_VAL}}) {
    options.weights = weights;
    EXPECT_CONTAINS(error_of([&] { RowLoader(options, number_encoder()); }, ExitCode::usage), "data.weights");
  }
  options.weights.clear();
  options.sources.push_back(options.sources.front());
  EXPECT_CONTAINS(error_of([&] { RowLoader(options, number_encoder()); }, ExitCode::usage), "named twice");
}

// Documents of a large unit change places inside windows, and no further.
TEST(Shuffle, documents_are_permuted_inside_windows) {
  const TempFolder folder;
  Texts texts;
  for (int i = 0; i < 2500; ++i) texts.push_back(i % 10 == 3 ? std::nullopt : std::optional(std::to_string(i + 1)));
  write_parquet(folder / "a.parquet", {texts});
  const Corpus corpus(options_for(folder / "a.parquet", 1));
  const auto order = [&](uint64_t seed, int64_t skip) {
    const auto reader = shuffled(corpus.read(0, 0), seed);
    reader->skip(skip);
    std::vector<int> ids;
    Entry entry;
    while (reader->next(entry))
      ids.push_back(entry.kind == Entry::Kind::empty ? 0 : std::stoi(std::string(entry.text)));
    return ids;
  };
  const auto whole = order(1, 0);
  ASSERT_EQ(whole.size(), 2500U);
  EXPECT_EQ(whole, order(1, 0));
  EXPECT_NE(whole, order(2, 0));
  for (size_t window = 0; window < 3; ++window) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(1000 * window);
    const auto end = window == 2 ? whole.end() : begin + 1000;
    EXPECT_FALSE(std::is_sorted(begin, end));
    const auto [low, high] =
        std::minmax_element(begin, end, [](int a, int b) { return (a == 0 ? 5000 : a) < (b == 0 ? 5000 : b); });
    EXPECT_GE(*low, static_cast<int>(1000 * window));
    static_cast<void>(high);
    EXPECT_LE(*std::max_element(begin, end), static_cast<int>(1000 * (window + 1)));
  }
  for (const int64_t skip : {1, 999, 1000, 1001, 2499, 2500}) {
    const auto rest = order(1, skip);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + skip, whole.end())) << skip;
  }
}

// The order of documents changes with the epoch, and a resumed run keeps it.
TEST(Shuffle, resumes_at_every_row_and_changes_with_the_epoch) {
  const TempFolder folder;
  for (int f = 0; f < 3; ++f) {
    write_source(folder / ("f" + std::to_string(f) + ".parquet"), 3, 5, 100 * f);
  }
  auto options = options_for(folder.string(), 2, 2, 3);
  options.shuffle = true;
  options.validation_documents = 3;
  RowLoader whole(options, number_encoder());
  std::vector<Json> positions{whole.position()};
  std::vector<Row> rows;
  for (Row row(3); whole.next(row);) {
    rows.push_back(row);
    positions.push_back(whole.position());
  }
  ASSERT_EQ(rows.size(), 3U * 42);
  std::map<int32_t, int> seen;
  for (const Row& row : rows) ++seen[row[0]];
  for (const auto& [id, n] : seen) EXPECT_EQ(n, 3) << id;
  for (size_t k = 0; k < rows.size(); ++k) {
    RowLoader resumed(options, number_encoder(), &positions[k]);
    Row row(3);
    for (size_t i = k; i < std::min(k + 5, rows.size()); ++i) {
      ASSERT_TRUE(resumed.next(row));
      ASSERT_EQ(row, rows[i]) << "stop " << k << ", row " << i;
      ASSERT_EQ(resumed.position(), positions[i + 1]);
    }
  }
}

}  // namespace
}  // namespace mythos::test

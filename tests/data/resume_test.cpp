// Stopping and going on, at every row.
#include "base/random.h"
#include "fixtures.h"
#include "parquet_writer.h"

#include <algorithm>
#include <map>
#include <set>

namespace mythos::test {
namespace {

// Documents of one id, of seq_len, of ten times that, and between; with nulls, empty ones and a whole empty unit.
std::vector<Texts> mixed_units(int64_t seq_len) {
  std::vector<Texts> units;
  int64_t id = 1;
  Random random(3);
  const auto document = [&](int64_t n) {
    id += n;
    return counting(id - n, n);
  };
  for (int u = 0; u < 7; ++u) {
    Texts& texts = units.emplace_back();
    if (u == 3) continue;
    texts.push_back(document(1));
    texts.push_back(document(seq_len));
    texts.push_back(std::nullopt);
    if (u % 3 == 1) texts.push_back(document(10 * seq_len));
    texts.push_back(document(1));
    texts.push_back(document(seq_len + 1));
    texts.push_back("");
    for (int d = 0; d < 4; ++d) texts.push_back(document(1 + static_cast<int64_t>(random.below(6))));
  }
  return units;
}

// D4: for every row k, resuming behind it gives the same rows as never stopping, and the same positions.
TEST(Resume, D4_at_every_row) {
  const TempFolder folder;
  const int64_t seq_len = 5;
  write_parquet(folder / "a.parquet", mixed_units(seq_len));
  for (const bool separator : {false, true}) {
    for (const int64_t lanes : {1, 3}) {
      for (const int64_t epochs : {0, 2}) {
        auto options = options_for(folder / "a.parquet", seq_len, lanes, epochs);
        options.document_separator = separator;
        options.validation_documents = 2;
        const auto corpus = std::make_shared<const Corpus>(options);
        RowLoader whole(corpus, options, number_encoder());
        std::vector<Json> positions{whole.position()};
        std::vector<Row> rows;
        Row row(static_cast<size_t>(seq_len) + 1);
        while ((epochs > 0 || rows.size() < 130) && whole.next(row)) {
          rows.push_back(row);
          positions.push_back(whole.position());
        }
        ASSERT_GT(rows.size(), 80U);
        for (size_t k = 0; k <= rows.size(); ++k) {
          // As a checkpoint does: through text.
          const Json saved = Json::parse(positions[k].dump());
          RowLoader resumed(corpus, options, number_encoder(), &saved);
          ASSERT_EQ(resumed.position(), positions[k]);
          for (size_t i = k; i < rows.size(); ++i) {
            ASSERT_TRUE(resumed.next(row));
            ASSERT_EQ(row, rows[i]) << "row " << i << " after a stop at " << k;
            ASSERT_EQ(resumed.position(), positions[i + 1]);
          }
          if (epochs > 0) {
            ASSERT_FALSE(resumed.next(row));
          }
        }
        EXPECT_LT(positions[40].dump().size(), 1600U);
      }
    }
  }
}

// D1: the position is that of the rows handed out, not of the rows read ahead.
TEST(Resume, D1_read_ahead_does_not_count) {
  const TempFolder folder;
  std::vector<std::string> documents;
  for (int64_t d = 0; d < 5000; ++d) documents.push_back(counting(2 * d, 2));
  auto options = options_for(folder.write("a.jsonl", jsonl(documents)), 1);
  const auto corpus = std::make_shared<const Corpus>(options);
  for (const int64_t prefetch : {0, 1, 700}) {
    options.prefetch = prefetch;
    for (const int64_t stop : {0, 1, 200, 999, 1000, 1001, 4999, 5000}) {
      Json saved;
      {
        RowLoader loader(corpus, options, number_encoder());
        ASSERT_EQ(std::ssize(take(loader, 1, stop)), stop);
        saved = loader.position();
      }
      RowLoader loader(corpus, options, number_encoder(), &saved);
      EXPECT_EQ(loader.rows(), stop);
      const auto next = take(loader, 1, 5);
      ASSERT_EQ(std::ssize(next), std::min<int64_t>(5, 5000 - stop));
      for (int64_t i = 0; i < std::ssize(next); ++i) {
        EXPECT_EQ(next[static_cast<size_t>(i)][0], 2 * (stop + i)) << "stop " << stop;
      }
    }
  }
}

// D2: the state goes on after a resume, and saving at once gives what was loaded.
TEST(Resume, D2_again_and_again) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet", mixed_units(4));
  for (const int64_t prefetch : {0, 3}) {
    auto options = options_for(folder / "a.parquet", 4, 2, 0);
    options.prefetch = prefetch;
    const auto expected = all_rows(options, 90);
    std::vector<Row> rows;
    Json saved;
    for (int leg = 0; leg < 3; ++leg) {
      RowLoader loader(options, number_encoder(), leg == 0 ? nullptr : &saved);
      if (leg > 0) {
        EXPECT_EQ(loader.position(), saved);
      }
      for (Row& row : take(loader, 4, 30)) rows.push_back(std::move(row));
      saved = loader.position();
      EXPECT_EQ(loader.rows(), 30 * (leg + 1));
    }
    EXPECT_EQ(rows, expected);
  }
}

// D3: where a resume begins holds for that epoch only.
TEST(Resume, D3_the_next_epoch_begins_at_the_begin) {
  const TempFolder folder;
  for (int64_t f = 0; f < 3; ++f) {
    write_parquet(folder / ("part" + std::to_string(f) + ".parquet"),
                  {{counting(100 * f + 10, 2), counting(100 * f + 12, 2)}, {counting(100 * f + 50, 2)}});
  }
  const auto options = options_for(folder.string(), 1, 1, 0);
  RowLoader first(options, number_encoder());
  EXPECT_EQ(take(first, 1, 5).back()[0], 112);
  const Json saved = first.position();  // at file 1, row group 1
  RowLoader loader(options, number_encoder(), &saved);
  std::vector<int32_t> begins;
  std::vector<int64_t> epochs;
  for (int i = 0; i < 22; ++i) {
    epochs.push_back(loader.epoch());
    begins.push_back(take(loader, 1, 1)[0][0]);
  }
  const std::vector<int32_t> epoch{10, 12, 50, 110, 112, 150, 210, 212, 250};
  for (size_t i = 0; i < begins.size(); ++i) EXPECT_EQ(begins[i], epoch[(i + 5) % 9]) << i;
  EXPECT_EQ(epochs.front(), 0);
  EXPECT_EQ(epochs.back(), 2);
}

// D5: nothing is read twice in an epoch, however often the run is stopped.
TEST(Resume, D5_ledger_has_every_document_once) {
  const TempFolder folder;
  int32_t documents = 0;
  for (int f = 0; f < 3; ++f) {
    std::vector<Texts> units;
    for (int u = 0; u < 5; ++u) {
      units.emplace_back();
      for (int d = 0; d <= u; ++d) units.back().push_back(counting(1000 + documents++, 1) + " 7 7");
    }
    write_parquet(folder / ("f" + std::to_string(f) + ".parquet"), units);
  }
  auto options = options_for(folder.string(), 2, 4);
  options.prefetch = 2;
  std::multiset<int32_t> ledger;
  Json saved;
  for (bool more = true; more;) {
    RowLoader loader(options, number_encoder(), saved.is_null() ? nullptr : &saved);
    const auto rows = take(loader, 2, 3);
    more = rows.size() == 3;
    for (const Row& row : rows) ledger.insert(row[0]);
    saved = loader.position();
  }
  EXPECT_EQ(std::ssize(ledger), documents);
  EXPECT_EQ(std::set<int32_t>(ledger.begin(), ledger.end()).size(), ledger.size());
  EXPECT_EQ(saved["rows"], documents);
}

TEST(Resume, other_data_or_settings_are_refused) {
  const TempFolder folder;
  const auto source = folder.write("a.jsonl", jsonl({"1 2", "3 4", "5 6"}));
  const auto options = options_for(source, 1, 1, 0);
  RowLoader loader(options, number_encoder());
  take(loader, 1, 2);
  const Json saved = loader.position();
  const auto refused = [&](auto&& change) {
    auto other = options;
    auto encoder = number_encoder();
    change(other, encoder);
    return error_of([&] { RowLoader(other, encoder, &saved); }, ExitCode::failed);
  };
  EXPECT_CONTAINS(refused([](DataOptions& o, Encoder&) { o.seq_len = 2; }), "seq_len was 1 and is 2");
  EXPECT_CONTAINS(refused([](DataOptions& o, Encoder&) { o.lanes = 2; }), "lanes was 1 and is 2");
  EXPECT_CONTAINS(refused([](DataOptions& o, Encoder&) { o.document_separator = true; }),
                  "document_separator was false and is true");
  EXPECT_CONTAINS(refused([](DataOptions& o, Encoder&) { o.validation_documents = 1; }),
                  "held_out_documents was 0 and is 1");
  EXPECT_CONTAINS(refused([](DataOptions& o, Encoder&) { o.shuffle = true; }), "shuffle was false and is true");
  EXPECT_CONTAINS(refused([](DataOptions&, Encoder& e) { e.fingerprint = "other"; }),
                  "tokenizer was numbers and is other");
  const auto two = refused([](DataOptions& o, Encoder& e) {
    o.seq_len = 3;
    e.fingerprint = "other";
  });
  EXPECT_CONTAINS(two, "seq_len was 1 and is 3");
  EXPECT_CONTAINS(two, "tokenizer was numbers");
  folder.write("a.jsonl", jsonl({"1 2", "3 4", "5 6", "7 8"}));
  EXPECT_CONTAINS(refused([](DataOptions&, Encoder&) {}), "sources was");

  // What does not change the rows may change: epochs, threads, the place of the files.
  folder.write("a.jsonl", jsonl({"1 2", "3 4", "5 6"}));
  auto moved = options;
  moved.sources = {folder.write("elsewhere/a.jsonl", jsonl({"1 2", "3 4", "5 6"}))};
  moved.epochs = 2;
  moved.prefetch = 4;
  moved.workers = 2;
  RowLoader resumed(moved, number_encoder(), &saved);
  EXPECT_EQ(take(resumed, 1, 1), (std::vector<Row>{{5, 6}}));
}

TEST(Resume, a_changed_file_of_the_same_size_is_noticed) {
  const TempFolder folder;
  const auto options = options_for(folder.write("a.txt", "1 2 3 4 5 6 7"), 2, 1, 0);
  RowLoader loader(options, number_encoder());
  take(loader, 2, 2);
  const Json saved = loader.position();
  folder.write("a.txt", "10000000 2000");
  EXPECT_CONTAINS(error_of([&] { RowLoader(options, number_encoder(), &saved); }), "other content");
}

// Where only the middle of a large file changed, the document that was in work tells.
TEST(Resume, a_change_in_the_middle_is_noticed_at_the_document) {
  const TempFolder folder;
  const std::string blanks(20'000, ' ');
  const auto options = options_for(folder.write("a.txt", blanks + "1 2 3 4 5 6 7" + blanks), 2, 1, 0);
  RowLoader loader(options, number_encoder());
  take(loader, 2, 2);
  const Json saved = loader.position();
  folder.write("a.txt", blanks + "10000000 2000" + blanks);
  RowLoader resumed(options, number_encoder(), &saved);
  Row row(3);
  EXPECT_CONTAINS(error_of([&] { resumed.next(row); }), "not what it was");
}

// A saved position is as hostile as any file.
TEST(Resume, damaged_positions_are_errors) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet", mixed_units(3));
  const auto options = options_for(folder / "a.parquet", 3, 3, 0);
  const auto corpus = std::make_shared<const Corpus>(options);
  RowLoader loader(corpus, options, number_encoder());
  take(loader, 3, 10);
  const Json good = loader.position();
  const auto fails = [&](const Json& saved) {
    return error_of([&] { RowLoader(corpus, options, number_encoder(), &saved); }, ExitCode::failed);
  };
  EXPECT_CONTAINS(fails(Json()), "damaged");
  EXPECT_CONTAINS(fails(Json::array()), "damaged");
  for (const char* key : {"format", "of", "rows", "turn", "lane_positions", "units", "held_out_ends"}) {
    Json bad = good;
    bad.erase(key);
    EXPECT_CONTAINS(fails(bad), "damaged");
    for (const Json& value : {Json(-1), Json("x"), Json(nullptr), Json(1.5), Json(UINT64_MAX)}) {
      bad[key] = value;
      EXPECT_CONTAINS(fails(bad), "saved data position");
    }
  }
  for (const char* key : {"slot", "document", "token", "entries"}) {
    Json bad = good;
    bad["lane_positions"][1]["sources"][0].erase(key);
    EXPECT_CONTAINS(fails(bad), "damaged");
    bad["lane_positions"][1]["sources"][0][key] = -5;
    EXPECT_CONTAINS(fails(bad), "damaged");
  }
  for (const char* key : {"epoch", "file", "file_slot"}) {
    for (const Json& value : {Json(-1), Json("x"), Json(INT64_MAX), Json(nullptr)}) {
      Json bad = good;
      for (Json& lane : bad["lane_positions"]) lane["sources"][0]["at"][key] = value;
      if (key == std::string("file_slot") && value == INT64_MAX) continue;  // looked for from the begin
      EXPECT_CONTAINS(fails(bad), "damaged");
    }
  }
  Json bad = good;
  bad["lane_positions"][0]["sources"][0]["slot"] = 1;
  EXPECT_CONTAINS(fails(bad), "damaged");
  bad = good;
  bad["lane_positions"].erase(2);
  EXPECT_CONTAINS(fails(bad), "damaged");
  bad = good;
  bad["lane_positions"][0] = nullptr;
  EXPECT_CONTAINS(fails(bad), "merge");
  // A place that is not there: an error at the row, not a wrong row.
  bad = good;
  bad["lane_positions"][static_cast<size_t>(good["turn"].get<int64_t>())]["sources"][0]["token"] = 1'000'000;
  RowLoader lost(corpus, options, number_encoder(), &bad);
  Row row(4);
  EXPECT_CONTAINS(error_of([&] { lost.next(row); }), "not what it was");
}

}  // namespace
}  // namespace mythos::test

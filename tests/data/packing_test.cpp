// What is in the rows and in which order.
#include "data/lane.h"
#include "fixtures.h"
#include "parquet_writer.h"

#include <algorithm>
#include <set>

namespace mythos::test {
namespace {

// D14: inputs and targets at the joins of documents and rows.
TEST(Packing, D14_documents_are_joined_and_cut) {
  const TempFolder folder;
  const auto source = folder.write("a.jsonl", jsonl({"1 2", "3", "4 5 6"}));
  EXPECT_EQ(all_rows(options_for(source, 2)), (std::vector<Row>{{1, 2, 3}, {4, 5, 6}}));
  EXPECT_EQ(all_rows(options_for(source, 1)), (std::vector<Row>{{1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(all_rows(options_for(source, 3)), (std::vector<Row>{{1, 2, 3, 4}}));

  auto separated = options_for(source, 2);
  separated.document_separator = true;
  EXPECT_EQ(all_rows(separated), (std::vector<Row>{{1, 2, 0}, {3, 0, 4}, {5, 6, 0}}));
}

TEST(Packing, what_is_left_over_goes_into_the_next_epoch) {
  const TempFolder folder;
  auto options = options_for(folder.write("a.jsonl", jsonl({"1 2", "3", "4 5"})), 2, 1, 3);
  EXPECT_EQ(all_rows(options), (std::vector<Row>{{1, 2, 3}, {4, 5, 1}, {2, 3, 4}, {5, 1, 2}, {3, 4, 5}}));
  options.epochs = 2;
  EXPECT_EQ(all_rows(options), (std::vector<Row>{{1, 2, 3}, {4, 5, 1}, {2, 3, 4}}));
  options.epochs = 0;
  EXPECT_EQ(all_rows(options, 6).back(), (Row{1, 2, 3}));
}

// Five units of two documents: units 0 and 3 are lane 0, 1 and 4 lane 1, 2 lane 2.
TEST(Packing, lanes_take_turns_and_ended_lanes_are_passed_over) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet",
                {{"1 2", "3 4"}, {"11 12", "13 14"}, {"21 22"}, {"31 32", "33 34"}, {"41 42", "43 44", "45 46"}});
  const auto rows = all_rows(options_for(folder / "a.parquet", 1, 3));
  EXPECT_EQ(rows, (std::vector<Row>{
                      {1, 2}, {11, 12}, {21, 22}, {3, 4}, {13, 14}, {31, 32}, {41, 42}, {33, 34}, {43, 44}, {45, 46}}));
}

TEST(Packing, more_lanes_than_units_leave_the_others_out_of_the_turn) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet", {{"1 2", "3 4"}, {"11 12", "13 14"}});
  const auto rows = all_rows(options_for(folder / "a.parquet", 1, 16));
  EXPECT_EQ(rows, (std::vector<Row>{{1, 2}, {11, 12}, {3, 4}, {13, 14}}));
  RowLoader loader(options_for(folder / "a.parquet", 1, 16), number_encoder());
  EXPECT_EQ(loader.lanes(), 2);
}

// Without end, row i is from lane i mod lanes whatever the lanes hold; and unequal units come up equally often.
TEST(Packing, every_unit_is_read_equally_often_over_the_epochs) {
  const TempFolder folder;
  const int64_t n_units = 4;
  std::vector<Texts> units;
  for (int64_t u = 0; u < n_units; ++u) {
    units.emplace_back();
    for (int64_t d = 0; d < (u == 3 ? 1 : 10); ++d) units.back().push_back(counting(1000 * (u + 1), 4));
  }
  write_parquet(folder / "a.parquet", units);
  for (const bool shuffle : {false, true}) {
    auto options = options_for(folder / "a.parquet", 3, 4, 0);
    options.shuffle = shuffle;
    std::vector<int64_t> count(static_cast<size_t>(n_units), 0);
    const int64_t epochs = 200;
    for (const Row& row : all_rows(options, epochs * 31)) ++count[static_cast<size_t>(row[0] / 1000 - 1)];
    for (int64_t u = 0; u < n_units; ++u) {
      const int64_t once = u == 3 ? 1 : 10;
      EXPECT_NEAR(static_cast<double>(count[static_cast<size_t>(u)]) / static_cast<double>(once * epochs), 1.0, 0.03)
          << u;
    }
  }
}

TEST(Packing, an_epoch_has_every_unit_once_and_lanes_see_all_of_them) {
  for (const std::vector<int>& files : {std::vector{1}, {2}, {1, 0, 2}, {5}, {7, 9}, {16, 1}, {20, 20, 8}}) {
    const TempFolder folder;
    int64_t units = 0;
    for (size_t f = 0; f < files.size(); ++f) {
      write_parquet(folder / ("f" + std::to_string(f) + ".parquet"),
                    std::vector<Texts>(static_cast<size_t>(files[f]), Texts{"1 2"}));
      units += files[f];
    }
    const Corpus corpus(options_for(folder.string(), 1));
    const auto all = units_of(corpus);
    ASSERT_EQ(std::ssize(all), units);
    for (const int64_t lanes : {1, 2, 3, 6, 16}) {
      for (const bool shuffle : {false, true}) {
        const UnitSequence sequence(corpus, lanes, shuffle, 7);
        EXPECT_EQ(sequence.lanes(), std::min(lanes, units));
        std::set<std::pair<size_t, int64_t>> seen;
        std::vector<std::set<std::pair<size_t, int64_t>>> by_lane(static_cast<size_t>(sequence.lanes()));
        // As many epochs as there are lanes.
        for (int64_t slot = 0; sequence.at(slot).epoch < sequence.lanes(); ++slot) {
          const auto unit = sequence.at(slot);
          EXPECT_EQ(sequence.epoch_of(slot), unit.epoch);
          if (unit.empty) continue;
          const std::pair<size_t, int64_t> place(unit.file, unit.part);
          if (unit.epoch == 0) {
            EXPECT_TRUE(seen.insert(place).second);
            if (!shuffle) {
              EXPECT_EQ(place, all[static_cast<size_t>(slot)]);
            }
          }
          by_lane[static_cast<size_t>(slot % sequence.lanes())].insert(place);
        }
        EXPECT_EQ(sequence.units(), units);
        EXPECT_EQ(std::ssize(seen), units);
        for (const auto& lane : by_lane) {
          if (!shuffle) {
            EXPECT_EQ(std::ssize(lane), units);
          }
        }
      }
    }
  }
}

TEST(Packing, shuffle_depends_on_the_seed_and_keeps_the_documents) {
  const TempFolder folder;
  std::vector<Texts> units;
  for (int64_t u = 0; u < 20; ++u) units.push_back({counting(10 * u + 1, 2)});
  write_parquet(folder / "a.parquet", units);
  auto options = options_for(folder / "a.parquet", 1, 2);
  auto plain = all_rows(options);
  options.shuffle = true;
  auto one = all_rows(options);
  EXPECT_EQ(one, all_rows(options));
  options.seed = 1;
  auto other = all_rows(options);
  EXPECT_NE(one, plain);
  EXPECT_NE(one, other);
  std::ranges::sort(plain);
  std::ranges::sort(one);
  std::ranges::sort(other);
  EXPECT_EQ(one, plain);
  EXPECT_EQ(other, plain);
}

// D11: nulls, empty texts, row groups of nulls and of nothing.
TEST(Packing, D11_null_and_empty_documents_give_no_ids_but_count) {
  const TempFolder folder;
  write_parquet(folder / "a.parquet", {{}, {"1 2", std::nullopt, "", "3"}, {std::nullopt, std::nullopt}, {"4 5"}});
  auto options = options_for(folder / "a.parquet", 1);
  options.document_separator = true;
  RowLoader loader(options, number_encoder());
  EXPECT_EQ(take(loader, 1, 2), (std::vector<Row>{{1, 2}, {0, 3}}));
  EXPECT_EQ(loader.totals().entries, 4);
  EXPECT_EQ(loader.totals().documents, 2);
  EXPECT_EQ(take(loader, 1), (std::vector<Row>{{0, 4}, {5, 0}}));
  EXPECT_EQ(loader.totals().entries, 7);
  EXPECT_EQ(loader.totals().documents, 3);
  EXPECT_EQ(loader.totals().bytes, 7);
  DocumentReader reader(std::make_shared<const Corpus>(options), OnBadData::stop);
  std::string text;
  while (reader.next(text)) continue;
  EXPECT_EQ(reader.entries(), 7);
  EXPECT_EQ(reader.documents(), 3);
}

TEST(Packing, held_out_documents_are_never_in_a_row) {
  const TempFolder folder;
  // The third document with text is the last held out: in the middle of unit 1.
  write_parquet(folder / "a.parquet", {{"1 1", std::nullopt, "2 2"}, {"", "3 3", "4 4"}, {"5 5", "6 6"}});
  auto options = options_for(folder / "a.parquet", 1, 2, 2);
  options.validation_documents = 3;
  std::vector<Row> rows = all_rows(options);
  std::ranges::sort(rows);
  EXPECT_EQ(rows, (std::vector<Row>{{4, 4}, {4, 4}, {5, 5}, {5, 5}, {6, 6}, {6, 6}}));
  const Sources sources = open_sources(options);
  EXPECT_EQ(validation_documents(sources, options), (std::vector<std::string>{"1 1", "2 2", "3 3"}));
  EXPECT_EQ(all_documents(options, false), (std::vector<std::string>{"4 4", "5 5", "6 6"}));
  EXPECT_EQ(std::ssize(all_documents(options, true)), 6);

  for (int64_t n = 0; n <= 5; ++n) {
    options.validation_documents = n;
    EXPECT_EQ(std::ssize(all_rows(options)), 2 * (6 - n));
    EXPECT_EQ(std::ssize(validation_documents(open_sources(options), options)), n);
  }
  options.validation_documents = 6;
  EXPECT_CONTAINS(error_of([&] { all_rows(options); }), "less than one row");
  options.validation_documents = 7;
  EXPECT_CONTAINS(error_of([&] { all_rows(options); }, ExitCode::usage), "7 cannot be held out");
}

TEST(Packing, a_separate_validation_source_holds_nothing_out) {
  const TempFolder folder;
  auto options = options_for(folder.write("a.jsonl", jsonl({"1 2", "3 4"})), 1);
  options.validation_sources = {folder.write("v.txt", "7 8 9\n\n10\n\n11")};
  EXPECT_EQ(std::ssize(all_rows(options)), 2);
  const Sources sources = open_sources(options);
  EXPECT_EQ(validation_documents(sources, options), (std::vector<std::string>{"7 8 9", "10", "11"}));
  options.validation_documents = 2;
  const auto documents = validation_documents(sources, options);
  EXPECT_EQ(documents, (std::vector<std::string>{"7 8 9", "10"}));
  EXPECT_EQ(std::ssize(all_rows(options)), 2);
  EXPECT_EQ(pack(documents, number_encoder(), 2, false), (std::vector<Row>{{7, 8, 9}}));
  EXPECT_EQ(pack(documents, number_encoder(), 2, true), (std::vector<Row>{{7, 8, 9}, {0, 10, 0}}));
  EXPECT_EQ(pack(documents, number_encoder(), 3, true), (std::vector<Row>{{7, 8, 9, 0}, {10, 0}}));
  options.validation_documents = 4;
  EXPECT_CONTAINS(error_of([&] { validation_documents(sources, options); }), "fewer than the 4");
}

TEST(Packing, too_little_text_is_refused_with_its_size) {
  const TempFolder folder;
  const auto source = folder.write("a.jsonl", jsonl({"1 2 3", "4 5"}));
  auto options = options_for(source, 5);
  const std::string line = error_of([&] { RowLoader(options, number_encoder()); }, ExitCode::usage);
  EXPECT_CONTAINS(line, "5 tokens");
  EXPECT_CONTAINS(line, "one row of 6");
  EXPECT_CONTAINS(line, "seq_len to 4");
  options.epochs = 0;  // reading it again and again does not make it longer
  EXPECT_CONTAINS(error_of([&] { RowLoader(options, number_encoder()); }), "one row of 6");
  options.seq_len = 4;
  EXPECT_EQ(std::ssize(all_rows(options, 3)), 3);

  // Enough text, but no lane fills a row.
  write_parquet(folder / "a.parquet", {{"1 2"}, {"3 4"}, {"5 6"}});
  EXPECT_CONTAINS(error_of([&] { all_rows(options_for(folder / "a.parquet", 3, 3)); }), "spread over 3 lanes");
}

TEST(Packing, a_source_without_text_is_refused) {
  const TempFolder folder;
  EXPECT_CONTAINS(error_of([&] { all_rows(options_for(folder.write("e.txt", "\n \n"), 3)); }, ExitCode::usage),
                  "no documents");
  write_parquet(folder / "n.parquet", {{std::nullopt, ""}, {}});
  EXPECT_CONTAINS(error_of([&] { all_rows(options_for(folder / "n.parquet", 3, 2, 0)); }), "0 tokens");
}

TEST(Packing, the_vocabulary_must_hold_the_separator_and_all_ids) {
  const TempFolder folder;
  auto options = options_for(folder.write("a.jsonl", jsonl({"1 2", "3 4"})), 1);
  auto encoder = number_encoder();
  encoder.end_of_text = 199'999;
  options.document_separator = true;
  options.vocab_size = 199'998;
  const std::string line = error_of([&] { RowLoader(options, encoder); }, ExitCode::usage);
  EXPECT_CONTAINS(line, "199999");
  EXPECT_CONTAINS(line, "vocab_size to 200000");
  options.vocab_size = 200'000;
  EXPECT_NO_THROW(RowLoader(options, encoder));
  encoder.end_of_text.reset();
  EXPECT_CONTAINS(error_of([&] { RowLoader(options, encoder); }), "end-of-text");
  options.document_separator = false;
  EXPECT_NO_THROW(RowLoader(options, encoder));
  options.vocab_size = 4;
  EXPECT_CONTAINS(error_of([&] { all_rows(options); }), "outside the model's vocabulary of 4");
}

TEST(Packing, options_out_of_range_are_named) {
  const TempFolder folder;
  const auto good = options_for(folder.write("a.jsonl", jsonl({"1 2", "3 4"})), 1);
  const auto refused = [&](auto&& change) {
    auto options = good;
    change(options);
    return error_of([&] { RowLoader(options, number_encoder()); }, ExitCode::usage);
  };
  EXPECT_CONTAINS(refused([](DataOptions& o) { o.lanes = 0; }), "data.lanes is 0");
  EXPECT_CONTAINS(refused([](DataOptions& o) { o.seq_len = 0; }), "seq_len is 0");
  EXPECT_CONTAINS(refused([](DataOptions& o) { o.epochs = -1; }), "epochs is -1");
  EXPECT_CONTAINS(refused([](DataOptions& o) { o.prefetch = -1; }), "prefetch");
  EXPECT_CONTAINS(refused([](DataOptions& o) { o.workers = 0; }), "workers");
  EXPECT_CONTAINS(refused([](DataOptions& o) { o.rank = 1; }), "rank is 1");
  EXPECT_CONTAINS(error_of([] { on_bad_data_from("skpi"); }), "did you mean 'skip'");
}

}  // namespace
}  // namespace mythos::test

// Which files a source is.
#include "fixtures.h"

namespace mythos::test {
namespace {

std::vector<std::string> names(const Corpus& corpus) {
  std::vector<std::string> list;
  for (const SourceFile& file : corpus.files()) list.push_back(file.name);
  return list;
}

TEST(Source, a_folder_is_its_files_at_any_depth_by_path) {
  const TempFolder folder;
  folder.write("d/b.txt", "b");
  folder.write("d/a/z.jsonl", jsonl({"a-z"}));
  folder.write("d/B.TXT", "B");
  folder.write("d/a.txt", "a");
  folder.write("d/README.md", "not data");
  folder.write("d/.hidden.txt", "hidden");
  folder.write("d/.cache/x.txt", "hidden");
  const auto options = options_for(folder / "d", 1);
  EXPECT_EQ(names(Corpus(options)), (std::vector<std::string>{"B.TXT", "a.txt", "a/z.jsonl", "b.txt"}));
  EXPECT_EQ(all_documents(options), (std::vector<std::string>{"B", "a", "a-z", "b"}));
}

TEST(Source, a_glob_is_its_matches_by_path) {
  const TempFolder folder;
  folder.write("d/part-10.txt", "ten");
  folder.write("d/part-2.txt", "two");
  folder.write("d/other.txt", "other");
  folder.write("d/part-3.csv", "no data");
  folder.write("d/part-sub/x.txt", "sub");
  const auto options = options_for(folder / "d/part-*", 1);
  EXPECT_EQ(names(Corpus(options)), (std::vector<std::string>{"part-10.txt", "part-2.txt", "part-sub/x.txt"}));
  EXPECT_EQ(all_documents(options_for(folder / "d/part-?.txt", 1)), std::vector<std::string>{"two"});
  EXPECT_EQ(all_documents(options_for(folder / "*/o[st]her.txt", 1)), std::vector<std::string>{"other"});
  // A name with such characters is taken as it is.
  folder.write("d/odd[1].txt", "odd");
  EXPECT_EQ(all_documents(options_for(folder / "d/odd[1].txt", 1)), std::vector<std::string>{"odd"});
}

TEST(Source, what_is_no_source_is_a_usage_error) {
  const TempFolder folder;
  folder.write("data.txt", "a");
  folder.write("table.csv", "a");
  fs::create_directories(folder / "empty");
  const auto refused = [](const std::string& source) {
    return error_of([&] { Corpus corpus(options_for(source, 1)); }, ExitCode::usage);
  };
  EXPECT_CONTAINS(refused(folder / "dat.txt"), "did you mean 'data.txt'");
  EXPECT_CONTAINS(refused(folder / "nowhere/at/all"), "no file or folder");
  EXPECT_CONTAINS(refused(folder / "*.parquet"), "no file matches");
  EXPECT_CONTAINS(refused(folder / "table.csv"), ".parquet");
  EXPECT_CONTAINS(refused(folder / "*.csv"), "table.csv, which is not a data file");
  EXPECT_CONTAINS(refused(folder / "empty"), "holds no data files");
  EXPECT_CONTAINS(refused(""), "no data source");
  EXPECT_CONTAINS(refused("ftp://host/x.parquet"), "ftp:// is not a known kind of address");
  EXPECT_CONTAINS(refused("/dev/null"), "neither a file nor a folder");
}

TEST(Source, a_changed_file_is_noticed) {
  const TempFolder folder;
  const auto a = folder.write("a.txt", "1 2\n\n3 4");
  folder.write("b.txt", "5 6");
  const auto corpus = std::make_shared<const Corpus>(options_for(folder.string(), 1));
  folder.write("a.txt", "1 2\n\n3 4 5");
  DocumentReader reader(corpus, OnBadData::skip);
  std::string text;
  EXPECT_CONTAINS(error_of([&] { reader.next(text); }, ExitCode::failed), "has 10 now");
}

TEST(Source, the_manifest_tells_other_data_apart) {
  const TempFolder folder;
  const auto manifest = [&] { return Corpus(options_for(folder / "d", 1)).manifest(); };
  folder.write("d/a.txt", "one\n\ntwo");
  const Json first = manifest();
  EXPECT_EQ(first["files"], 1);
  EXPECT_EQ(first["bytes"], 8);
  EXPECT_EQ(manifest(), first);
  folder.write("d/a.txt", "one \ntwo");  // as large, but one document
  EXPECT_NE(manifest(), first);
  fs::rename(folder / "d/a.txt", folder / "d/b.txt");
  folder.write("d/b.txt", "one\n\ntwo");
  EXPECT_NE(manifest(), first);
}

TEST(Source, progress_ends_at_the_whole) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 1500; ++i) text += "document\n\n";
  const auto corpus = std::make_shared<const Corpus>(options_for(folder.write("a.txt", text), 1));
  DocumentReader reader(corpus, OnBadData::stop);
  uint64_t before = 0;
  for (std::string document; reader.next(document);) {
    EXPECT_GE(reader.bytes_read(), before);
    before = reader.bytes_read();
    EXPECT_LE(before, corpus->bytes());
  }
  EXPECT_EQ(reader.bytes_read(), corpus->bytes());
  EXPECT_EQ(reader.documents(), 1500);
}

}  // namespace
}  // namespace mythos::test

// Parquet files that pyarrow wrote, read as training reads them: the same documents, in the same order.
#include "fixtures.h"

#include <cstdlib>

namespace mythos::test {
namespace {

std::vector<std::string> expected_documents(const std::string& path) {
  std::vector<std::string> documents;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) documents.push_back(Json::parse(line).get<std::string>());
  return documents;
}

TEST(Peers, ParquetAsPyarrowWritesIt) {
  const std::string deps = MYTHOS_DEPS_DIR;
  if (!fs::exists(deps + "/pyarrow/stamp") || !fs::exists(deps + "/python3.11")) {
    GTEST_SKIP() << deps << "/pyarrow or " << deps << "/python3.11 is missing: run scripts/setup --test";
  }
  const TempFolder folder;
  const std::string command = fmt::format("PYTHONPATH='{0}/pyarrow' '{0}/python3.11' '{1}/data/make_parquet.py' '{2}'",
                                          deps, MYTHOS_TEST_DIR, folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;

  int files = 0;
  size_t documents = 0;
  for (const auto& entry : fs::directory_iterator(folder.string())) {
    if (entry.path().extension() != ".parquet") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++files;
    const auto expected = expected_documents(entry.path().string() + ".expected");
    documents += expected.size();
    std::vector<std::string> read;
    ASSERT_NO_THROW(read = all_documents(options_for(entry.path().string(), 8)));
    ASSERT_EQ(read.size(), expected.size());
    for (size_t i = 0; i < read.size(); ++i) {
      // Not as one comparison: a difference should be shown and not everything.
      ASSERT_TRUE(read[i] == expected[i])
          << "document " << i << ": '" << read[i].substr(0, 80) << "' instead of '" << expected[i].substr(0, 80) << "'";
    }
  }
  EXPECT_EQ(files, 4 * 6 * 2 + 3);
  EXPECT_GT(documents, 100'000U);
}

}  // namespace
}  // namespace mythos::test

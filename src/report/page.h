// What the HTML pages share: one self-contained file, nothing fetched, no script.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// A whole page around `body`, which is HTML; the title is text. Readable in light and dark.
std::string html_page(std::string_view title, std::string_view body);

enum class TableOf {
  numbers,  ///< right-aligned but for the first column
  words,    ///< left-aligned; the last column is wrapped
};
/// Cells are HTML. `head` may be empty.
std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                       TableOf what = TableOf::numbers);

}  // namespace mythos

// A run of lines read as documents.
#pragma once

#include "data/data_file.h"
#include "data/line_reader.h"

#include <memory>
#include <string>

namespace mythos {

/// Documents in lines. Text: runs of lines between blank lines, joined with LF, without one at the end. JSONL: one
/// object a line; blank lines do not count. `name` and `first_line` are for messages. A `problem` is a damaged entry
/// behind the last document.
std::unique_ptr<UnitReader> read_documents(std::unique_ptr<Lines> lines, const std::string& name, int64_t first_line,
                                           const LineFormat& format, const std::string& problem = "");

}  // namespace mythos

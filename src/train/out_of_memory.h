// An allocation that failed, in words that help: which tensor, in which op, beside where the memory went.
#pragma once

#include "base/error.h"
#include "plan/measure.h"  // is_out_of_memory

#include <exception>
#include <functional>
#include <string>

namespace mythos {

/// What `doing` ("step 12") ended with. `again` is the work that failed: it is run once more with every op watched,
/// which costs nothing in a run that goes well, to tell the op, its part of the step, and the shape of the tensor that
/// there was no room for. `table` (see memory_text) goes to the log.
Error out_of_memory_error(const std::string& doing, const std::exception& error, const std::function<void()>& again,
                          const std::string& table);

}  // namespace mythos

// Somebody who wants to know of every warning of the log.
#pragma once

#include <functional>
#include <string_view>

namespace mythos::log {

/// Called with every warning from now on, as it was given and without its level, by the thread that warns and before
/// the next line; must not log. An empty one: nobody is told any more, and nobody is being told when this returns.
void set_watcher(std::function<void(std::string_view)> watcher);

}  // namespace mythos::log

// A run as one HTML page: `mythos report RUN`.
#pragma once

#include <filesystem>
#include <string>

namespace mythos {

/// Told from the run's files alone, while it trains or afterwards; nothing is changed. Where it stands; curves of loss
/// (held-out text too), learning rate, gradient norm, speed and the experts' balance, with a line where a start began;
/// its history; the last samples; its configuration. Self-contained, without scripts; all text is escaped. Throws usage
/// Error for a folder that is no run, Error for what cannot be read.
std::string run_page(const std::filesystem::path& run);

}  // namespace mythos

// Numbers as a person reads them; alike in every locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// 1234567 -> "1,234,567"
std::string with_commas(int64_t value);
/// 4070903064 -> "4.07 GB" (decimal units); "unknown" if not finite
std::string bytes_text(double bytes);
/// Seconds to "45 s", "12 min", "3 h 05 min", "5d 12h"; below 0 is "0 s", "unknown" if not finite.
std::string duration_text(double seconds);
/// 2.28e9 -> "2.28 G", 512 -> "512 ": the unit is set right behind it ("2.28 GFLOPs"); "unknown" if not finite
std::string si_text(double value);

/// The candidate nearest to `name` by edit distance (case aside), or the first one that begins with it, or "" if none
/// is near (more than two letters and more than a third of them differ).
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);
/// " (did you mean 'x'?)"-like hint text: "did you mean 'x'?" or "known: a, b, c".
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace mythos

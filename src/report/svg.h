// Pictures as inline SVG: no scripts, nothing fetched. Colours are the classes of chart_style(), which follows the
// reader's light or dark setting.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mythos {

/// Text for HTML and SVG, between tags and inside quoted attributes: &, <, >, " and ' become entities, control
/// characters but newline and tab, and bytes that are not UTF-8, become U+FFFD.
std::string html_escaped(std::string_view text);

/// CSS for the pictures below.
std::string_view chart_style();

struct ChartPoint {
  std::string label;  ///< under the axis
  double value = 0;
  std::optional<double> error;  ///< drawn as a bar of so much up and down
  std::string hint;             ///< shown when pointed at
  bool marked = false;
};
/// Points joined by a line, evenly apart.
std::string line_chart(const std::vector<ChartPoint>& points, std::string_view title, std::string_view x_label,
                       std::string_view y_label);

struct Curve {
  std::vector<std::pair<double, double>> points;  ///< x ascending, all finite
  bool dots = false;                              ///< each point is shown, in the stronger colour
};
/// A place on the x axis that something happened at.
struct ChartEvent {
  double x = 0;
  std::string hint;
};
/// Curves over one numeric x axis; events are thin upright lines. Empty where no curve has a point.
std::string curve_chart(const std::vector<Curve>& curves, const std::vector<ChartEvent>& events, std::string_view title,
                        std::string_view x_label, std::string_view y_label);

/// Bars from zero.
std::string bar_chart(const std::vector<ChartPoint>& bars, std::string_view title, std::string_view x_label,
                      std::string_view y_label);

struct HeatMap {
  std::vector<std::vector<double>> rows;  ///< as many columns in each; 0 is drawn as an empty cell with a cross
  double full = 1;                        ///< the value of the strongest colour
  std::vector<std::string> row_labels;
  std::string x_label, y_label;
  std::string unit;  ///< behind a value in a hint
};
std::string heat_map(const HeatMap& map, std::string_view title);

/// Round numbers from at most `low` to at least `high` (finite), 3 to 9 of them: 1, 2 or 5 times a power of ten apart.
std::vector<double> round_ticks(double low, double high);

}  // namespace mythos

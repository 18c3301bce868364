#include "report/svg.h"

#include "text/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace mythos {
namespace {

constexpr double width = 680, height = 300, left = 76, right = 16, top = 14, bottom = 48;

// Where values lie on the picture.
struct Scale {
  explicit Scale(std::vector<double> t) : ticks(std::move(t)) {}
  [[nodiscard]] double y(double value) const {
    const double share = (value - ticks.front()) / (ticks.back() - ticks.front());
    return height - bottom - share * (height - top - bottom);
  }
  std::vector<double> ticks;
};

double x_of(size_t i, size_t n) {
  return left + (static_cast<double>(i) + 0.5) * (width - left - right) / static_cast<double>(n);
}

std::string opened(double w, double h, std::string_view title) {
  return fmt::format("<svg class=\"chart\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", w, h,
                     html_escaped(title));
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     html_escaped(text));
}

// As many decimals as tell ticks apart.
std::string tick_text(double tick, const std::vector<double>& ticks) {
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(ticks[1] - ticks[0]) + 1e-9)), 0, 9);
  return fmt::format("{:.{}f}", tick, decimals);
}

// Gridlines with their numbers, and the names of both axes.
std::string frame(const Scale& scale, std::string_view x_label, std::string_view y_label) {
  std::string out;
  for (const double tick : scale.ticks) {
    const double y = scale.y(tick);
    out += fmt::format("<line class=\"grid\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left,
                       width - right, y, y);
    out += text_at(left - 8, y + 4, "end", tick_text(tick, scale.ticks));
  }
  out += text_at((left + width - right) / 2, height - 8, "middle", x_label);
  const double middle = (top + height - bottom) / 2;
  return out + text_at(16, middle, "middle", y_label, fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle));
}

// The frame, and the points' labels; of many points only some are labelled.
std::string axes(const Scale& scale, const std::vector<ChartPoint>& points, std::string_view x_label,
                 std::string_view y_label) {
  std::string out = frame(scale, x_label, y_label);
  const size_t every = points.size() / 17 + 1;
  for (size_t i = 0; i < points.size(); i += every) {
    out += text_at(x_of(i, points.size()), height - bottom + 18, "middle", points[i].label);
  }
  return out;
}

std::string hint(const std::string& text) { return text.empty() ? "" : "<title>" + html_escaped(text) + "</title>"; }

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  const auto* const end = reinterpret_cast<const unsigned char*>(text.data()) + text.size();
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(reinterpret_cast<const unsigned char*>(text.data()) + i, end);
    const std::string_view piece = text.substr(i, step.size);
    i += step.size;
    const bool control =
        (step.code < 0x20 && step.code != '\n' && step.code != '\t') || (step.code >= 0x7F && step.code < 0xA0);
    if (step.code == invalid_code || control) {
      out += replacement_character;
    } else if (step.code == '&') {
      out += "&amp;";
    } else if (step.code == '<') {
      out += "&lt;";
    } else if (step.code == '>') {
      out += "&gt;";
    } else if (step.code == '"') {
      out += "&quot;";
    } else if (step.code == '\'') {
      out += "&#39;";
    } else {
      out += piece;
    }
  }
  return out;
}

std::string_view chart_style() {
  return ":root{color-scheme:light dark;--ink:#1c2430;--faint:#5b6675;--line:#d5dbe3;--page:#fff;--panel:#f6f8fa;"
         "--accent:#2462c4;--strong:#c2410c}\n"
         "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--faint:#9aa6b5;--line:#343c47;--page:#12161c;"
         "--panel:#1a2028;--accent:#6ea8ff;--strong:#ff9457}}\n"
         ".chart{width:100%;max-width:680px;height:auto;font:12px system-ui,sans-serif}\n"
         ".chart text{fill:var(--faint)}.grid{stroke:var(--line);stroke-width:1}\n"
         ".bar{fill:var(--accent)}.curve{fill:none;stroke:var(--accent);stroke-width:2}.second{stroke:var(--strong)}\n"
         ".error{stroke:var(--accent);stroke-width:1.5}.point{fill:var(--page);stroke:var(--accent);stroke-width:2}\n"
         ".marked{fill:var(--strong);stroke:var(--strong)}.cell{fill:var(--accent)}\n"
         ".frame{fill:none;stroke:var(--line)}.dead{stroke:var(--strong);stroke-width:1.5}\n";
}

std::vector<double> round_ticks(double low, double high) {
  if (!(high > low)) {
    const double room = std::max(std::abs(low) * 0.01, 1e-6);
    low -= room;
    high += room;
  }
  const double rough = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::max(first + 1, std::ceil(high / step - 1e-9));
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string line_chart(const std::vector<ChartPoint>& points, std::string_view title, std::string_view x_label,
                       std::string_view y_label) {
  if (points.empty()) return "";
  double low = points.front().value, high = low;
  for (const auto& p : points) {
    low = std::min(low, p.value - p.error.value_or(0));
    high = std::max(high, p.value + p.error.value_or(0));
  }
  const Scale scale(round_ticks(low, high));
  std::string out = opened(width, height, title) + axes(scale, points, x_label, y_label);
  out += "<polyline class=\"curve\" points=\"";
  for (size_t i = 0; i < points.size(); ++i) {
    out += fmt::format("{:.1f},{:.1f} ", x_of(i, points.size()), scale.y(points[i].value));
  }
  out += "\"/>\n";
  for (size_t i = 0; i < points.size(); ++i) {
    const ChartPoint& p = points[i];
    const double x = x_of(i, points.size());
    if (p.error) {
      const double above = scale.y(p.value + *p.error), below = scale.y(p.value - *p.error);
      out += fmt::format(
          "<path class=\"error\" d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}H{4:.1f}M{3:.1f} {2:.1f}"
          "H{4:.1f}\"/>\n",
          x, above, below, x - 5, x + 5);
    }
    out += fmt::format("<circle class=\"point{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\">{}</circle>\n",
                       p.marked ? " marked" : "", x, scale.y(p.value), hint(p.hint));
  }
  return out + "</svg>\n";
}

std::string curve_chart(const std::vector<Curve>& curves, const std::vector<ChartEvent>& events, std::string_view title,
                        std::string_view x_label, std::string_view y_label) {
  double low = std::numeric_limits<double>::infinity(), high = -low, first = low, last = -low;
  for (const Curve& curve : curves) {
    for (const auto& [x, y] : curve.points) {
      first = std::min(first, x);
      last = std::max(last, x);
      low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  if (first > last) return "";
  const Scale scale(round_ticks(low, high));
  const double span = std::max(last - first, 1.0);
  const auto x_at = [&](double x) { return left + (x - first) / span * (width - left - right); };
  std::string out = opened(width, height, title) + frame(scale, x_label, y_label);
  const std::vector<double> x_ticks = round_ticks(first, last);
  for (const double tick : x_ticks) {
    if (tick < first || tick > last) continue;
    out += text_at(x_at(tick), height - bottom + 18, "middle", tick_text(tick, x_ticks));
  }
  for (const ChartEvent& e : events) {
    if (e.x < first || e.x > last) continue;
    out += fmt::format("<path class=\"dead\" d=\"M{:.1f} {:.0f}V{:.0f}\">{}</path>\n", x_at(e.x), top, height - bottom,
                       hint(e.hint));
  }
  for (const Curve& curve : curves) {
    out += fmt::format("<polyline class=\"curve{}\" points=\"", curve.dots ? " second" : "");
    for (const auto& [x, y] : curve.points) out += fmt::format("{:.1f},{:.1f} ", x_at(x), scale.y(y));
    out += "\"/>\n";
    if (!curve.dots) continue;
    for (const auto& [x, y] : curve.points) {
      out += fmt::format("<circle class=\"point marked\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\">{}</circle>\n", x_at(x),
                         scale.y(y), hint(fmt::format("{} {:.0f}: {:.4f}", x_label, x, y)));
    }
  }
  return out + "</svg>\n";
}

std::string bar_chart(const std::vector<ChartPoint>& bars, std::string_view title, std::string_view x_label,
                      std::string_view y_label) {
  if (bars.empty()) return "";
  double high = 0;
  for (const auto& b : bars) high = std::max(high, b.value);
  const Scale scale(round_ticks(0, high > 0 ? high : 1));
  std::string out = opened(width, height, title) + axes(scale, bars, x_label, y_label);
  const double w = 0.8 * (width - left - right) / static_cast<double>(bars.size());
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = scale.y(bars[i].value);
    out += fmt::format("<rect class=\"bar{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">{}</rect>\n",
                       bars[i].marked ? " marked" : "", x_of(i, bars.size()) - w / 2, y, w, scale.y(0) - y,
                       hint(bars[i].hint));
  }
  return out + "</svg>\n";
}

std::string heat_map(const HeatMap& map, std::string_view title) {
  if (map.rows.empty() || map.rows.front().empty()) return "";
  const size_t columns = map.rows.front().size();
  const double w = std::min(36.0, (width - left - right) / static_cast<double>(columns));
  const double h = std::clamp(w, 14.0, 24.0);
  const double tall = static_cast<double>(map.rows.size()) * h;
  std::string out = opened(width, top + tall + bottom, title);
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = top + static_cast<double>(r) * h;
    out += text_at(left - 8, y + h / 2 + 4, "end", map.row_labels[r]);
    for (size_t c = 0; c < columns; ++c) {
      const double value = map.rows[r][c];
      const double x = left + static_cast<double>(c) * w;
      const std::string told =
          hint(fmt::format("{} {}, {} {}: {:.2f}{}", map.y_label, map.row_labels[r], map.x_label, c, value, map.unit));
      out += fmt::format(
          "<g>{}<rect class=\"cell\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
          "fill-opacity=\"{:.3f}\"/>",
          told, x, y, w, h, map.full > 0 ? std::clamp(value / map.full, 0.0, 1.0) : 0.0);
      if (value == 0) {
        const double d = std::min(w, h) / 4, cx = x + w / 2, cy = y + h / 2;
        out += fmt::format("<path class=\"dead\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>",
                           cx - d, cy - d, cx + d, cy + d, cx - d, cy + d, cx + d, cy - d);
      }
      out += "</g>\n";
    }
  }
  const double wide = static_cast<double>(columns) * w;
  out += fmt::format("<rect class=\"frame\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n", left,
                     top, wide, tall);
  const size_t every = std::max<size_t>(1, static_cast<size_t>(std::ceil(22.0 / w)));
  for (size_t c = 0; c < columns; c += every) {
    out += text_at(left + (static_cast<double>(c) + 0.5) * w, top + tall + 16, "middle", fmt::format("{}", c));
  }
  out += text_at(left + wide / 2, top + tall + 38, "middle", map.x_label);
  const double middle = top + tall / 2;
  out += text_at(16, middle, "middle", map.y_label, fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle));
  return out + "</svg>\n";
}

}  // namespace mythos

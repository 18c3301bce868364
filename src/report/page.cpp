#include "report/page.h"

#include "report/svg.h"

#include <fmt/format.h>

namespace mythos {
namespace {

constexpr std::string_view page_style =
    "body{margin:0 auto;padding:2rem 1rem 4rem;max-width:760px;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2.2rem 0 .3rem}\n"
    "p{margin:.3rem 0;color:var(--faint)}.ok{color:var(--accent)}.not{color:var(--strong)}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.25rem .8rem .25rem 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}\n"
    "th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--faint)}\n"
    ".words th,.words td{text-align:left;vertical-align:top}\n"
    ".words td:last-child{white-space:normal;overflow-wrap:anywhere;min-width:18rem}\n"
    "pre{background:var(--panel);padding:.7rem .9rem;border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere}\n"
    "pre b{color:var(--accent);font-weight:600}\n";

std::string row(std::string_view tag, const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (const auto& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return out + "</tr>\n";
}

}  // namespace

std::string html_page(std::string_view title, std::string_view body) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      html_escaped(title) + "</title>\n<style>\n";
  out += chart_style();
  out += page_style;
  out += "</style>\n</head>\n<body>\n";
  out += body;
  return out + "</body>\n</html>\n";
}

std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                       TableOf what) {
  std::string out = fmt::format("<div class=\"scroll\"><table{}>\n", what == TableOf::words ? " class=\"words\"" : "");
  if (!head.empty()) out += row("th", head);
  for (const auto& r : rows) out += row("td", r);
  return out + "</table></div>\n";
}

}  // namespace mythos

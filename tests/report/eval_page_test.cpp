// The page and the text of an evaluation.
#include "report/eval_page.h"

#include "report/eval_text.h"
#include "report/svg.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mythos {
namespace {

Evaluation evaluation(int64_t loops, double loss) {
  Evaluation e;
  e.loops = loops;
  e.documents = 12;
  e.tokens = 3456;
  e.bytes = 9000;
  e.clusters = 12;
  e.loss = loss;
  e.loss_error = 0.0625;
  e.bits_per_byte_error = 0.03;
  e.accuracy = 0.25;
  e.accuracy_error = 0.015;
  e.difference = loss - 3;
  e.difference_error = 0.0011;
  e.mean_loops = 2.5;
  e.never_halted = 0.125;
  return e;
}

EvalReport report() {
  EvalReport r;
  r.checkpoint = "runs/<a> & \"b\"";
  r.step = 600;
  r.tokens = 1234567;
  r.parameters = 339241922;
  r.vocab_size = 199998;
  r.experts_per_token = 2;
  r.trained_loops = 2;
  r.document_separator = true;
  r.radius = spectral_radius({0.3, 0.35, 0.36, 0.4});
  LoopSweep sweep;
  sweep.trained = evaluation(2, 3);
  sweep.by_loops = {evaluation(1, 3.5), evaluation(2, 3), evaluation(4, 2.9)};
  sweep.loops.experts_by_loop = {ExpertLoad{{0.5, 0.25, 0.25, 0}}, ExpertLoad{{0.25, 0.25, 0.25, 0.25}},
                                 ExpertLoad{{0, 0, 0, 0}}};
  sweep.loops.experts = sweep.loops.experts_by_loop[0];
  sweep.loops.halted_by_loop = {0.25, 0.5, 0.875};
  sweep.loops.mean_loops = 2.5;
  r.sweep = sweep;
  ChoiceResult task;
  task.file = "hella<swag>.jsonl";
  task.questions = 1000;
  task.chance = 0.25;
  task.cut = 3;
  task.trained = {.loops = 2,
                  .acc = 0.3,
                  .acc_norm = 0.35,
                  .acc_bytes = 0.34,
                  .acc_error = 0.014,
                  .acc_norm_error = 0.015,
                  .acc_bytes_error = 0.015};
  task.by_loops = {task.trained};
  r.tasks = {task};
  r.samples = {{"<script>alert(1)</script>", "</pre>\xFF\x1B[31m & more"}};
  return r;
}

// Every tag that is opened is closed in its order, but for HTML's empty ones.
void expect_balanced(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (tag[0] == '!' || tag.ends_with('/')) continue;
    const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find(' ') - (tag[0] == '/' ? 1 : 0));
    if (name == "meta") continue;
    if (tag[0] != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    EXPECT_EQ(open.back(), name) << page.substr(at > 200 ? at - 200 : 0, 260);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

TEST(EvalPage, IsWholeAndFetchesNothing) {
  const std::string page = eval_page(report());
  expect_balanced(page);
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  for (const char* outside : {"http:", "https:", "<script", "<link", "<img", "@import", "url(", "src=", "href="})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  for (const char* part :
       {"339,241,922", "Loss by loop count", "rho(A)", "Halting", "Load of the experts", "Tasks", "Samples",
        "prefers-color-scheme:dark", "3.0000 &plusmn; 0.0625", "-0.1000 &plusmn; 0.0011", "25.0 &plusmn; 1.5 %",
        "30.0 &plusmn; 1.4 %", "class=\"dead\"", "1.50 bits (75.0 %)", "3 cut at the left", "OK, within"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

TEST(EvalPage, EscapesAllText) {
  const std::string page = eval_page(report());
  EXPECT_NE(page.find("runs/&lt;a&gt; &amp; &quot;b&quot;"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(page.find("&lt;/pre&gt;\xEF\xBF\xBD\xEF\xBF\xBD[31m &amp; more"), std::string::npos);
  EXPECT_NE(page.find("hella&lt;swag&gt;"), std::string::npos);
}

TEST(EvalPage, OfACheckpointAlone) {
  EvalReport r = report();
  r.sweep.reset();
  r.tasks.clear();
  r.samples.clear();
  const std::string page = eval_page(r);
  expect_balanced(page);
  EXPECT_NE(page.find("rho(A)"), std::string::npos);
  EXPECT_EQ(page.find("Loss by loop count"), std::string::npos);
  EXPECT_EQ(page.find("Samples"), std::string::npos);
}

TEST(EvalPage, ErrorBarsReachOneStandardErrorUpAndDown) {
  // One of value 2 +- 1 and one of 0: the axis goes from 0 to 3, the bar from 1 to 3.
  const std::string svg = line_chart({{"a", 2, 1.0, "", false}, {"b", 0, std::nullopt, "", true}}, "t", "x", "y");
  const size_t at = svg.find("class=\"error\" d=\"M");
  ASSERT_NE(at, std::string::npos);
  double x = 0, above = 0, below = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + at, "class=\"error\" d=\"M%lf %lfV%lf", &x, &above, &below), 3);
  double cx = 0, cy = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("<circle class=\"point\" "),
                        "<circle class=\"point\" cx=\"%lf\" cy=\"%lf\"", &cx, &cy),
            2);
  EXPECT_NEAR(x, cx, 0.06);
  EXPECT_NEAR((above + below) / 2, cy, 0.11);
  EXPECT_LT(above, cy);
  EXPECT_EQ(svg.find("class=\"error\"", at + 1), std::string::npos) << "only where there is one";
}

TEST(Svg, TicksAreRoundAndHoldTheValues) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 1}, {2.97, 3.53}, {-5, 5}, {1e-9, 3e-9}, {1e6, 1.0001e6}, {4, 4}, {0, 0}, {0, 100}, {11.99, 12.41}}) {
    const auto ticks = round_ticks(low, high);
    ASSERT_GE(ticks.size(), 3U) << low << " " << high;
    EXPECT_LE(ticks.size(), 9U) << low << " " << high;
    EXPECT_LE(ticks.front(), low + 1e-9 * std::abs(low));
    EXPECT_GE(ticks.back(), high - 1e-9 * std::abs(high));
    const double step = ticks[1] - ticks[0];
    const double mantissa = step / std::pow(10, std::floor(std::log10(step) + 1e-6));
    EXPECT_TRUE(std::abs(mantissa - 1) < 1e-5 || std::abs(mantissa - 2) < 1e-5 || std::abs(mantissa - 5) < 1e-5)
        << step;
  }
}

TEST(Svg, HundredsOfExpertsFit) {
  HeatMap map;
  map.rows.assign(16, std::vector<double>(512, 1.0));
  for (int i = 0; i < 16; ++i) map.row_labels.push_back(std::to_string(i + 1));
  const std::string svg = heat_map(map, "many");
  EXPECT_LT(svg.size(), 4'000'000U);
  EXPECT_EQ(heat_map({}, "none"), "");
}

TEST(EvalText, SaysWhatIsKnown) {
  const EvalReport r = report();
  const std::string text = checkpoint_text(r) + sweep_text(r) + task_text(r.tasks[0]) + sample_text(r.samples[0]);
  for (const char* part :
       {"step 600, 1,234,567 tokens, 339,241,922 parameters, vocabulary 199,998",
        "max 0.4000, min 0.3000 (OK: within 0.0001 to 0.999)", "loss 3.0000 +- 0.0625", "top-1 25.0 +- 1.5%",
        "12 documents, 3,456 tokens, 9,000 bytes (2 for each separator); 2 loops; standard errors by document",
        "2.50 loops on average, 12.5% of positions never halt", "-0.1000 +- 0.0011", "+0.5000 +- 0.0011",
        "(trained with)", "1.50 bits (75.0%)", "did not run", "1,000 questions (3 cut at the left); by chance 25.0%",
        "30.0 +- 1.4%"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 120U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(EvalText, WithoutErrorsTheNumbersStandAlone) {
  EXPECT_EQ(with_error(1.25, std::nullopt, 2), "1.25");
  EXPECT_EQ(with_error(1.25, 0.5, 2), "1.25 +- 0.50");
}

TEST(EvalJson, HasEverything) {
  const Json json = to_json(report());
  EXPECT_EQ(json["loss"], 3);
  EXPECT_EQ(json["loss_standard_error"], 0.0625);
  EXPECT_EQ(json["by_loops"].size(), 3U);
  EXPECT_EQ(json["by_loops"][2]["loss_difference_standard_error"], 0.0011);
  EXPECT_EQ(json["evaluated_tokens"], 3456);
  EXPECT_EQ(json["experts_by_loop"][0]["loop"], 1);
  EXPECT_EQ(json["experts_by_loop"][0]["entropy_bits"], 1.5);
  EXPECT_EQ(json["experts_by_loop"][0]["unused"], 1);
  EXPECT_EQ(json["halting"]["halts_in_loop"], Json({0.25, 0.25, 0.375}));
  EXPECT_EQ(json["halting"]["never_halted"], 0.125);
  EXPECT_EQ(json["spectral_radius_histogram"]["counts"].size(), 10U);
  EXPECT_EQ(json["spectral_radius_ok"], true);
  EXPECT_EQ(json["tasks"][0]["acc_norm"], 0.35);
  EXPECT_EQ(json["samples"].size(), 1U);
}

}  // namespace
}  // namespace mythos

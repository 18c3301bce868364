// `mythos report RUN`: the page has all of a run, and nothing of a damaged or hostile file breaks it.
#include "train/run_page.h"

#include "report/svg.h"
#include "train_testing.h"

#include <fstream>

namespace mythos::testing {
namespace {

class RunPageTest : public TrainTest {
 protected:
  static size_t count(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
  void append(const std::string& text) const {
    std::ofstream(tiny_.run() / "metrics.jsonl", std::ios::app | std::ios::binary) << text;
  }
};

TEST_F(RunPageTest, HasCurvesHistorySamplesAndConfiguration) {
  const std::string prompts = "log.prompts=[\"The old river\"]";
  start({"train.max_hours=1e-9", "log.eval_every=5", prompts});
  EXPECT_TRUE(start({"log.eval_every=5", prompts}).finished);
  const auto before = snapshot(tiny_.folder());
  const std::string page = run_page(tiny_.run());
  EXPECT_EQ(snapshot(tiny_.folder()), before);
  for (const char* title : {"Loss", "Learning rate", "Gradient norm", "Speed", "Balance of the experts",
                            "Loops until a position halts", "History", "Samples at step 24", "Configuration"}) {
    EXPECT_NE(page.find(fmt::format("<h2>{}</h2>", title)), std::string::npos) << title;
  }
  EXPECT_EQ(count(page, "<svg"), 6U);
  EXPECT_EQ(count(page, "class=\"dead\""), 6U) << "the second start, in each";
  EXPECT_NE(page.find("24 of 24 (100.0%)"), std::string::npos);
  EXPECT_NE(page.find("went on from"), std::string::npos);
  EXPECT_NE(page.find("max_loop_iters = 3"), std::string::npos);
  for (const char* none : {"<script", "src=", "href=", "url(", "@import"}) EXPECT_EQ(count(page, none), 0U) << none;
}

TEST_F(RunPageTest, WhatIsDamagedOrHostileIsPassedOverOrEscaped) {
  EXPECT_TRUE(start().finished);
  const Json bad = {{"prompt", "<script>alert(1)</script>"}, {"text", "a\x01 & b \xff"}};
  append(
      "nonsense\n{\"step\": 3, \"loss\": 1e999}\n{\"step\": \"x\", \"loss\": 1}\n[1]\n{\"step\":30,\"loss\":\"y\"}\n" +
      Json{{"step", 24}, {"samples", Json::array({bad, 3})}}.dump(-1, ' ', false, Json::error_handler_t::replace) +
      "\n" + std::string(3 << 20, '[') + "\n{\"step\": 31, \"loss\": 2");
  const std::string page = run_page(tiny_.run());
  EXPECT_EQ(count(page, "<script"), 0U);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)"), std::string::npos);
  EXPECT_LT(page.size(), size_t{1} << 20);
  fs::remove(tiny_.run() / "metrics.jsonl");
  fs::remove(tiny_.run() / "history.jsonl");
  EXPECT_EQ(count(run_page(tiny_.run()), "<svg"), 0U);
  EXPECT_THROW((void)run_page(elsewhere()), Error);
}

TEST_F(RunPageTest, TheCommandWritesItWhole) {
  EXPECT_TRUE(start().finished);
  const Outcome o = run_program({"report", tiny_.run().string()});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(read_file(tiny_.run() / "report.html").ends_with("</html>\n"));
  const Outcome other =
      run_program({"report", tiny_.run().string(), "--json", "--out", (elsewhere() += ".html").string()});
  EXPECT_EQ(Json::parse(other.out)["bytes"], fs::file_size(elsewhere() += ".html"));
  EXPECT_EQ(run_program({"report", (tiny_.folder() / "nothing").string()}).code, 2);
  EXPECT_EQ(run_program({"report", tiny_.run().string(), "--out", "/proc/nothing/x.html"}).code, 1);
}

TEST(CurveChart, ScalesBothAxesAndDropsEventsOutside) {
  const Curve line{.points = {{100, 4}, {200, 2}, {300, 3}}};
  const std::string svg = curve_chart({line, {.points = {{150, 2.5}}, .dots = true}}, {{200, "a & b"}, {50, "before"}},
                                      "t", "step", "loss");
  EXPECT_NE(svg.find("<title>a &amp; b</title>"), std::string::npos);
  EXPECT_EQ(svg.find("before"), std::string::npos);
  // The picture is 680 wide with 76 at the left and 16 at the right; the middle of the steps is in the middle.
  EXPECT_NE(svg.find("76.0,"), std::string::npos) << svg;
  EXPECT_NE(svg.find(" 370.0,"), std::string::npos) << svg;
  EXPECT_NE(svg.find(" 664.0,"), std::string::npos) << svg;
  EXPECT_NE(svg.find("step 150: 2.5000"), std::string::npos);
  EXPECT_EQ(curve_chart({{}, {}}, {{1, "x"}}, "t", "x", "y"), "");
  EXPECT_NE(curve_chart({{.points = {{5, 1}}}}, {}, "t", "x", "y"), "");
}

}  // namespace
}  // namespace mythos::testing

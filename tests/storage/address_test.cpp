// Addresses, patterns, pages and headers taken apart.
#include "storage_testing.h"

#include "storage/http_client.h"
#include "storage/http_file.h"
#include "storage/hub_address.h"
#include "storage/hub_configs.h"
#include "storage/path_pattern.h"
#include "storage/url.h"

namespace mythos::test {
namespace {

TEST(Url, origins) {
  EXPECT_EQ(origin_of("HTTP://Host/a"), "http://host:80");
  EXPECT_EQ(origin_of("https://user@host:8443/a?b"), "https://host:8443");
  EXPECT_NE(origin_of("https://host:444/"), origin_of("https://host/"));
  for (const char* bad : {"", "host", "file:///x", "http://", "http://[/", "ftp://x/"})
    EXPECT_THROW(origin_of(bad), Error) << bad;
}

TEST(Url, joined) {
  EXPECT_EQ(resolve_url("http://h/a/b?q", "c"), "http://h/a/c");
  EXPECT_EQ(resolve_url("http://h/a/b", "/c?d#e"), "http://h/c?d");
  EXPECT_EQ(resolve_url("http://h/a/", "../x y"), "http://h/x%20y");
  EXPECT_EQ(resolve_url("http://h:8/a", "//g/c"), "http://g/c");
  EXPECT_EQ(resolve_url("http://h/a/b", "?q=1"), "http://h/a/b?q=1");
  EXPECT_THROW(resolve_url("http://h/a", "file:///etc/passwd"), Error);
  EXPECT_THROW(resolve_url("http://h/a", "javascript:x"), Error);
}

TEST(Url, shown_without_secrets) {
  EXPECT_EQ(shown_url("https://u:p@h:1/a/b?X-Amz-Signature=s#f"), "https://h:1/a/b");
  EXPECT_EQ(shown_url("https://u:p%40@h"), "https://h");
  EXPECT_EQ(shown_url("https://h/a@b"), "https://h/a@b");
  EXPECT_EQ(shown_url("https://h/\r\nX: y"), "https://h/X: y");
  EXPECT_EQ(shown_source("hf://datasets/o/n@main/a?b"), "hf://datasets/o/n@main/a?b");
  EXPECT_LT(shown_url("http://h/" + std::string(10'000, 'a')).size(), 600U);
}

TEST(Url, percent_encoding) {
  EXPECT_EQ(encode_path("a b/ü#?.txt"), "a%20b/%C3%BC%23%3F.txt");
  EXPECT_EQ(encode_part("refs/pr/1"), "refs%2Fpr%2F1");
  EXPECT_EQ(decode_percent("a%20b%2"), "a b%2");
  EXPECT_EQ(decode_percent("%zz%C3%BC"), "%zzü");
}

TEST(HubAddress, parts) {
  const auto a = parse_hub_address("hf://datasets/Org/fine.web-edu@v1.0/sample/10BT/");
  EXPECT_TRUE(a.dataset);
  EXPECT_EQ(a.repository(), "Org/fine.web-edu");
  EXPECT_EQ(a.revision, "v1.0");
  EXPECT_EQ(a.path, "sample/10BT");
  EXPECT_EQ(a.key(), "hf://datasets/Org/fine.web-edu@v1.0");
  const auto b = parse_hub_address("hf://openai/gpt-oss-20b");
  EXPECT_FALSE(b.dataset);
  EXPECT_EQ(b.key(), "hf://openai/gpt-oss-20b@main");
  EXPECT_EQ(b.path, "");
  EXPECT_EQ(parse_hub_address("hf://datasets/o/n@refs/convert/parquet/x/y").revision, "refs/convert/parquet");
  EXPECT_EQ(parse_hub_address("hf://datasets/o/n@refs%2Fpr%2F1/x").revision, "refs/pr/1");
  const std::string at = a.file_at(commit_of_server, "x y#?.txt");
  EXPECT_EQ(parse_hub_address(at).path, "x y#?.txt");
  EXPECT_EQ(parse_hub_address(at).revision, commit_of_server);
  for (const char* bad : {"hf://", "hf://x", "hf://datasets/", "hf://datasets/o", "hf://datasets/o/", "hf://o/n@",
                          "hf://o/n@/x", "hf://../n", "hf://o/..", "hf://o/n/../x", "hf://o/n//x", "hf://o/n/./x",
                          "hf://spaces/o/n", "hf://o /n", "hf://o/n@../../x"}) {
    EXPECT_THROW(parse_hub_address(bad), Error) << bad;
  }
}

TEST(HubAddress, environment_as_pythons_hub_reads_it) {
  const HubEnvironment environment("http://mirror:8080/hub/", "");
  environment.home().write("token", "  saved\n");
  HubSettings settings = hub_settings();
  EXPECT_EQ(settings.endpoint, "http://mirror:8080/hub");
  EXPECT_EQ(settings.token, "saved");
  EXPECT_EQ(settings.cache, environment.home() / "hub");
  EXPECT_FALSE(settings.offline);
  environment.home().write("elsewhere", "other");
  const Variable path("HF_TOKEN_PATH", (environment.home() / "elsewhere").string());
  EXPECT_EQ(hub_settings().token, "other");
  const Variable old_name("HUGGING_FACE_HUB_TOKEN", "old");
  EXPECT_EQ(hub_settings().token, "old");
  const Variable name("HF_TOKEN", "new\n");
  EXPECT_EQ(hub_settings().token, "new");
  const Variable cache("HF_HUB_CACHE", "/c");
  EXPECT_EQ(hub_settings().cache, "/c");
  const Variable offline("HF_HUB_OFFLINE", "true");
  EXPECT_TRUE(hub_settings().offline);
  const Variable home("HF_HOME", std::nullopt);
  const Variable no_cache("HF_HUB_CACHE", std::nullopt);
  const Variable xdg("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(hub_settings().cache, "/xdg/huggingface/hub");
  const Variable no_endpoint("HF_ENDPOINT", std::nullopt);
  EXPECT_EQ(hub_settings().endpoint, "https://huggingface.co");
  const Variable bad("HF_TOKEN", "a\r\nX: y");
  EXPECT_HAS(error_of([] { hub_settings(); }), "token holds blanks");
}

TEST(Pattern, matches) {
  EXPECT_TRUE(matches_pattern("data/a/b.parquet", "data/*/*"));
  EXPECT_FALSE(matches_pattern("data/a/c/b.parquet", "data/*/*"));
  EXPECT_FALSE(matches_pattern("data/b.parquet", "data/*/*"));
  EXPECT_TRUE(matches_pattern("a.txt", "**"));
  EXPECT_TRUE(matches_pattern("d/e/a.txt", "**"));
  EXPECT_TRUE(matches_pattern("d/e/a.txt", "**/a.txt"));
  EXPECT_TRUE(matches_pattern("a.txt", "**/a.txt"));
  EXPECT_FALSE(matches_pattern("d/ba.txt", "**/a.txt"));
  EXPECT_TRUE(matches_pattern("d/x/y/a.txt", "d/**/*.txt"));
  EXPECT_TRUE(matches_pattern("d/a.txt", "d/**/*.txt"));
  EXPECT_TRUE(matches_pattern("d/x/y", "d/**"));
  EXPECT_TRUE(matches_pattern("part-07.txt", "part-[0-9]?.t*t"));
  EXPECT_FALSE(matches_pattern("part-x7.txt", "part-[0-9]?.txt"));
  EXPECT_TRUE(matches_pattern("b", "[!a]"));
  EXPECT_FALSE(matches_pattern("a", "[!a]"));
  EXPECT_FALSE(matches_pattern("/", "[!a]"));
  EXPECT_FALSE(matches_pattern("/", "?"));
  EXPECT_TRUE(matches_pattern("]", "[]]"));
  EXPECT_TRUE(matches_pattern("[a", "[a"));
  EXPECT_TRUE(matches_pattern("", "*"));
  EXPECT_FALSE(matches_pattern("", "?"));
  EXPECT_FALSE(matches_pattern("ab", "a"));
  // In bounded time, where trying every way would take for ever.
  std::string hostile;
  for (int i = 0; i < 50; ++i) hostile += "a*";
  EXPECT_FALSE(matches_pattern(std::string(2000, 'a') + "/", hostile + "b"));
  EXPECT_EQ(fixed_folder("data/CC-*/x"), "data");
  EXPECT_EQ(fixed_folder("*.txt"), "");
  EXPECT_EQ(fixed_folder("a/b/c.txt"), "a/b");
}

std::string shape_of(const std::vector<HubConfiguration>& configurations) {
  std::string text;
  for (const auto& config : configurations) {
    text += config.name + (config.is_default ? "!" : "") + "{";
    for (const auto& split : config.splits) {
      text += split.name + ":";
      for (const auto& pattern : split.patterns) text += pattern + " ";
    }
    text += "}";
  }
  return text;
}

TEST(HubConfigurations, as_readmes_write_them) {
  EXPECT_EQ(shape_of(read_configurations("---\n"
                                         "license: odc-by\n"
                                         "tags:\n- a\n- b: c\n"
                                         "configs:\n"
                                         "- config_name: default\n"
                                         "  default: true\n"
                                         "  data_files:\n"
                                         "  - split: train\n"
                                         "    path: data/*/*\n"
                                         "  features:\n"
                                         "  - name: text\n"
                                         "    dtype: string\n"
                                         "  # a comment\n"
                                         "- config_name: \"sample-10BT\"  # small\n"
                                         "  data_files:\n"
                                         "    - split: train\n"
                                         "      path:\n"
                                         "        - 'sample/10BT/*'\n"
                                         "        - more/*\n"
                                         "    - split: test\n"
                                         "      path: [t/a, \"t/b,c\"]\n"
                                         "- data_files: x/*.parquet\n"
                                         "  config_name: plain\n"
                                         "- config_name: list\n"
                                         "  data_files:\n"
                                         "  - a.txt\n"
                                         "  - b.txt\n"
                                         "- config_name: map\n"
                                         "  data_files:\n"
                                         "    train: t/*\n"
                                         "    test: u/*\n"
                                         "- config_name: folder\n"
                                         "  data_dir: some/dir\n"
                                         "size: x\n"
                                         "---\n"
                                         "configs:\n- config_name: not this\n")),
            "default!{train:data/*/* }sample-10BT{train:sample/10BT/* more/* test:t/a t/b,c }plain{:x/*.parquet }"
            "list{:a.txt b.txt }map{train:t/* test:u/* }folder{:some/dir/** }");
  EXPECT_EQ(shape_of(read_configurations("---\r\nconfigs:\r\n  - config_name: a\r\n    data_files:\r\n      - path: "
                                         "x\r\n        split: train\r\n---\r\n")),
            "a{train:x }");
  EXPECT_TRUE(read_configurations("").empty());
  EXPECT_TRUE(read_configurations("# A title\nconfigs:\n- config_name: x\n").empty());
  EXPECT_TRUE(read_configurations("---\nconfigs: none\n---").empty());
}

TEST(HubConfigurations, hostile_headers_end) {
  Random random(3);
  constexpr std::string_view alphabet = "-: \n\n[]'\"#,acdfgilnosp_\\{}&*|>!%@`\t";
  for (int i = 0; i < 3000; ++i) {
    std::string text = "---\nconfigs:\n- config_name: a\n  data_files:\n";
    for (int n = 0; n < 200; ++n) text += alphabet[random.below(alphabet.size())];
    read_configurations(text);
  }
  std::string many = "---\nconfigs:\n";
  for (int i = 0; i < 100'000; ++i) many += "- config_name: x\n";
  EXPECT_LT(read_configurations(many).size(), 10'000U);
  read_configurations("---\nconfigs:\n" + std::string(1 << 20, '-') + "\n");
  read_configurations("---\nconfigs:\n- config_name: [" + std::string(1 << 20, '['));
}

TEST(Links, as_servers_write_them) {
  EXPECT_EQ(links_of("<html><A HREF='a%20b.txt'>x</A><a class=x href=\"c&amp;d.txt\" >y</a><a href=e.txt>z</a>"
                     "<abbr href='no'><a name='no'><a\nhref = 'f.txt'>"),
            (std::vector<std::string>{"a%20b.txt", "c&d.txt", "e.txt", "f.txt"}));
  links_of("<a href=");
  links_of("<a href='unclosed");
  links_of("<a " + std::string(1 << 20, '<') + "=");
  Random random(4);
  constexpr std::string_view alphabet = "<>a href='\"= \n/&;#";
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int n = 0; n < 300; ++n) text += alphabet[random.below(alphabet.size())];
    links_of(text);
  }
}

}  // namespace
}  // namespace mythos::test

#include "infer/choice_task.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"

#include <algorithm>
#include <array>

namespace mythos {
namespace {

constexpr uint64_t most_bytes = UINT64_C(1) << 30;
constexpr size_t most_choices = 1000;

bool is_blank_character(std::string_view c) {
  if (c.size() == 1) {
    const auto b = static_cast<unsigned char>(c[0]);
    return b == ' ' || (b >= 0x09 && b <= 0x0D) || (b >= 0x1C && b <= 0x1F);
  }
  if (c.size() == 3 && c.starts_with("\xE2\x80")) {
    const auto b = static_cast<unsigned char>(c[2]);
    return (b >= 0x80 && b <= 0x8A) || b == 0xA8 || b == 0xA9 || b == 0xAF;
  }
  static constexpr std::array<std::string_view, 5> others = {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x81\x9F",
                                                             "\xE3\x80\x80"};
  return std::find(others.begin(), others.end(), c) != others.end();
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// One line of the file, and what to say of it if it is wrong.
struct Place {
  const std::string& file;
  int64_t line;
  [[nodiscard]] std::string text() const { return fmt::format("{}:{}", file, line); }
  [[nodiscard]] Error wrong(const std::string& what, const std::string& hint = "") const {
    return usage_error(text() + ": " + what, hint);
  }
};

struct ParsedQuestion {
  std::string question;
  std::vector<std::string> choices;
  size_t answer = 0;
};

constexpr const char* form_hint = R"(a line is like {"question": "..", "choices": ["..", ".."], "answer": 0})";

ParsedQuestion parse_question(std::string_view line, const Place& at) {
  const Json json = [&] {
    try {
      return parse_json(line, at.text());
    } catch (const Error& e) {
      throw usage_error(e.what(), form_hint);
    }
  }();
  if (!json.is_object()) throw at.wrong("not a JSON object", form_hint);
  for (const char* key : {"question", "choices", "answer"}) {
    if (!json.contains(key)) throw at.wrong(fmt::format("no key '{}'", key), form_hint);
  }
  const Json& choices = json["choices"];
  const Json& answer = json["answer"];
  if (!json["question"].is_string()) throw at.wrong("'question' is not a string", form_hint);
  if (!choices.is_array() || !std::all_of(choices.begin(), choices.end(), [](const Json& c) { return c.is_string(); }))
    throw at.wrong("'choices' is not a list of strings", form_hint);
  if (choices.size() < 2) throw at.wrong(fmt::format("'choices' has {}, at least 2 are needed", choices.size()));
  if (choices.size() > most_choices)
    throw at.wrong(fmt::format("'choices' has {}, at most {} are taken", choices.size(), most_choices));
  if (!answer.is_number_integer()) throw at.wrong("'answer' is not a whole number", form_hint);
  const bool negative = !answer.is_number_unsigned() && answer.get<int64_t>() < 0;
  if (negative || answer.get<uint64_t>() >= choices.size()) {
    throw at.wrong(
        fmt::format("'answer' is {}, and there are {} choices, numbered from 0", answer.dump(), choices.size()));
  }
  ParsedQuestion parsed;
  parsed.question = json["question"].get<std::string>();
  parsed.choices = choices.get<std::vector<std::string>>();
  parsed.answer = answer.get<size_t>();
  return parsed;
}

ChoiceRow row_of(const ParsedQuestion& question, size_t index, const Tokenizer& tokenizer, const ModelConfig& model,
                 const Place& at) {
  const std::string& choice = question.choices[index];
  if (choice.empty()) throw at.wrong(fmt::format("choice {} is empty", index));
  TokenPair pair =
      encode_pair([&](std::string_view text) { return tokenizer.encode(text); }, question.question, " " + choice);
  if (pair.continuation.empty()) throw at.wrong(fmt::format("choice {} has no token of its own", index));
  if (pair.context.empty()) {
    const auto end = tokenizer.end_of_text();
    if (!end || *end >= model.vocab_size)
      throw at.wrong("the question is empty, and this model has no end-of-text token to start from");
    pair.context.push_back(*end);
  }
  ChoiceRow row;
  row.scored = static_cast<int64_t>(pair.continuation.size());
  if (row.scored > model.max_seq_len) {
    throw at.wrong(fmt::format("choice {} has {} tokens, the model {} positions (model.max_seq_len)", index, row.scored,
                               model.max_seq_len));
  }
  row.ids = std::move(pair.context);
  row.ids.insert(row.ids.end(), pair.continuation.begin(), pair.continuation.end());
  const auto most = *std::max_element(row.ids.begin(), row.ids.end());
  if (most >= model.vocab_size) {
    throw at.wrong(
        fmt::format("it has the token {}, and the model's vocabulary has {}", most, with_commas(model.vocab_size)),
        "use the tokenizer the model was trained with");
  }
  const auto fits = static_cast<size_t>(model.max_seq_len) + 1;
  if (row.ids.size() > fits) {
    row.ids.erase(row.ids.begin(), row.ids.end() - static_cast<ptrdiff_t>(fits));
    row.cut = true;
  }
  row.bytes = static_cast<int64_t>(choice.size());
  row.characters = row.bytes - std::count_if(choice.begin(), choice.end(), continues_character);
  return row;
}

}  // namespace

std::string_view without_trailing_blanks(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && continues_character(text[begin])) --begin;
    if (!is_blank_character(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

TokenPair encode_pair(const EncodeText& encode, std::string_view context, std::string_view continuation) {
  const std::string_view kept = without_trailing_blanks(context);
  const std::string whole = std::string(context) + std::string(continuation);
  TokenPair pair;
  pair.context = encode(kept);
  pair.continuation = encode(whole);
  const size_t before = std::min(pair.context.size(), pair.continuation.size());
  pair.continuation.erase(pair.continuation.begin(), pair.continuation.begin() + static_cast<ptrdiff_t>(before));
  return pair;
}

ChoiceTask read_choice_task(const std::filesystem::path& file, const Tokenizer& tokenizer, const ModelConfig& model,
                            int64_t limit) {
  std::error_code ec;
  if (!std::filesystem::exists(file, ec)) throw usage_error(fmt::format("there is no task file {}", file.string()));
  const std::string text = read_file(file, most_bytes);
  ChoiceTask task;
  task.file = file.string();
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = without_trailing_blanks(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    const Place at{task.file, ++number};
    if (line.empty()) continue;
    const ParsedQuestion parsed = parse_question(line, at);
    ChoiceQuestion question;
    question.answer = parsed.answer;
    for (size_t i = 0; i < parsed.choices.size(); ++i) {
      question.choices.push_back(row_of(parsed, i, tokenizer, model, at));
    }
    task.questions.push_back(std::move(question));
    if (limit > 0 && static_cast<int64_t>(task.questions.size()) == limit) break;
  }
  if (task.questions.empty()) throw usage_error(fmt::format("{} has no question in it", task.file), form_hint);
  return task;
}

}  // namespace mythos

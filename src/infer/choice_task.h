// Multiple-choice tasks: a JSON object a line with `question`, `choices` and `answer`.
#pragma once

#include "model/config.h"
#include "text/tokenizer.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mythos {

/// A choice after its question, as the model reads it.
struct ChoiceRow {
  std::vector<int32_t> ids;  ///< the last of them is predicted, never read
  int64_t scored = 0;        ///< so many of the last are the choice's
  int64_t characters = 0;    ///< of the choice as it stands in the file
  int64_t bytes = 0;         ///< of the same
  bool cut = false;          ///< the question's beginning did not fit
};

struct ChoiceQuestion {
  std::vector<ChoiceRow> choices;
  size_t answer = 0;  ///< index of the right one
};

struct ChoiceTask {
  std::string file;
  std::vector<ChoiceQuestion> questions;
};

/// Reads the first `limit` (0: all) questions of a file, at most 1 GiB of it. The tokens are those of
/// EleutherAI's lm-evaluation-harness for causal models: a choice is joined to its question with one space; blanks at
/// the question's end go to the choice; question and both together are encoded, and what is behind the question's
/// number of tokens is the choice's. An empty question is the end-of-text token. Questions are cut at the left to fit
/// `max_seq_len` (of ids, one more: the last is only predicted). Throws usage Error with file and line for a line that
/// is not such an object, an answer that is no index of the choices, fewer than two choices, one that is empty, without
/// a token of its own or longer than the model's positions, and tokens outside the vocabulary; and for a file without
/// a question.
ChoiceTask read_choice_task(const std::filesystem::path& file, const Tokenizer& tokenizer, const ModelConfig& model,
                            int64_t limit = 0);

/// The part of a text before the blanks at its end (Unicode's White_Space and the ASCII separators 0x1C to 0x1F).
std::string_view without_trailing_blanks(std::string_view text);

/// A question and what comes after it, which begins with a space, as tokens.
struct TokenPair {
  std::vector<int32_t> context, continuation;
};
using EncodeText = std::function<std::vector<int32_t>(std::string_view)>;
TokenPair encode_pair(const EncodeText& encode, std::string_view context, std::string_view continuation);

}  // namespace mythos

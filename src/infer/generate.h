// Text from a model, token by token, with a key-value cache; several texts at once share each reading of the weights.
#pragma once

#include "infer/sampling.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

struct GenerateOptions {
  int64_t max_new_tokens = 32;
  int64_t n_loops = 0;  ///< 0: the model's max_loop_iters; may exceed it
  SamplingOptions sampling;
  uint64_t seed = 0;
  std::vector<std::string> stop;  ///< the text ends before the first of these; none may be empty
  bool adaptive = false;          ///< a new token's loops end when it halts (RecurrentBlock::adaptive); prompts run all
  int64_t prompt_chunk = 512;     ///< tokens of a prompt at once: more take more memory
  int64_t top_logits = 0;         ///< report so many of the largest logits with each choice; 0: none
  bool screen = true;             ///< logits of the likely tokens alone where that pays; texts are the same without
};

/// The largest logits that a token was chosen from, descending.
struct TopLogits {
  std::vector<int64_t> ids;
  std::vector<float> logits;
};

struct Generation {
  std::vector<int32_t> ids;  ///< new tokens, without the end of text that stopped it; with those of a stop string
  std::string text;          ///< what they say, up to a stop string
  std::vector<TopLogits> top_logits;  ///< where asked for: of every choice, also that of the end of text
  int64_t prompt_tokens = 0;
  bool ended = false;      ///< the model said end of text
  std::string stopped_by;  ///< the stop string that ended it
  double mean_loops = 0;   ///< of a new token
  double prompt_seconds = 0;
  double seconds = 0;  ///< for the new tokens
};

/// The ids a generation starts from: those of the prompt, or the end-of-text token for an empty one. Throws usage Error
/// for an empty prompt where the model has no end-of-text token, for a prompt and new tokens beyond max_seq_len, for a
/// token outside the model's vocabulary, and for options out of their range.
std::vector<int32_t> prompt_ids(const ModelConfig& model, const Tokenizer& tokenizer, std::string_view prompt,
                                const GenerateOptions& options);

/// Goes on after `prompt`. `on_text` (may be empty) gets the new text in pieces of whole UTF-8 characters as they come.
/// What prompt_ids refuses is refused before anything is computed. Tokens of the model's vocabulary that the tokenizer
/// does not know are never chosen. A stop signal ends it after the token in work. The same seed gives the same text.
Generation generate(Model& model, const Tokenizer& tokenizer, std::string_view prompt, const GenerateOptions& options,
                    const std::function<void(std::string_view)>& on_text = {});

/// The same for several prompts, which may differ in length. Each text is what generate() gives for its prompt alone,
/// with random numbers of its own (the first one's are those of generate()). `on_text` gets the prompt's index.
std::vector<Generation> generate_all(Model& model, const Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                                     const GenerateOptions& options,
                                     const std::function<void(size_t, std::string_view)>& on_text = {});

/// Hands text on in whole characters, and ends it before the first stop string.
class TextStream {
 public:
  TextStream(std::vector<std::string> stops, std::function<void(std::string_view)> sink);
  /// False when a stop string has come: what follows is dropped.
  bool add(std::string_view bytes);
  /// Hands on what was held back.
  void finish();
  [[nodiscard]] const std::string& stopped_by() const { return stopped_by_; }

 private:
  void flush(size_t n);
  std::vector<std::string> stops_;
  std::function<void(std::string_view)> sink_;
  std::string pending_, stopped_by_;
};

/// How many bytes at the end of `text` are the beginning of a UTF-8 character that is not complete yet (0 to 3).
size_t incomplete_utf8_tail(std::string_view text);

}  // namespace mythos

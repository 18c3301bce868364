// The parts of the table of keys (config/keys.h), and what they are written with.
#pragma once

#include "config/keys.h"

#include <limits>

namespace mythos::key_tables {

std::vector<KeySpec> model_keys();
std::vector<KeySpec> input_keys();  ///< [tokenizer] and [data]
std::vector<KeySpec> train_keys();
std::vector<KeySpec> output_keys();  ///< [checkpoint], [run], [log] and [cost]

// Where [train] lr lives: at<&RunConfig::train, &TrainSection::lr>.
template <auto Section, auto Field>
auto& at(RunConfig& config) {
  return (config.*Section).*Field;
}
template <auto Field>
auto& top(RunConfig& config) {
  return config.*Field;
}
constexpr double most_tokens = 1e15;
constexpr double most_steps = 1e9;
constexpr double most_in_step = 1e9;
constexpr double most_size = 1 << 24;  // of the model, as problems(ModelConfig) has it; so the next two
constexpr double most_layers = 1024;
constexpr double most_experts = 16384;
constexpr double most_money = 1e9;
constexpr double no_limit = std::numeric_limits<double>::infinity();

}  // namespace mythos::key_tables

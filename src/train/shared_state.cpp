#include "train/shared_state.h"

#include "infer/checkpoint_io.h"

namespace mythos {

std::unique_ptr<Sharding> sharding_of(const Run& run) {
  if (!run.team->several()) return nullptr;
  const auto& train = run.config.train;
  const int64_t group = train.sharding_group > 0 ? train.sharding_group : ranks_per_machine(*run.team->world());
  return std::make_unique<Sharding>(
      run.team->world(), sharding_mode_from(train.sharding),
      Sharding::Options{.group = group, .reduce_every_micro_step = train.reduce_gradients == "micro_step"});
}

std::vector<TensorBytes> whole_state(const Model& model, const AdamW& optimizer, Sharding* sharding,
                                     std::vector<at::Tensor>& copies) {
  if (sharding == nullptr) return training_tensors(model, optimizer, copies);
  std::vector<at::Tensor> values;
  for (size_t u = 0; u < model.parameters().units(); ++u) values.push_back(model.parameters().values(u));
  const WholeState whole{sharding->whole(values), sharding->whole(optimizer.first_moments()),
                         sharding->whole(optimizer.second_moments())};
  if (sharding->world().rank() != 0) return {};
  return training_tensors(model, whole, copies);
}

Json position_of_all(Team& team, const Json& own) {
  if (!team.several()) return own;
  std::vector<Json> of_ranks;
  for (const std::string& text : all_texts(*team.world(), own.dump())) of_ranks.push_back(Json::parse(text));
  return merge_positions(of_ranks);
}

std::optional<Checkpoint> newest_of_all(const Run& run, const std::filesystem::path& otherwise) {
  Team& team = *run.team;
  std::optional<Checkpoint> found;
  team.first_alone([&] {
    found = run.store->newest();
    if (!found && !otherwise.empty()) found = open_checkpoint(otherwise);
  });
  const std::string place = team.of_first(found ? found->path().string() : "");
  team.together([&] {
    if (!team.first() && !place.empty()) found = open_checkpoint(place);
  });
  return found;
}

}  // namespace mythos

#include "train/shared_state.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "infer/checkpoint_io.h"
#include "kernels/device.h"

#include <exception>
#include <random>
#include <span>

namespace mythos {

std::unique_ptr<Sharding> sharding_of(const Run& run) {
  if (!run.team->several()) return nullptr;
  const auto& train = run.config.train;
  const int64_t group = train.sharding_group > 0 ? train.sharding_group : ranks_per_machine(*run.team->world());
  return std::make_unique<Sharding>(
      run.team->world(), sharding_mode_from(train.sharding),
      Sharding::Options{.group = group, .reduce_every_micro_step = train.reduce_gradients == "micro_step"});
}

namespace {

constexpr const char* probe_name = ".seen_by_all_ranks";

std::vector<at::Tensor> own_values(const Model& model) {
  std::vector<at::Tensor> values;
  for (size_t u = 0; u < model.parameters().units(); ++u) values.push_back(model.parameters().values(u));
  return values;
}

std::string content_of(const std::filesystem::path& file) {
  try {
    return read_file(file, 4096);
  } catch (const Error&) {
    return "";
  }
}

// Adds what lies in this rank's part of buffers that are cut like the model's parameters; `first` is the number of the
// first of these tensors in the file.
void add_pieces(CheckpointShare& share, std::vector<at::Tensor>& copies, const ParameterStore& store,
                const std::vector<at::Tensor>& own, const CheckpointParts& parts, size_t first) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& t : on_host(own)) {
    const bool as_it_is = t.device().is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous();
    bytes.push_back(as_it_is ? t : t.to(at::kCPU, at::kFloat).contiguous());
    if (!as_it_is || !store.device().is_cpu()) copies.push_back(bytes.back());
  }
  const FlatLayout& layout = store.layout();
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const auto& place = layout.places[i];
    const auto u = static_cast<size_t>(place.unit);
    const int64_t begin = std::max(place.offset, store.own_begin(u));
    const int64_t end = std::min(place.offset + layout.parameters[i].numel(), store.own_begin(u) + store.shard(u));
    if (begin >= end) continue;
    const auto* data = bytes[u].const_data_ptr<float>() + (begin - store.own_begin(u));
    share.pieces.push_back({parts.offsets[first + i] + static_cast<uint64_t>(begin - place.offset) * sizeof(float),
                            std::as_bytes(std::span(data, static_cast<size_t>(end - begin)))});
  }
}

TrainingState share_of(const Run& run, const CheckpointMeta& meta, const Model& model, const AdamW& optimizer,
                       const Sharding& sharding) {
  Team& team = *run.team;
  TrainingState state;
  CheckpointShare share;
  std::exception_ptr error;
  if (team.first()) {
    try {
      share.whole = run.store->begin_shared(meta, sharding.writers());
      share.file = share.whole->temporary();
    } catch (const Error&) {
      error = std::current_exception();
    }
  }
  share.file = team.of_first(share.file.string());
  // The first rank's metadata is what comes before the tensors.
  CheckpointParts parts = checkpoint_parts(meta);
  const uint64_t header = parts.offsets[0];
  const auto begin = static_cast<uint64_t>(team.of_first(static_cast<int64_t>(header)));
  for (uint64_t& offset : parts.offsets) offset = offset - header + begin;
  if (error) std::rethrow_exception(error);
  if (share.file.empty() || team.rank() >= sharding.writers()) return state;
  share.rank = team.rank();
  const ParameterStore& store = model.parameters();
  const size_t parameters = store.layout().parameters.size();
  add_pieces(share, state.copies, store, own_values(model), parts, 0);
  const auto buffers = model.named_buffers();
  for (size_t i = 0; team.first() && i < buffers.size(); ++i) {
    state.copies.push_back(buffers[i].tensor.to(at::kCPU, at::kFloat, false, true).contiguous());
    const at::Tensor& t = state.copies.back();
    share.pieces.push_back(
        {parts.offsets[parameters + i], {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}});
  }
  add_pieces(share, state.copies, store, optimizer.first_moments(), parts, parameters + buffers.size());
  add_pieces(share, state.copies, store, optimizer.second_moments(), parts, 2 * parameters + buffers.size());
  state.share = std::move(share);
  return state;
}

}  // namespace

bool ranks_write_parts(const Run& run, const Sharding* sharding) {
  if (sharding == nullptr || sharding->writers() == 1) return false;
  Team& team = *run.team;
  if (team.of_first(run.store->takes_parts() ? 1 : 0) == 0) {
    if (team.first()) log::info("checkpoints are gathered by rank 0: {} takes no parts", run.store->dir().string());
    return false;
  }
  const std::filesystem::path probe = run.store->dir() / probe_name;
  const std::string text =
      team.of_first(fmt::format("{:016x}", std::random_device()() | uint64_t{std::random_device()()} << 32U));
  team.first_alone([&] { write_file_atomically(probe, text); });
  const bool seen = all_of(*team.world(), content_of(probe) == text);
  if (team.first()) {
    std::error_code ec;
    std::filesystem::remove(probe, ec);
    log::info("checkpoints are {}",
              seen ? fmt::format("written by {} ranks, each its part", sharding->writers())
                   : fmt::format("gathered by rank 0: not all ranks see {}", run.store->dir().string()));
  }
  return seen;
}

TrainingState state_to_save(const Run& run, const CheckpointMeta& meta, const Model& model, const AdamW& optimizer,
                            Sharding* sharding, bool parts) {
  TrainingState state;
  if (parts) return share_of(run, meta, model, optimizer, *sharding);
  if (sharding == nullptr) {
    state.tensors = training_tensors(model, optimizer, state.copies);
    return state;
  }
  const WholeState whole{sharding->whole(own_values(model)), sharding->whole(optimizer.first_moments()),
                         sharding->whole(optimizer.second_moments())};
  if (run.team->first()) state.tensors = training_tensors(model, whole, state.copies);
  return state;
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

#include "infer/convert.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/export.h"
#include "checkpoint/layout.h"
#include "config/run_config.h"
#include "infer/checkpoint_io.h"
#include "storage/storage.h"

#include <optional>
#include <utility>

namespace mythos {
namespace fs = std::filesystem;
namespace {

enum class Target { pt, safetensors, folder };

Target target_of(const fs::path& out) {
  const std::string extension = out.extension().string();
  if (extension == ".pt" || extension == ".pth") return Target::pt;
  if (extension == ".safetensors") return Target::safetensors;
  std::error_code ec;
  if (!out.has_filename() || fs::is_directory(out, ec) || extension.empty()) return Target::folder;
  throw usage_error(fmt::format("{} is neither a .pt nor a .safetensors file, nor a folder", out.string()),
                    "name the output NAME.pt, NAME.safetensors, or a folder");
}

void require_free(const fs::path& path, const fs::path& in, bool force) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(path, ec))) return;
  if (fs::equivalent(path, in, ec)) throw usage_error(fmt::format("{} would replace itself", in.string()));
  if (fs::is_directory(path, ec)) throw usage_error(fmt::format("{} is a folder", path.string()));
  if (!force) throw usage_error(fmt::format("{} is there already", path.string()), "replace it with --force");
}

ModelState read_input(const fs::path& in) {
  std::error_code ec;
  if (!fs::exists(in, ec) || fs::is_directory(in, ec)) return state_of(open_checkpoint(in));  // a run, S3, or nothing
  return read_model_state(in);
}

void drop_optimizer(ModelState& state) {
  if (!state.has_optimizer) return;
  state.tensors.resize(weight_tensors(state.meta.model).size());
  for (TensorBytes& t : state.tensors) t.name.erase(0, model_prefix.size());
  state.has_optimizer = false;
}

PtOptimizer optimizer_settings(const ModelState& state) {
  PtOptimizer o;
  if (!state.has_optimizer) return o;
  const TrainSection train = parse_config(state.meta.config, "the checkpoint's config", "run").train;
  o.lr = train.lr;
  o.beta1 = train.betas.at(0);
  o.beta2 = train.betas.at(1);
  o.eps = train.eps;
  o.weight_decay = train.weight_decay;
  return o;
}

// The tokenizer's file for an exported folder: the one given, or the one that the checkpoint names if it is there.
std::optional<fs::path> tokenizer_file(const CheckpointMeta& meta, const std::string& given) {
  std::string path = given;
  if (path.empty()) path = parse_config(meta.config, "the checkpoint's config", "run").tokenizer.path;
  std::error_code ec;
  if (!path.empty() && !is_address(path) && fs::is_regular_file(path, ec)) {
    load_tokenizer_of(meta, path);  // is it the model's?
    return path;
  }
  if (!given.empty()) throw usage_error(fmt::format("the tokenizer {} is not a file here", given));
  log::warn("no tokenizer is written: {}", path.empty() ? "the checkpoint names none" : path + " is not a file here");
  log::info("--tokenizer FILE adds it");
  return std::nullopt;
}

void write_weights(const ModelState& state, bool both_heads, const fs::path& path) {
  if (both_heads) return export_state_dict(state, path);
  export_checkpoint(state, path);
}

// All of its files or none: what was not there before is removed again.
void write_folder(const ModelState& state, const fs::path& in, const fs::path& out, const ConvertOptions& options,
                  Conversion& done) {
  const auto tokenizer = tokenizer_file(state.meta, options.tokenizer);
  done.made = "a folder of weights";
  done.files.push_back(out / "config.json");
  if (tokenizer) done.files.push_back(out / tokenizer->filename());
  std::error_code ec;
  std::vector<fs::path> created;
  for (const fs::path& file : done.files) {
    require_free(file, in, options.force);
    if (!fs::exists(file, ec)) created.push_back(file);
  }
  make_folder(out);
  try {
    export_config(state.meta.model, done.files[1]);
    if (tokenizer) write_file_atomically(done.files[2], read_file(*tokenizer));
    write_weights(state, options.both_heads, done.files[0]);
  } catch (...) {
    for (const fs::path& file : created) fs::remove(file, ec);
    fs::remove(out, ec);  // if it is empty
    throw;
  }
}

}  // namespace

Conversion convert(const fs::path& in, const fs::path& out, const ConvertOptions& options) {
  const Target target = target_of(out);
  if (options.both_heads && target == Target::pt) {
    throw usage_error(
        "--both-heads is for .safetensors: a .pt file always has the head, sharing the embedding's bytes");
  }
  const fs::path weights = target == Target::folder ? out / "model.safetensors" : out;
  require_free(weights, in, options.force);
  ModelState state = read_input(in);
  const bool from_pt = is_imported(state.meta) && ZipFile::looks_like_one(in);
  const bool all = target == Target::pt || (target == Target::safetensors && from_pt && !options.both_heads);
  if (options.weights_only || !all) drop_optimizer(state);

  Conversion done{.made = "weights", .has_optimizer = state.has_optimizer, .meta = state.meta, .files = {weights}};
  if (target == Target::pt) {
    done.made = state.has_optimizer ? "a .pt file with its optimizer" : "a .pt file of weights";
    export_pt(state, optimizer_settings(state), out);
    return done;
  }
  if (target == Target::folder) {
    write_folder(state, in, out, options, done);
    return done;
  }
  if (!options.tokenizer.empty()) load_tokenizer_of(state.meta, options.tokenizer);
  if (state.has_optimizer) done.made = "a checkpoint";
  write_weights(state, options.both_heads, out);
  return done;
}

}  // namespace mythos

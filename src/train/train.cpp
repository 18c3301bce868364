// `mythos train` from request to result.
#include "base/log.h"
#include "train/trainer.h"

#include <cmath>

namespace mythos {

TrainResult train(const TrainRequest& request, const std::shared_ptr<Team>& team) {
  Run run = prepare_run(request, team);
  if (!run.finished) return train(run);
  const CheckpointMeta& meta = run.checkpoint->meta;
  log::info("the run in {} is finished: {} of {} steps; more steps with --steps N --force, a new run with --fresh",
            run.dir.string(), meta.step, run.batch.steps);
  return {.exit_code = 0,
          .finished = true,
          .step = meta.step,
          .steps = run.batch.steps,
          .tokens = meta.tokens,
          .loss = meta.state.value("loss", std::nan("")),
          .run = run.dir,
          .checkpoint = run.checkpoint->path()};
}

Json to_json(const TrainResult& r) {
  return {{"run", r.run.string()},
          {"finished", r.finished},
          {"step", r.step},
          {"steps", r.steps},
          {"tokens", r.tokens},
          {"loss", std::isfinite(r.loss) ? Json(r.loss) : Json(nullptr)},
          {"checkpoint", r.checkpoint.empty() ? Json(nullptr) : Json(r.checkpoint.string())}};
}

}  // namespace mythos

#include "train/agreement.h"

#include "base/signals.h"

#include <algorithm>
#include <exception>

namespace mythos {
namespace {

// Beyond every signal.
constexpr int64_t data_ended = 1000, read_failed = 1001;

}  // namespace

int Agreement::stop_signal() const { return team_.several() ? stop_ : mythos::stop_signal(); }

Read Agreement::read(const std::function<Read()>& rows) {
  if (!team_.several()) return rows();
  Read own = Read::whole;
  std::optional<Error> error;
  try {
    own = rows();
  } catch (const Error& e) {
    error = e;
  } catch (const std::exception& e) {
    error = failure(e.what());
  }
  // With a stop asked for, reading is given up with an error or without.
  int64_t vote = mythos::stop_signal();
  if (vote == 0 && error) vote = read_failed;
  if (vote == 0 && own == Read::ended) vote = data_ended;
  const auto votes = all_numbers(*team_.world(), std::vector<int64_t>{vote});
  const auto worst = std::max_element(votes.begin(), votes.end());
  if ((*worst)[0] == 0) return Read::whole;
  if ((*worst)[0] == data_ended) return Read::ended;
  if ((*worst)[0] != read_failed) {
    stop_ = static_cast<int>((*worst)[0]);
    return Read::stopped;
  }
  const int64_t who = worst - votes.begin();
  const std::string why = text_of(*team_.world(), who, error ? error->line() : "");
  if (error) throw Error(*error);
  throw PeerFailed(ExitCode::failed, who, why);
}

Agreement::Wishes Agreement::after_step(const Wishes& own) {
  if (!team_.several()) return own;
  Wishes wishes;
  const std::vector<int64_t> numbers{mythos::stop_signal(), own.save ? 1 : 0, own.limit ? 1 : 0, own.part_lost ? 1 : 0};
  for (const auto& of_rank : all_numbers(*team_.world(), numbers)) {
    stop_ = std::max(stop_, static_cast<int>(of_rank[0]));
    wishes.save = wishes.save || of_rank[1] != 0;
    wishes.limit = wishes.limit || of_rank[2] != 0;
    wishes.part_lost = wishes.part_lost || of_rank[3] != 0;
  }
  return wishes;
}

}  // namespace mythos

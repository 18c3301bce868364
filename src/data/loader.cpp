#include "data/loader.h"

#include "base/error.h"
#include "base/signals.h"
#include "base/units.h"
#include "data/lane.h"
#include "storage/storage.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

namespace mythos {
namespace {

void check_separator(const DataOptions& options, const Encoder& encoder) {
  if (!options.document_separator) return;
  if (!encoder.end_of_text) {
    throw usage_error("data.document_separator needs an end-of-text token and the tokenizer has none",
                      "set data.document_separator to false, or use another tokenizer");
  }
  const int64_t id = *encoder.end_of_text;
  if (options.vocab_size > 0 && id >= options.vocab_size) {
    throw usage_error(
        fmt::format("data.document_separator puts id {} between documents, and the model's vocabulary of {} "
                    "does not hold it",
                    id, with_commas(options.vocab_size)),
        fmt::format("set model.vocab_size to {}", id + 1));
  }
}

void check_ranks(const DataOptions& options, const UnitSequence& sequence, const std::string& name) {
  if (options.world <= sequence.lanes()) return;
  const std::string what = fmt::format("{} ranks cannot share {} lanes", options.world, sequence.lanes());
  const UnitSequence::Unit last = sequence.at(options.world - 1);
  if (last.epoch == 0 && !last.empty) {
    throw usage_error(what, fmt::format("set data.lanes to {} or more", options.world));
  }
  const int64_t units = *sequence.units();
  throw usage_error(what + fmt::format(": {} has only {} unit{} of reading", name, units, units == 1 ? "" : "s"),
                    fmt::format("use at most {} rank{}, or data with more row groups", units, units == 1 ? "" : "s"));
}

void check_tokenizer(const Corpus& corpus, const Encoder& encoder) {
  if (corpus.tokenizer().empty() || corpus.tokenizer() == encoder.fingerprint) return;
  throw usage_error(fmt::format("{} was prepared with another tokenizer (fingerprint {}, not {})", corpus.name(),
                                corpus.tokenizer(), encoder.fingerprint),
                    "name that tokenizer, or prepare the source with this one");
}

// What a saved position must agree with.
Json identity_of(const Sources& sources, const DataOptions& options, const Encoder& encoder) {
  Json manifests = Json::array();
  Json ends = Json::array();
  for (const auto& corpus : sources.corpora) {
    Json manifest = corpus->manifest();
    ends.push_back(manifest["ends"]);
    manifest.erase("ends");
    manifests.push_back(std::move(manifest));
  }
  Json identity{{"sources", std::move(manifests)},
                {"weights", options.weights},
                {"text_column", options.text_column},
                {"tokenizer", encoder.fingerprint},
                {"seq_len", options.seq_len},
                {"lanes", options.lanes},
                {"document_separator", options.document_separator},
                {"held_out_documents", options.validation_sources.empty() ? options.validation_documents : 0},
                {"shuffle", options.shuffle}};
  if (options.shuffle) identity["seed"] = options.seed;
  // Data that moved to another kind of place is the same data.
  if (std::ranges::find(ends, Json(nullptr)) == ends.end()) identity["ends_of_files"] = std::move(ends);
  return identity;
}

}  // namespace

struct RowLoader::Impl {
  // What a lane has ready: a row and where the lane stands behind it, or its end, or what went wrong.
  struct Item {
    std::vector<int32_t> ids;
    Lane::State after;
    bool end = false;
    std::exception_ptr error;
  };
  struct Turn {
    std::optional<Lane> lane;  // empty: another rank's
    std::deque<Item> ready;
    bool busy = false;   // a worker is at it
    bool ended = false;  // nothing more will come
    // The consumer's side.
    bool finished = false;
    std::optional<Lane::State> state;
  };
  struct Source {
    std::shared_ptr<const Corpus> corpus;
    std::unique_ptr<UnitSequence> sequence;
  };

  Impl(Sources given, DataOptions wanted, Encoder tokenizer, const Json* saved)
      : options((check(wanted), std::move(wanted))),
        encoder(std::move(tokenizer)),
        storage(given.storage),
        bad(options.on_bad_data),
        identity(identity_of(given, options, encoder)) {
    check_separator(options, encoder);
    LoaderPosition start;
    if (saved != nullptr) start = position_from_json(*saved, identity, given.corpora.size());
    const bool mixed = given.corpora.size() > 1;
    for (size_t s = 0; s < given.corpora.size(); ++s) {
      Source& source = sources.emplace_back();
      source.corpus = given.corpora[s];
      check_tokenizer(*source.corpus, encoder);
      if (saved != nullptr) {
        const Json& end = start.held_out_ends[s];
        source.corpus->set_training_begin({end[0].get<size_t>(), end[1].get<int64_t>(), end[2].get<int64_t>()});
      }
      std::optional<UnitSequence::Saved> known;
      if (saved != nullptr) {
        known = {static_cast<int64_t>(start.lanes.size()), std::nullopt, start.hindmost(s)};
        if (start.units[s] >= 0) known->units = start.units[s];
      }
      source.sequence = std::make_unique<UnitSequence>(*source.corpus, options.lanes, options.shuffle, options.seed,
                                                       mixed, known ? &*known : nullptr);
    }
    n_lanes = sources.front().sequence->lanes();
    check_ranks(options, *sources.front().sequence, sources.front().corpus->name());
    if (saved == nullptr) {
      check_one_row();
      LoaderPosition::Lane none{0, std::vector<LanePosition>(sources.size())};
      for (int64_t lane = 0; lane < n_lanes; ++lane) {
        for (LanePosition& p : none.sources) p.slot = lane;
        start.lanes.emplace_back(none);
      }
    }
    rows = start.rows;
    turn = committed_turn = start.turn;
    turns = std::vector<Turn>(static_cast<size_t>(n_lanes));
    for (size_t i = 0; i < turns.size(); ++i) {
      if (!is_ours(static_cast<int64_t>(i))) continue;
      if (!start.lanes[i]) {
        throw failure("the saved data position is that of one rank and lacks lanes that are needed here",
                      "merge the positions of all ranks");
      }
      std::vector<LaneStream> streams;
      for (size_t s = 0; s < sources.size(); ++s) {
        streams.emplace_back(shared(*sources[s].corpus, *sources[s].sequence, bad, options),
                             start.lanes[i]->sources[s]);
      }
      turns[i].lane.emplace(static_cast<int64_t>(i), n_lanes, options.weights, std::move(streams),
                            start.lanes[i]->rows);
      turns[i].state = turns[i].lane->state();
    }
  }

  // Apart from the constructor: nothing is read ahead before the first row is asked for.
  void start_workers() {
    if (options.prefetch == 0 || !threads.empty()) return;
    for (int i = 0; i < options.workers; ++i) threads.emplace_back([this] { work(); });
  }

  ~Impl() {
    stop.request_stop();
    { const std::lock_guard lock(mutex); }
    room.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  LaneStream::Shared shared(const Corpus& corpus, const UnitSequence& sequence, BadData& sink,
                            const DataOptions& how) const {
    return {corpus, how, encoder, sequence, sink, stop.get_token()};
  }

  // Whether this rank hands out rows of a lane. The j-th row from here is rank j mod world's, from lane (turn + j) mod
  // lanes; with `epochs` lanes drop out of the turn, and when they do can only be known by reading them all.
  [[nodiscard]] bool is_ours(int64_t lane) const {
    if (options.epochs > 0) return true;
    const int64_t common = std::gcd(n_lanes, options.world);
    return (lane - turn - options.rank) % common == 0;
  }

  // Reads each source in order until one row is full.
  void check_one_row() {
    DataOptions once = options;
    once.epochs = 1;
    once.shuffle = false;
    for (const Source& source : sources) {
      const UnitSequence straight(*source.corpus, 1, false, 0);
      BadData quiet(options.on_bad_data, true);
      LaneStream stream(shared(*source.corpus, straight, quiet, once), LanePosition{});
      std::vector<int32_t> row(static_cast<size_t>(options.seq_len) + 1);
      if (stream.fill(row) == LaneStream::Status::row) continue;
      throw usage_error(fmt::format("{} has {} tokens to train on in {} documents, less than one row of {}",
                                    source.corpus->name(), with_commas(stream.left_over()),
                                    with_commas(source.corpus->totals().documents), with_commas(options.seq_len + 1)),
                        stream.left_over() >= 2
                            ? fmt::format("add text, or set train.seq_len to {} or less", stream.left_over() - 1)
                            : "add text");
    }
  }

  Item produce(Lane& lane) const {
    Item item;
    item.ids.resize(static_cast<size_t>(options.seq_len) + 1);
    try {
      item.end = lane.fill(item.ids) != LaneStream::Status::row;
      item.after = lane.state();
    } catch (...) {
      item.error = std::current_exception();
    }
    return item;
  }

  // A worker serves the lane that runs dry first: the one with the fewest rows ready, the next in turn among equals.
  // Which lane is served when changes nothing but what is ready.
  Turn* lane_to_serve() {
    Turn* best = nullptr;
    for (size_t k = 0; k < turns.size(); ++k) {
      Turn& lane = turns[(static_cast<size_t>(turn) + k) % turns.size()];
      if (!lane.lane || lane.busy || lane.ended || std::ssize(lane.ready) >= options.prefetch) continue;
      if (best == nullptr || lane.ready.size() < best->ready.size()) best = &lane;
    }
    return best;
  }

  void work() {
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      Turn* lane = lane_to_serve();
      if (lane == nullptr) {
        room.wait(lock);
        continue;
      }
      lane->busy = true;
      lock.unlock();
      Item item = produce(*lane->lane);
      lock.lock();
      lane->busy = false;
      lane->ended = item.end || item.error;
      lane->ready.push_back(std::move(item));
      ready.notify_one();
    }
  }

  Item take(Turn& lane) {
    if (options.prefetch == 0) return produce(*lane.lane);
    start_workers();
    std::unique_lock lock(mutex);
    // A stop by signal need not wait for data that does not come.
    while (!ready.wait_for(lock, std::chrono::milliseconds(100), [&] { return !lane.ready.empty(); })) {
      if (stop_requested()) throw Stopped("stopped while waiting for data");
    }
    Item item = std::move(lane.ready.front());
    lane.ready.pop_front();
    lock.unlock();
    room.notify_one();
    return item;
  }

  // The turn is read by workers too.
  void pass_turn() {
    const std::lock_guard lock(mutex);
    turn = (turn + 1) % n_lanes;
  }

  // The next global row; false when all lanes have ended. An item without ids stands for a row of another rank's lane.
  bool next_global(Item& item, size_t& lane_index) {
    for (int64_t tried = 0; tried < n_lanes; ++tried) {
      lane_index = static_cast<size_t>(turn);
      Turn& lane = turns[lane_index];
      if (lane.finished) {
        pass_turn();
        continue;
      }
      if (!lane.lane) {
        item = {};
        pass_turn();
        return true;
      }
      item = take(lane);
      if (item.error) {
        error = item.error;
        std::rethrow_exception(error);
      }
      pass_turn();
      if (!item.end) return true;
      lane.finished = true;
    }
    return false;
  }

  bool next(std::span<int32_t> row) {
    if (error) std::rethrow_exception(error);
    if (ended) return false;
    if (std::ssize(row) != options.seq_len + 1) {
      throw failure(fmt::format("a row has {} ids, not {}", options.seq_len + 1, row.size()));
    }
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::pair<size_t, Lane::State>> passed;
    for (int64_t j = 0; j < options.world; ++j) {
      Item item;
      size_t lane = 0;
      if (!next_global(item, lane)) {
        ended = true;
        if (rows == 0) throw_no_rows();
        return false;
      }
      if (turns[lane].lane) passed.emplace_back(lane, item.after);
      if (j == options.rank) std::copy(item.ids.begin(), item.ids.end(), row.begin());
    }
    for (auto& [lane, after] : passed) turns[lane].state = std::move(after);
    rows += options.world;
    committed_turn = turn;
    waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return true;
  }

  void throw_no_rows() {
    error = std::make_exception_ptr(usage_error(
        fmt::format("{} gives no row of {} ids for each of {} ranks: its text is spread over {} lanes",
                    sources.front().corpus->name(), with_commas(options.seq_len + 1), options.world, n_lanes),
        "lower data.lanes or train.seq_len, raise data.epochs, or add text"));
    std::rethrow_exception(error);
  }

  DataOptions options;
  Encoder encoder;
  std::shared_ptr<Storage> storage;
  std::vector<Source> sources;
  BadData bad;
  Json identity;
  std::stop_source stop;
  int64_t n_lanes = 1;

  std::mutex mutex;               // guards what workers and next() share: ready, busy, ended, turn
  std::condition_variable room;   // a worker may go on
  std::condition_variable ready;  // a row is there
  std::vector<Turn> turns;
  int64_t turn = 0;

  int64_t committed_turn = 0;
  int64_t rows = 0;
  bool ended = false;
  std::exception_ptr error;
  double waited = 0;
  std::vector<std::thread> threads;
};

Sources open_sources(const DataOptions& wanted) {
  Sources sources;
  DataOptions options = wanted;
  if (!options.storage) options.storage = std::make_shared<Storage>();
  sources.storage = options.storage;
  check(options);
  if (options.weights.empty() || options.sources.size() == 1) {
    sources.corpora.push_back(std::make_shared<const Corpus>(options));
    return sources;
  }
  const double all = std::accumulate(options.weights.begin(), options.weights.end(), 0.0);
  int64_t left = wanted.validation_documents;
  for (size_t s = 0; s < wanted.sources.size(); ++s) {
    options.sources = {wanted.sources[s]};
    options.validation_documents = std::min(
        left,
        static_cast<int64_t>(std::llround(static_cast<double>(wanted.validation_documents) * wanted.weights[s] / all)));
    if (s + 1 == wanted.sources.size()) options.validation_documents = left;
    left -= options.validation_documents;
    sources.corpora.push_back(std::make_shared<const Corpus>(options));
  }
  return sources;
}

RowLoader::RowLoader(Sources sources, DataOptions options, Encoder encoder, const Json* position)
    : impl_(std::make_unique<Impl>(std::move(sources), std::move(options), std::move(encoder), position)) {}

RowLoader::RowLoader(std::shared_ptr<const Corpus> corpus, DataOptions options, Encoder encoder, const Json* position)
    : RowLoader(Sources{{std::move(corpus)}, options.storage}, options, std::move(encoder), position) {}

RowLoader::RowLoader(DataOptions options, Encoder encoder, const Json* position)
    : RowLoader(open_sources(options), options, std::move(encoder), position) {}

RowLoader::~RowLoader() = default;

bool RowLoader::next(std::span<int32_t> row) { return impl_->next(row); }

Json RowLoader::position() const {
  LoaderPosition position;
  position.rows = impl_->rows;
  position.turn = impl_->committed_turn;
  if (impl_->storage) position.commits = impl_->storage->commits();
  for (const auto& source : impl_->sources) {
    const Corpus::Place begin = source.corpus->training_begin();
    position.held_out_ends.push_back(Json::array({begin.file, begin.part, begin.document}));
    position.units.push_back(-1);
  }
  for (const Impl::Turn& turn : impl_->turns) {
    auto& lane = position.lanes.emplace_back();
    if (!turn.state) continue;
    lane = {turn.state->rows, turn.state->sources};
    for (size_t s = 0; s < impl_->sources.size(); ++s) {
      // Known by then, since the unit was found.
      const auto& bookmark = lane->sources[s].bookmark;
      if (bookmark && bookmark->is_object() && (*bookmark)["epoch"] != 0) {
        position.units[s] = impl_->sources[s].sequence->units().value_or(-1);
      }
    }
  }
  return to_json(position, impl_->identity);
}

int64_t RowLoader::rows() const { return impl_->rows; }

DataTotals RowLoader::totals() const {
  DataTotals totals;
  for (const Impl::Turn& turn : impl_->turns) {
    if (!turn.state) continue;
    for (const LanePosition& source : turn.state->sources) totals += source.totals;
  }
  return totals;
}

int64_t RowLoader::epoch() const {
  int64_t epoch = INT64_MAX;
  for (const Impl::Turn& turn : impl_->turns) {
    if (!turn.state) continue;
    for (size_t s = 0; s < impl_->sources.size(); ++s) {
      epoch = std::min(epoch, impl_->sources[s].sequence->epoch_of(turn.state->sources[s].slot));
    }
  }
  return epoch;
}

int64_t RowLoader::lanes() const { return impl_->n_lanes; }

double RowLoader::seconds_waited() const { return impl_->waited; }

}  // namespace mythos

// How storage/s3.cpp talks to Arrow's S3: calls that can be stopped, retries, and errors in words.
#pragma once

#include "base/error.h"

#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <arrow/util/future.h>
#include <arrow/util/thread_pool.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

namespace mythos {

/// What a failed S3 call amounts to.
enum class S3Trouble {
  none,
  no_bucket,
  no_key,
  denied,
  bad_credentials,
  expired,
  wrong_region,
  clock,
  certificate,
  unreachable,  ///< may pass
  busy,         ///< the server is overloaded or broken: may pass
  other,
};
S3Trouble s3_trouble(const arrow::Status& status);

/// Requests for an object itself are refused without a word why (HEAD has no body, and Arrow does not let the SDK read
/// that of a GET). Where `status` is such a refusal, what a listing at `path` ("BUCKET/KEY") is refused with, else
/// `status`.
arrow::Status clearer_s3_status(arrow::fs::S3FileSystem& system, const std::string& path, const arrow::Status& status);

/// The sentence for a person: what was done to which address, why it failed, what to do. Never holds a secret.
Error s3_error(const arrow::Status& status, const std::string& doing, const std::string& address);

/// Throws Stopped "DOING ADDRESS was stopped" if `stop` or a signal asks for it.
void check_s3_stop(const std::stop_token& stop, const std::string& doing, const std::string& address);

/// Waits for `future` for at most two minutes, and throws Stopped as soon as that is asked for; the call itself then
/// ends in the background.
template <class T>
arrow::Result<T> await_s3(const arrow::Future<T>& future, const std::stop_token& stop, const std::string& doing,
                          const std::string& address) {
  for (int tenths = 0; !future.Wait(0.1); ++tenths) {
    check_s3_stop(stop, doing, address);
    if (tenths > 1200) return arrow::Status::IOError("AWS Error NETWORK_CONNECTION: no answer within two minutes");
  }
  return future.result();
}

/// Runs `call` (which must own what it uses) in the background and waits for it as above.
template <class Call, class Result = std::invoke_result_t<Call>>
Result call_s3(Call call, const std::stop_token& stop, const std::string& doing, const std::string& address) {
  auto* const executor = arrow::io::default_io_context().executor();
  ARROW_ASSIGN_OR_RAISE(auto future, executor->Submit(std::move(call)));
  return await_s3(future, stop, doing, address);
}

/// How long what may pass is tried again: `attempts` in all, with pauses that double from half a second to 15 seconds.
struct S3Patience {
  int attempts;
};
/// To begin with, an error soon is better; half a minute and more of outage should not end a run that is under way.
constexpr S3Patience s3_first_contact{3};
constexpr S3Patience s3_under_way{9};

/// Waits before attempt `attempt` + 1, or throws Stopped.
void pause_s3(int attempt, const std::stop_token& stop, const std::string& doing, const std::string& address,
              const arrow::Status& status);

/// Calls `call` until it succeeds, fails for good, or has failed too often; gives its last result.
template <class Call, class Result = std::invoke_result_t<Call>>
Result retry_s3(S3Patience patience, const std::stop_token& stop, const std::string& doing, const std::string& address,
                Call call) {
  for (int attempt = 1;; ++attempt) {
    check_s3_stop(stop, doing, address);
    Result result = call();
    const S3Trouble trouble = s3_trouble(result.status());
    const bool may_pass = trouble == S3Trouble::unreachable || trouble == S3Trouble::busy;
    if (!may_pass || attempt >= patience.attempts) return result;
    pause_s3(attempt, stop, doing, address, result.status());
  }
}

}  // namespace mythos

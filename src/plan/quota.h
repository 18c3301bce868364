// What a cloud account may start: AWS's GPU quotas, what is known of requests to raise them, and the requests to make.
#pragma once

#include "base/json.h"
#include "plan/hardware.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mythos {

struct Quota {
  std::string name, code;
  std::string family;  ///< "G and VT", "P"
  bool spot = false;
  std::string form_service, form_instances, form_limit;  ///< the fields of the request's form
};

/// One request as it was made; units are vCPUs.
struct QuotaRequest {
  std::string region, date, code;
  int64_t asked = 0, granted = 0;  ///< granted 0: refused
  std::optional<double> hours;     ///< until the answer
  [[nodiscard]] bool approved() const { return granted >= asked; }
};

class QuotaBook {
 public:
  /// configs/quotas.toml as it was compiled in.
  static QuotaBook built_in();
  /// Throws usage Error naming the entry and field that is wrong.
  static QuotaBook parse(std::string_view text, const std::string& name);

  [[nodiscard]] const std::vector<Quota>& quotas() const { return quotas_; }
  [[nodiscard]] const std::vector<QuotaRequest>& requests() const { return requests_; }
  /// Null if there is none for the family.
  [[nodiscard]] const Quota* find(const std::string& family, bool spot) const;

 private:
  std::vector<Quota> quotas_;
  std::vector<QuotaRequest> requests_;
};

struct QuotaAdvice {
  Quota quota;
  std::string region, instance, gpu;
  int64_t vcpus_needed = 0;
  std::vector<int64_t> ladder;        ///< values to ask for, one after another; empty: through the account team
  std::string ladder_from;            ///< the region whose answers it follows; empty: nothing is known of this quota
  std::optional<int64_t> most_known;  ///< the most this region is known to have granted
  std::vector<QuotaRequest> known;    ///< requests for this quota, this region's first
  std::string likelier_region;        ///< where more was granted; empty: none is known
  std::optional<double> present;      ///< the account's quota as `aws` told it
};

/// Nothing for an instance that needs no quota.
std::optional<QuotaAdvice> advise_quota(const QuotaBook& book, const Instance& instance, const std::string& region,
                                        bool spot);

/// What a request should say of a run: `work` in one sentence, hours and dollars where they are known.
struct QuotaUse {
  std::string work;
  double hours = 0;
  double dollars = 0;
};
std::string quota_text(const QuotaAdvice& advice, const QuotaUse& use);
/// {name, code, unit, vcpus_needed, region, spot, ladder, known_requests, commands, use_case, present}
Json to_json(const QuotaAdvice& advice, const QuotaUse& use);
/// The text for the form's field "use case".
std::string use_case_text(const QuotaAdvice& advice, const QuotaUse& use);

/// The account's present quota, asked of the `aws` command on the PATH with AWS_PAGER off. It reads and never requests.
/// Throws Error where there is no such command, it fails (with its first line), or answers with something else.
double present_quota(const Quota& quota, const std::string& region);

}  // namespace mythos

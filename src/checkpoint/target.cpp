#include "checkpoint/target.h"

#include "checkpoint/local_target.h"
#include "checkpoint/s3_target.h"
#include "storage/s3.h"

namespace mythos {

std::unique_ptr<CheckpointTarget> CheckpointTarget::at(const std::string& address, double patience) {
  if (is_s3_address(address)) return std::make_unique<S3Target>(address, patience);
  return std::make_unique<LocalTarget>(address);
}

}  // namespace mythos

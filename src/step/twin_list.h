// The twins by topic; twin_ops() of step/twins.h is all of them.
#pragma once

#include "step/twins.h"

namespace mythos {

std::vector<TwinOp> loop_twins();
std::vector<TwinOp> loss_twins();
std::vector<TwinOp> moe_twins();
std::vector<TwinOp> norm_twins();
std::vector<TwinOp> swiglu_twins();
std::vector<TwinOp> attention_twins();

}  // namespace mythos

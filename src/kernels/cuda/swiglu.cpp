#include "kernels/cuda/swiglu.h"

#include "kernels/cuda/ops.h"
#include "kernels/cuda/place.h"

namespace mythos::cuda {

at::Tensor swiglu_forward(const at::Tensor& joined_) {
  const at::Tensor joined = joined_.contiguous();
  const at::Tensor act = at::empty({joined.size(0), joined.size(1) / 2}, joined.options());
  SwigluArgs a;
  a.type = type_of(joined);
  a.rows = act.size(0);
  a.width = act.size(1);
  a.joined = joined.const_data_ptr();
  a.act = act.data_ptr();
  swiglu_forward(a, place_of(joined));
  return act;
}

SwigluBackward swiglu_backward(const at::Tensor& joined_, const at::Tensor& dy_, const at::Tensor& scale_) {
  const at::Tensor joined = joined_.contiguous();
  const at::Tensor dy = of_type(dy_, joined.scalar_type()).contiguous();
  const auto wide = accumulate_type(joined.scalar_type());
  const at::Tensor scale = scale_.defined() ? of_type(scale_, wide).contiguous() : at::Tensor();
  SwigluBackward r;
  r.act = at::empty_like(dy);
  r.djoined = at::empty_like(joined);
  if (scale.defined()) r.dscale = at::empty({joined.size(0)}, joined.options().dtype(wide));
  SwigluBackwardArgs b;
  b.type = type_of(joined);
  b.rows = dy.size(0);
  b.width = dy.size(1);
  b.joined = joined.const_data_ptr();
  b.dy = dy.const_data_ptr();
  b.scale = scale.defined() ? scale.const_data_ptr() : nullptr;
  b.act = r.act.data_ptr();
  b.djoined = r.djoined.data_ptr();
  b.dscale = r.dscale.defined() ? r.dscale.data_ptr() : nullptr;
  swiglu_backward(b, place_of(joined));
  return r;
}

}  // namespace mythos::cuda

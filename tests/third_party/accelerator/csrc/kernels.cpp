// Kernels of its own.
#include "nova.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/BFloat16.h>
#include <torch/library.h>

#include <cmath>

namespace nova {
namespace {

// One pass over each row for the sum and its square, one for the norm: the row stays in the nearest cache.
template <class T>
void add_rms_norm_row(const T* x, const T* residual, const T* weight, float eps, int64_t size, T* normed, T* total) {
  float squares = 0;
  for (int64_t i = 0; i < size; ++i) {
    total[i] = static_cast<T>(static_cast<float>(x[i]) + static_cast<float>(residual[i]));
    const auto value = static_cast<float>(total[i]);
    squares += value * value;
  }
  const float scale = 1 / std::sqrt(squares / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < size; ++i) {
    const auto scaled = static_cast<T>(static_cast<float>(total[i]) * scale);
    normed[i] = static_cast<T>(static_cast<float>(weight[i]) * static_cast<float>(scaled));
  }
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_, const at::Tensor& residual_,
                                                const at::Tensor& weight, double eps) {
  const auto x = x_.contiguous(), residual = residual_.contiguous();
  TORCH_CHECK(x.sizes() == residual.sizes() && weight.dim() == 1 && weight.size(0) == x.size(-1) &&
                  weight.is_contiguous(),
              "add_rms_norm: x ", x.sizes(), ", residual ", residual.sizes(), " and weight ", weight.sizes(),
              " don't belong together");
  TORCH_CHECK(x.dtype() == residual.dtype() && x.dtype() == weight.dtype(), "add_rms_norm: one dtype, not ", x.dtype(),
              ", ", residual.dtype(), " and ", weight.dtype());
  count(Count::Launches, "nova::add_rms_norm");
  auto normed = at::empty_like(x), total = at::empty_like(x);
  const int64_t size = x.size(-1), rows = size ? x.numel() / size : 0;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const auto *in = x.const_data_ptr<T>(), *add = residual.const_data_ptr<T>(), *scale = weight.const_data_ptr<T>();
    auto *out = normed.mutable_data_ptr<T>(), *sum = total.mutable_data_ptr<T>();
    at::parallel_for(0, rows, /*grain_size=*/16, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * size; at < end * size; at += size) {
        add_rms_norm_row(in + at, add + at, scale, static_cast<float>(eps), size, out + at, sum + at);
      }
    });
  };
  if (x.scalar_type() == at::kFloat) {
    run(float{});
  } else if (x.scalar_type() == at::kBFloat16) {
    run(c10::BFloat16{});
  } else {
    TORCH_CHECK(false, "add_rms_norm: float32 or bfloat16, not ", x.dtype());
  }
  return {normed, total};
}

TORCH_LIBRARY_IMPL(nova, PrivateUse1, library) {
  library.impl("add_rms_norm", &add_rms_norm);
}

}  // namespace
}  // namespace nova

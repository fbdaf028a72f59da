// Ops: what makes, views and copies tensors, and kernels that are lent from the CPU.
#include "nova.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <unordered_set>

namespace nova {

at::Tensor on_host(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  c10::Storage memory(c10::Storage::use_byte_size_t(), storage.nbytes(),
                      at::DataPtr(const_cast<void*>(storage.data()), c10::kCPU), c10::GetCPUAllocator(),
                      /*resizable=*/true);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(std::move(memory), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return alias;
}

namespace {

using torch::jit::Stack;

const auto kKeys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(size, allocator(), kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, dtype.value_or(at::kFloat));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const size_t bytes = (c10::multiply_integers(size) + self.storage_offset()) * self.itemsize();
  const c10::DeviceGuard guard(self.device());
  if (bytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

// The host goes on at once only where it said that it would, from and to memory that the device reaches by itself.
void count_wait(const at::Tensor& host, bool non_blocking, const char* why) {
  if (!(non_blocking && is_pinned(host.storage().data()))) count(Count::Waits, why);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.is_cpu()) count_wait(from, non_blocking, "copy from host");
  if (to.is_cpu()) count_wait(to, non_blocking, "copy to host");
  (to.is_cpu() ? to : on_host(to)).copy_(from.is_cpu() ? from : on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  count(Count::Waits, "item");
  return at::_local_scalar_dense(on_host(self));
}

// Of integers, too: transformers counts tokens per expert by it on whatever isn't the CPU.
at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  count(Count::Launches, "aten::histc");
  const auto own = on_host(self);
  const auto counts = (own.is_floating_point() ? own : own.to(at::kDouble)).histc(bins, min, max);
  auto result = at::empty(counts.sizes(), self.options());
  on_host(result).copy_(counts);
  return result;
}

// The arguments of one call, on their way to a CPU kernel and back.
class Loan {
 public:
  at::Tensor lend(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cpu()) {
      TORCH_CHECK(tensor.dim() == 0, "expected all tensors on nova, found one of shape ", tensor.sizes(), " on the host");
      return tensor;
    }
    device_ = tensor.device();
    lent_.push_back({tensor, on_host(tensor), tensor.storage().data()});
    return lent_.back().host;
  }

  c10::IValue lend(const c10::IValue& value) {
    if (value.isTensor()) return lend(value.toTensor());
    if (value.isTensorList()) {
      auto lent = value.toTensorList().copy();
      for (size_t i = 0; i < lent.size(); ++i) lent[i] = lend(lent.get(i));
      return lent;
    }
    if (value.isOptionalTensorList()) {
      auto lent = value.toOptionalTensorList().copy();
      for (size_t i = 0; i < lent.size(); ++i) {
        if (std::optional<at::Tensor> tensor = lent.get(i)) lent[i] = std::make_optional(lend(*tensor));
      }
      return lent;
    }
    return value;
  }

  // A kernel may have resized what it wrote to.
  void settle() {
    for (auto& [own, host, data] : lent_) {
      if (host.storage().data() != data) {
        own.storage().set_data_ptr_noswap(adopt(host.storage(), own.device()));
        own.storage().unsafeGetStorageImpl()->set_nbytes(host.storage().nbytes());
      }
      if (host.sizes() != own.sizes() || host.strides() != own.strides()) {
        own.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
      }
    }
  }

  at::Tensor own(const at::Tensor& made) const {
    if (!made.defined()) return made;
    for (const auto& loan : lent_) {
      if (loan.host.is_same(made)) return loan.own;
      TORCH_INTERNAL_ASSERT(!loan.host.is_alias_of(made), "a kernel that makes views can't be lent");
    }
    c10::Storage memory(c10::Storage::use_byte_size_t(), made.storage().nbytes(), adopt(made.storage(), device_),
                        allocator(), /*resizable=*/true);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(memory), kKeys, made.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
    return tensor;
  }

  c10::IValue own(const c10::IValue& value) const {
    if (value.isTensor()) return own(value.toTensor());
    if (!value.isTensorList()) return value;
    auto result = value.toTensorList().copy();
    for (size_t i = 0; i < result.size(); ++i) result[i] = own(result.get(i));
    return result;
  }

  c10::Device device() const {
    return device_;
  }

 private:
  struct Lent {
    at::Tensor own, host;
    const void* data;
  };
  std::vector<Lent> lent_;
  c10::Device device_{kNova, 0};
};

// Runs an op by the CPU's kernel, on the device's memory.
void lend(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  count(Count::Launches, schema.name());
  Loan loan;
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) (*stack)[first + i] = loan.lend((*stack)[first + i]);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].name() != "generator") continue;
    (*stack)[first + i] = host_generator((*stack)[first + i].toOptional<at::Generator>(), loan.device().index());
  }
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  loan.settle();
  const size_t results = stack->size() - schema.returns().size();
  for (size_t i = results; i < stack->size(); ++i) (*stack)[i] = loan.own((*stack)[i]);
}

// The same for ops whose result is of a shape, or a value, that the host must know: it waits, unless it was told.
void lend_and_wait(const c10::OperatorHandle& op, Stack* stack) {
  const auto size = op.schema().argumentIndexWithName("output_size");
  const bool told = size && !torch::jit::peek(*stack, *size, op.schema().arguments().size()).isNone();
  if (!told) count(Count::Waits, op.schema().name());
  lend(op, stack);
}

void fall_back(const c10::OperatorHandle& op, Stack* stack) {
  count(Count::Fallbacks, c10::toString(op.operator_name()));
  at::native::cpu_fallback(op, stack);
}

constexpr const char* kLent[] = {
#include "lent_ops.inc"
};

constexpr const char* kWaitedFor[] = {"equal", "masked_select", "nonzero", "repeat_interleave.Tensor", "unique_dim"};

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("histc", &histc);
  for (const char* op : kLent) library.impl(op, torch::CppFunction::makeFromBoxedFunction<&lend>());
  for (const char* op : kWaitedFor) library.impl(op, torch::CppFunction::makeFromBoxedFunction<&lend_and_wait>());
}

}  // namespace
}  // namespace nova

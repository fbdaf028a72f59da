// The simulated accelerator "nova": what the parts of its torch backend know of one another.
//
// Its memory is the host's, behind pointers that torch takes for a device's; its work is done by torch's CPU kernels, at
// once. What it tells that a real device keeps to itself is what made the host wait, and what ran elsewhere.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <string>

namespace nova {

constexpr auto kNova = c10::DeviceType::PrivateUse1;

enum class Count {
  Waits,      // what made the host wait for the device, by cause
  Fallbacks,  // ops that the device has no kernel for, which ran on copies on the host, by name
  Launches,   // ops that ran on the device, by name
};

void count(Count kind, const std::string& what);

c10::Allocator* allocator();
bool is_pinned(const void* data);

// A device's view of the host's CPU generator, for the kernels that it lends from there.
at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

// Memory that a kernel allocated on the host becomes the device's, and is accounted for. Throws OutOfMemoryError.
at::DataPtr adopt(c10::Storage storage, c10::Device device);

// A host tensor over a device tensor's memory.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace nova

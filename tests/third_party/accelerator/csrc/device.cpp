// Devices: memory, streams, events, generators, and the hooks by which torch asks for them.
#include "nova.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace nova {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using Counts = std::map<std::string, int64_t>;

constexpr size_t kAlignment = 64;
constexpr size_t kDefaultMemory = size_t{4} << 30;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// NOVA_VISIBLE_DEVICES lists the devices by index, as the platform's probe reads it, too.
c10::DeviceIndex device_count() {
  static const auto count = [] {
    const char* visible = std::getenv("NOVA_VISIBLE_DEVICES");
    const std::string list = visible ? visible : "0";
    return static_cast<c10::DeviceIndex>(list.empty() ? 0 : 1 + std::count(list.begin(), list.end(), ','));
  }();
  return count;
}

size_t memory_size() {
  static const size_t size = [] {
    const char* bytes = std::getenv("NOVA_MEMORY_BYTES");
    return bytes ? static_cast<size_t>(std::strtoull(bytes, nullptr, 10)) : kDefaultMemory;
  }();
  return size;
}

std::atomic<bool> begun = false;  // whether a device was entered, or gave memory
thread_local c10::DeviceIndex current = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

c10::DeviceIndex checked(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "nova:", int(index), " is not one of the ", int(device_count()),
              " devices that NOVA_VISIBLE_DEVICES shows");
  return index;
}

c10::DeviceIndex enter(c10::DeviceIndex index) {
  const auto left = std::exchange(current, checked(index));
  begun = true;
  return left;
}

c10::Device place(c10::Device device) {
  return {kNova, device.has_index() ? device.index() : current};
}

std::array<Counts, 3> counts;
std::mutex counts_mutex;

void* host_allocate(size_t size) {
  void* data = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  TORCH_CHECK_WITH(OutOfMemoryError, data, "nova: the host has no ", size, " bytes to play device memory with");
  return data;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t size) override {
    const c10::Device device(kNova, current);
    if (size == 0) return {nullptr, device};
    take(device.index(), size);
    auto* block = new Block{host_allocate(size), size, device.index(), {}};
    return {block->data, block, &release, device};
  }

  at::DataPtr adopt(c10::Storage storage, c10::Device device) {
    const size_t size = storage.nbytes();
    if (size == 0) return {nullptr, device};
    take(device.index(), size);
    auto* block = new Block{nullptr, size, device.index(), std::move(storage)};
    return {block->storage.mutable_data(), block, &release, device};
  }

  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }

  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}  // nothing is cached
  void recordStream(const at::DataPtr&, c10::Stream) override {}  // work is done when it has been issued

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex_);
    return stats_[checked(device)];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto used = static_cast<size_t>(getDeviceStats(device).allocated_bytes[kAll].current);
    return {memory_size() - used, memory_size()};
  }

 private:
  struct Block {
    void* data;
    size_t size;
    c10::DeviceIndex device;
    c10::Storage storage;  // holds the memory where it was adopted
  };

  static void release(void* context);

  template <class Change>
  void each(c10::DeviceIndex device, Change change) {
    std::lock_guard lock(mutex_);
    auto& stats = stats_[checked(device)];
    for (auto* stat : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes}) change((*stat)[kAll]);
  }

  void take(c10::DeviceIndex device, size_t size) {
    begun = true;
    std::lock_guard lock(mutex_);
    auto& stats = stats_[checked(device)];
    const auto left = memory_size() - static_cast<size_t>(stats.allocated_bytes[kAll].current);
    TORCH_CHECK_WITH(OutOfMemoryError, size <= left, "nova:", int(device), " is asked for ", size, " bytes and has ",
                     left, " of ", memory_size(), " left");
    stats.allocation[kAll].increase(1);
    stats.allocated_bytes[kAll].increase(size);
    stats.reserved_bytes[kAll].increase(size);
  }

  std::mutex mutex_;
  std::map<c10::DeviceIndex, DeviceStats> stats_;
};

Allocator the_allocator;

void Allocator::release(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  std::free(block->data);
  std::lock_guard lock(the_allocator.mutex_);
  auto& stats = the_allocator.stats_[block->device];
  stats.allocation[kAll].decrease(1);
  stats.allocated_bytes[kAll].decrease(block->size);
  stats.reserved_bytes[kAll].decrease(block->size);
}

REGISTER_ALLOCATOR(kNova, &the_allocator);

// Host memory that the device reads and writes by itself: the only kind that copies need not wait for.
class PinnedAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t size) override {
    void* data = host_allocate(std::max<size_t>(size, 1));
    std::lock_guard lock(mutex_);
    ends_[static_cast<char*>(data)] = static_cast<char*>(data) + size;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool holds(const void* data) {
    std::lock_guard lock(mutex_);
    auto* at = static_cast<char*>(const_cast<void*>(data));
    const auto above = ends_.upper_bound(at);
    return above != ends_.begin() && (std::prev(above)->first == at || at < std::prev(above)->second);
  }

 private:
  static void release(void* data);

  std::mutex mutex_;
  std::map<char*, char*> ends_;
};

PinnedAllocator pinned;

void PinnedAllocator::release(void* data) {
  {
    std::lock_guard lock(pinned.mutex_);
    pinned.ends_.erase(static_cast<char*>(data));
  }
  std::free(data);
}

using Clock = std::chrono::steady_clock;

// Work is done when it has been issued, so an event has come when it was recorded, and a wait returns at once. That the
// host asked to wait is what counts.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return kNova;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kNova, enter(device.index())};
  }
  c10::Device getDevice() const override {
    return {kNova, current};
  }
  void setDevice(c10::Device device) const override {
    enter(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream(device, current_streams[place(device).index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream(device, next++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream_) const override {
    return stream(stream_.device(), std::exchange(current_streams[stream_.device_index()], stream_.id()));
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {
    count(Count::Waits, "stream");
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    count(Count::Waits, "device");
  }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {
    count(Count::Waits, "event");
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    return Milliseconds(*static_cast<Clock::time_point*>(to) - *static_cast<Clock::time_point*>(from)).count();
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, place(device), id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Random numbers are drawn by CPU kernels, from a CPU generator that belongs to the device.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device, at::Generator drawn = at::make_generator<at::CPUGeneratorImpl>())
      : GeneratorImpl({kNova, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), host(std::move(drawn)) {}

  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_offset(uint64_t offset) override {
    host.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return host.get_offset();
  }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    return new Generator(device_.index(), host.clone());
  }

  at::Generator host;
};

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> made;
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      made.push_back(at::make_generator<Generator>(index));
    }
    return made;
  }();
  return generators.at(checked(device < 0 ? current : device));
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return begun;
  }
  c10::DeviceIndex deviceCount() const override {
    return device_count();
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    enter(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return enter(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current : checked(device));
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kNova, current};
  }
  bool isPinnedPtr(const void* data) const override {
    return pinned.holds(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto data = the_allocator.allocate(size);
    std::memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

const bool hooked = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

c10::Dict<std::string, int64_t> counted(int64_t kind) {
  std::lock_guard lock(counts_mutex);
  c10::Dict<std::string, int64_t> result;
  for (const auto& [what, number] : counts.at(kind)) result.insert(what, number);
  return result;
}

void reset_counts() {
  std::lock_guard lock(counts_mutex);
  for (auto& kind : counts) kind.clear();
}

void manual_seed(int64_t seed) {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    auto generator = default_generator(index);
    generator.set_current_seed(static_cast<uint64_t>(seed));
  }
}

TORCH_LIBRARY(nova, library) {
  library.def("counted(int kind) -> Dict(str, int)", &counted);
  library.def("reset_counts() -> ()", &reset_counts);
  library.def("manual_seed(int seed) -> ()", &manual_seed);
  library.def("is_initialized() -> bool", [] { return begun.load(); });
  library.def("device_count() -> int", [] { return static_cast<int64_t>(device_count()); });
  library.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
}

}  // namespace

void count(Count kind, const std::string& what) {
  std::lock_guard lock(counts_mutex);
  ++counts[static_cast<size_t>(kind)][what];
}

c10::Allocator* allocator() {
  return &the_allocator;
}

bool is_pinned(const void* data) {
  return pinned.holds(data);
}

at::DataPtr adopt(c10::Storage storage, c10::Device device) {
  return the_allocator.adopt(std::move(storage), device);
}

at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  const auto& own = generator && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(own.device().type() == kNova, "nova draws from generators of its own, not of ", own.device());
  return own.get<Generator>()->host;
}

}  // namespace nova

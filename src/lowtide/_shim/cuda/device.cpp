#include "device.hpp"

#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>

#include "event_log.hpp"
#include "slabs.hpp"
#include "thread.hpp"

namespace lowtide::shim {

namespace {

constexpr std::size_t UNIT = std::size_t{2} << 20;  // in which a device's driver gives out memory

class DeviceMemory final : public Memory {
 public:
  std::size_t unit() const override { return UNIT; }
  char* reserve(std::size_t size) override {
    void* base = nullptr;
    const Runtime::Status status = runtime().reserve(&base, size);
    if (status == Runtime::OK) return static_cast<char*>(base);
    std::size_t free = 0, total = 0;
    std::string text = failure("cudaMalloc", status);
    if (runtime().memory(&free, &total) == Runtime::OK)
      text += ": " + std::to_string(free) + " of the device's " + std::to_string(total) + " B are free";
    throw std::runtime_error("lowtide: the budget of " + std::to_string(size) + " B cannot be reserved on the GPU, " +
                             text + ". Name a smaller budget in lowtide.install_cuda, or free the device.");
  }
  void give_back(char* base, std::size_t) noexcept override { runtime().give_back(base); }
  bool trim(char*, std::size_t) noexcept override { return false; }
};

DeviceMemory& device_memory() {
  static DeviceMemory* const kept = new DeviceMemory;
  return *kept;
}

Slab* open(const Device::Budget& budget) {
  Bytes size_B = budget.size_B;
  if (size_B == 0) {
    std::size_t free = 0, total = 0;
    const Runtime::Status status = runtime().memory(&free, &total);
    if (status != Runtime::OK) throw std::runtime_error("lowtide: " + failure("cudaMemGetInfo", status));
    size_B = static_cast<Bytes>(budget.share * static_cast<double>(total));
  }
  size_B = size_B / static_cast<Bytes>(UNIT) * static_cast<Bytes>(UNIT);  // the driver would round it up
  Slab* slab = Slab::open({size_B, Device::ALIGNMENT_B, budget.small_zone_B, 0, false}, device_memory());
  slab->set_phase(number_of("code without a plan"));
  return slab;
}

}  // namespace

Device::Device(int index, const Budget& budget) : Device(index, *open(budget)) {}

Device::Device(int index, Slab& slab) : index_(index), slab_(&slab), order_(slab.arena().capacity_B(), events_) {}

Bytes Device::end_of(void* p, Bytes size_B) const {
  const Bytes unit = ALIGNMENT_B;
  return slab_->offset_of(p) + (size_B + unit - 1) / unit * unit;
}

void* Device::allocate(Bytes size_B, Stream stream) {
  Thread& thread = Thread::mine();
  Run* const run = thread.slab() == nullptr ? nullptr : thread.run();
  return served(size_B, stream, [&] { return slab_->serve(size_B, run); });
}

void* Device::allocate_worker(Bytes size_B, Stream stream) {
  return served(size_B, stream, [&] { return slab_->serve_worker(size_B); });
}

void* Device::place(Bytes where_B, Bytes size_B, Stream stream) {
  return served(size_B, stream, [&] { return slab_->serve_place(where_B, size_B); });
}

template <class Serve>
void* Device::served(Bytes size_B, Stream stream, const Serve& serve) {
  const Guard hold(mutex_);
  const OnDevice here(index_);
  reap(false);
  void* p = serve();
  if (p == nullptr && parking_.size() > 0 && !is_capturing_.load()) {
    ++counts_.retries;
    reap(true);
    p = serve();
  }
  if (p == nullptr) {
    ++counts_.refusals;
    return nullptr;
  }
  if (event_log().is_on()) event_log().allocated(p, size_B);
  const Bytes lo_B = slab_->offset_of(p), hi_B = end_of(p, size_B);
  order_.taken(lo_B, hi_B, stream);
  counts_.blocks.add(1);
  counts_.bytes.add(hi_B - lo_B);
  counts_.requested.add(size_B);
  counts_.active.add(1);
  counts_.active_bytes.add(hi_B - lo_B);
  return p;
}

void Device::release(void* p, Stream stream) {
  const Guard hold(mutex_);
  const Bytes size_B = slab_->arena().size_of(slab_->offset_of(p));
  if (size_B < 0) return;  // not a block: it was released twice
  if (event_log().is_on()) event_log().released(p);
  counts_.blocks.subtract(1);
  counts_.bytes.subtract(end_of(p, size_B) - slab_->offset_of(p));
  counts_.requested.subtract(size_B);
  const OnDevice here(index_);
  if (!parking_.park(p, stream)) give_back(p, stream);
}

void Device::used(void* p, Stream stream) {
  const Guard hold(mutex_);
  if (slab_->arena().contains(slab_->offset_of(p))) parking_.used(p, stream);
}

void Device::give_back(void* p, Stream stream) {
  const Bytes lo_B = slab_->offset_of(p), hi_B = end_of(p, slab_->arena().size_of(lo_B));
  order_.left(lo_B, hi_B, stream);
  counts_.active.subtract(1);
  counts_.active_bytes.subtract(hi_B - lo_B);
  slab_->release(p);
}

void Device::reap(bool wait) {
  if (parking_.size() == 0 || is_capturing_.load()) return;
  for (const Parking::Car& car : parking_.leaving(wait)) give_back(car.p, car.owner);
}

void Device::settle(bool wait) {
  const Guard hold(mutex_);
  const OnDevice here(index_);
  reap(wait);
}

std::size_t Device::parked() {
  const Guard hold(mutex_);
  return parking_.size();
}

std::string Device::refusal(Bytes size_B) {
  const Thread& thread = Thread::mine();
  return slab_->refusal(size_B, thread.slab() == nullptr ? nullptr : thread.run(), false);
}

DeviceCounts Device::counts() {
  const Guard hold(mutex_);
  DeviceCounts now = counts_;
  now.waits = order_.waits();
  return now;
}

void Device::reset_peaks() {
  const Guard hold(mutex_);
  for (Count* count : {&counts_.blocks, &counts_.bytes, &counts_.requested, &counts_.active, &counts_.active_bytes})
    count->peak = count->current;
  slab_->reset_peaks();
}

void Device::reset_sums() {
  const Guard hold(mutex_);
  for (Count* count : {&counts_.blocks, &counts_.bytes, &counts_.requested, &counts_.active, &counts_.active_bytes})
    count->gained = count->lost = 0;
  counts_.retries = counts_.refusals = 0;
}

namespace {

struct Book {
  std::mutex mutex;
  std::optional<Device::Budget> common;
  std::array<std::optional<Device::Budget>, Devices::MOST> own;
  std::array<std::atomic<Device*>, Devices::MOST> devices{};
};

Book& book() {
  static Book* const kept = new Book;  // never destroyed: blocks are released until the very end of the process
  return *kept;
}

bool is_one(int device) { return device >= 0 && device < Devices::MOST; }

}  // namespace

void Devices::set_budget(int device, const Device::Budget& budget) {
  if (device != -1 && !is_one(device)) throw std::invalid_argument("there is no such device");
  if (budget.size_B != 0 ? budget.size_B < static_cast<Bytes>(UNIT) : !(budget.share > 0 && budget.share <= 1))
    throw std::invalid_argument("a budget on a GPU is at least 2 MiB, or a share of its memory");
  Book& b = book();
  const std::lock_guard<std::mutex> hold(b.mutex);
  for (int i = 0; i < MOST; ++i)
    if ((i == device || (device == -1 && !b.own[i])) && b.devices[i].load() != nullptr)
      throw std::logic_error("this device's memory is reserved already: its budget is set before its first tensor");
  (device == -1 ? b.common : b.own[device]) = budget;
}

bool Devices::has_budget(int device) {
  Book& b = book();
  const std::lock_guard<std::mutex> hold(b.mutex);
  return b.common.has_value() || (is_one(device) && b.own[device].has_value());
}

Device* Devices::alive(int device) { return is_one(device) ? book().devices[device].load() : nullptr; }

Device& Devices::at(int device) {
  if (Device* found = alive(device)) return *found;
  if (!is_one(device)) throw std::invalid_argument("there is no such device");
  Book& b = book();
  const std::lock_guard<std::mutex> hold(b.mutex);
  if (Device* found = b.devices[device].load()) return *found;
  if (!has_runtime()) throw std::logic_error("lowtide: no CUDA runtime has been chosen");
  const std::optional<Device::Budget>& budget = b.own[device] ? b.own[device] : b.common;
  if (!budget) throw std::logic_error("lowtide: this device has no budget: call lowtide.install_cuda");
  const OnDevice here(device);
  auto* made = new Device(device, *budget);
  b.devices[device].store(made);
  return *made;
}

Device* Devices::owner_of(const void* p) {
  for (auto& entry : book().devices) {
    Device* device = entry.load(std::memory_order_acquire);
    if (device != nullptr && device->slab().owns(p)) return device;
  }
  return nullptr;
}

// A child must not inherit a lock that a thread holds which it does not have.
void Devices::before_fork() {
  book().mutex.lock();
  for (auto& entry : book().devices)
    if (Device* device = entry.load()) device->before_fork();
  slabs().before_fork();
  event_log().before_fork();
  lock_names();
}

void Devices::after_fork(bool child) {
  unlock_names();
  event_log().after_fork(child);
  slabs().after_fork(child);
  for (auto& entry : book().devices)
    if (Device* device = entry.load()) device->after_fork();
  book().mutex.unlock();
  if (child) Thread::mine().forget_everything();
}

Devices& devices() {
  static Devices all;
  return all;
}

}  // namespace lowtide::shim

// A second kind of device on a machine that has none: its memory is the host's, and its rules are CUDA's.
//
// It takes PyTorch's dispatch key for devices from outside, PrivateUse1. An operation on it checks that its
// tensors are on one device, runs the CPU's kernel on the same memory, and hands the results out as tensors of
// the device. `device.py` compiles and names it; `check_rules.py` holds its rules against CUDA's.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace {

constexpr c10::DeviceType KIND = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex COUNT = 2;

thread_local c10::DeviceIndex current = 0;
std::atomic<int64_t> waits{0};  // how often the host had to wait for a value of the device

c10::Device device_of(int64_t index) {
  return c10::Device(KIND, index < 0 ? current : static_cast<c10::DeviceIndex>(index));
}

// --- memory -------------------------------------------------------------------------------------------

void free_held(void* held) {
  delete static_cast<c10::DataPtr*>(held);
}

// Memory of the CPU that counts as memory of `device` from now on.
c10::DataPtr moved(c10::DataPtr&& host, c10::Device device) {
  void* place = host.get();
  return {place, new c10::DataPtr(std::move(host)), &free_held, device};
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return moved(c10::GetAllocator(c10::kCPU)->allocate(bytes), device_of(-1));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_of(-1); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < COUNT, "there are ", int(COUNT), " simulated devices");
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// --- random numbers -----------------------------------------------------------------------------------

// A generator of the device, which draws as one of the CPU does.
struct Generator final : c10::GeneratorImpl {
  at::Generator host;

  Generator(c10::DeviceIndex index, at::Generator host)
      : c10::GeneratorImpl(device_of(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(device().index(), host.clone()); }
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<Generator>(device_of(index).index(), at::make_generator<at::CPUGeneratorImpl>(67280421310721));
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, COUNT> each = {new_generator(0), new_generator(1)};
  return each.at(device_of(index).index());
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return COUNT; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = memory.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr(moved(std::move(fresh), storage.device()));
    storage.set_nbytes(bytes);
  }
};

Hooks hooks;
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// --- which devices an operation may mix ---------------------------------------------------------------

// Operations that take a number from the CPU as a tensor without axes; PyTorch's own table says which.
std::unordered_set<std::string> take_numbers;

// Operations that move indices to the tensor that they index.
const std::unordered_set<std::string> take_indices = {
    "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::_index_put_impl_"};

// Operations whose result's shape depends on values, so that the host waits for it.
const std::unordered_set<std::string> waiting = {
    "aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::_unique2", "aten::equal",
    "aten::is_nonzero", "aten::repeat_interleave.Tensor", "aten::unique_dim"};

struct Found {
  const at::Tensor tensor;
  size_t argument;
};

std::vector<Found> tensors_of(at::ArrayRef<c10::IValue> values) {
  std::vector<Found> found;
  auto add = [&](const at::Tensor& tensor, size_t i) {
    if (tensor.defined()) found.push_back({tensor, i});
  };
  for (size_t i = 0; i < values.size(); i++) {
    const auto& value = values[i];
    if (value.isTensor()) {
      add(value.toTensor(), i);
    } else if (value.isTensorList()) {
      for (const auto& tensor : value.toTensorVector()) add(tensor, i);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector()) {
        if (tensor.has_value()) add(*tensor, i);
      }
    }
  }
  return found;
}

// The one device of an operation. Refuses tensors of several as CUDA does.
c10::Device common_device(
    const c10::FunctionSchema& schema, const std::string& name, at::ArrayRef<c10::IValue> values,
    const std::vector<Found>& found) {
  std::optional<c10::Device> device;
  for (const auto& [tensor, i] : found) {
    if (!device.has_value() && tensor.device().type() == KIND) device = tensor.device();
  }
  for (const auto& value : values) {
    if (!device.has_value() && value.isDevice() && value.toDevice().type() == KIND) {
      device = device_of(value.toDevice().index());
    }
  }
  for (const auto& value : values) {
    // A generator of the device brings an operation here, too, whose tensors are the CPU's.
    TORCH_CHECK(
        device.has_value() || !value.isGenerator(), "Expected a 'cpu' device type for generator but found '",
        value.isGenerator() ? value.toGenerator().device() : c10::Device(KIND), "'");
  }
  if (!device.has_value()) return device_of(-1);
  for (const auto& [tensor, i] : found) {
    if (tensor.device() == *device) continue;
    const auto& argument = schema.arguments()[i];
    bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    bool number = tensor.is_cpu() && tensor.dim() == 0 && !written && take_numbers.count(name);
    bool index = tensor.is_cpu() && argument.name() == "indices" && take_indices.count(name);
    TORCH_CHECK(
        number || index, "Expected all tensors to be on the same device, but got ", argument.name(), " on ",
        tensor.device(), ", different from other tensors on ", *device, " (in ", name, ")");
  }
  return *device;
}

// --- running an operation -----------------------------------------------------------------------------

// Tensors of the CPU on the memory of the device's tensors.
struct Aliases {
  c10::Device device;
  std::unordered_map<c10::StorageImpl*, c10::Storage> hosts;        // by the device's storage
  std::unordered_map<c10::StorageImpl*, c10::Storage> owners;       // by the host's storage

  at::Tensor host(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != KIND) return tensor;
    const auto& storage = tensor.storage();
    auto* key = storage.unsafeGetStorageImpl();
    auto known = hosts.find(key);
    if (known == hosts.end()) {
      c10::DataPtr place(storage.mutable_data(), c10::Device(c10::kCPU));
      c10::Storage alias(
          c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(place), c10::GetAllocator(c10::kCPU), true);
      owners.emplace(alias.unsafeGetStorageImpl(), storage);
      known = hosts.emplace(key, alias).first;
    }
    return dressed(known->second, c10::DispatchKey::CPU, tensor);
  }

  // A tensor on `storage` in the shape of `like`.
  static at::Tensor dressed(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
    auto* impl = made.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.dim() == 0) impl->set_wrapped_number(like.unsafeGetTensorImpl()->is_wrapped_number());
    return made;
  }

  // A result of the CPU as a tensor of the device: a view where it lies in an argument's memory.
  at::Tensor device_tensor(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    auto owner = owners.find(result.storage().unsafeGetStorageImpl());
    if (owner != owners.end()) return dressed(owner->second, c10::DispatchKey::PrivateUse1, result);
    auto held = std::make_unique<c10::Storage>(result.storage());
    void* place = held->mutable_data();
    c10::DataPtr data(place, held.release(), [](void* x) { delete static_cast<c10::Storage*>(x); }, device);
    c10::Storage storage(
        c10::Storage::use_byte_size_t(), result.storage().nbytes(), std::move(data), &memory, true);
    return dressed(storage, c10::DispatchKey::PrivateUse1, result);
  }

  // After the kernel has written to `host`: the tensor may have another shape and other memory.
  void take_back(const at::Tensor& tensor, const at::Tensor& host) {
    if (tensor.device().type() != KIND) return;
    auto& storage = const_cast<c10::Storage&>(tensor.storage());
    if (host.storage().data() != storage.data()) {
      auto held = std::make_unique<c10::Storage>(host.storage());
      void* place = held->mutable_data();
      storage.set_data_ptr_noswap(
          {place, held.release(), [](void* x) { delete static_cast<c10::Storage*>(x); }, tensor.device()});
      storage.set_nbytes(host.storage().nbytes());
    }
    if (tensor.sizes() != host.sizes() || tensor.strides() != host.strides()) {
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
    }
  }
};

bool may_be_generator(const c10::Argument& argument) {
  auto optional = argument.type()->cast<c10::OptionalType>();
  auto kind = optional ? optional->getElementType() : argument.type();
  return kind->kind() == c10::TypeKind::GeneratorType;
}

// The operation whose kernel of the CPU does the work. Convolutions of a device from outside have a name of
// their own, and their backward pass lacks the argument `bias_sizes`.
c10::OperatorHandle kernel_of(const c10::OperatorHandle& op, const std::string& name, torch::jit::Stack* stack) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (name == "aten::convolution_overrideable") return dispatcher.findSchemaOrThrow("aten::convolution", "");
  if (name == "aten::convolution_backward_overrideable") {
    const auto channels = (*stack)[stack->size() - 10].toTensor().size(1);
    stack->insert(stack->end() - 7, c10::IValue(std::vector<int64_t>{channels}));
    return dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
  }
  return op;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const std::string name = schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  const std::vector<c10::IValue> given = torch::jit::last(*stack, arguments.size()).vec();
  const auto found = tensors_of(given);
  const auto device = common_device(schema, name, given, found);
  if (waiting.count(name)) waits++;

  Aliases aliases{device, {}, {}};
  std::vector<c10::IValue> hosts;
  for (size_t i = 0; i < given.size(); i++) {
    const auto& value = given[i];
    if (value.isTensor()) {
      hosts.emplace_back(aliases.host(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) list.push_back(aliases.host(tensor));
      hosts.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor.has_value() ? std::optional(aliases.host(*tensor)) : std::nullopt);
      }
      hosts.emplace_back(std::move(list));
    } else if (value.isDevice() && value.toDevice().type() == KIND) {
      hosts.emplace_back(c10::Device(c10::kCPU));
    } else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(
          generator.device() == device, "Expected a '", device, "' device type for generator but found '",
          generator.device(), "'");
      hosts.emplace_back(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->host);
    } else if (value.isNone() && may_be_generator(arguments[i])) {
      hosts.emplace_back(static_cast<Generator*>(default_generator(device.index()).unsafeGetGeneratorImpl())->host);
    } else {
      hosts.push_back(value);
    }
  }
  torch::jit::drop(*stack, arguments.size());
  for (const auto& value : hosts) stack->push_back(value);
  kernel_of(op, name, stack).redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  auto written = [&](size_t i) {
    return arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
  };
  for (size_t i = 0; i < given.size(); i++) {
    if (!written(i)) continue;
    if (given[i].isTensor() && given[i].toTensor().defined()) {
      aliases.take_back(given[i].toTensor(), hosts[i].toTensor());
    } else if (given[i].isTensorList()) {
      auto before = given[i].toTensorVector(), after = hosts[i].toTensorVector();
      for (size_t k = 0; k < before.size(); k++) aliases.take_back(before[k], after[k]);
    }
  }
  const auto& returns = schema.returns();
  std::vector<c10::IValue> results = torch::jit::last(*stack, returns.size()).vec();
  torch::jit::drop(*stack, returns.size());
  for (size_t r = 0; r < returns.size(); r++) {
    const auto* alias = returns[r].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (size_t i = 0; i < given.size(); i++) {
        if (written(i) && arguments[i].alias_info()->beforeSets() == alias->beforeSets()) results[r] = given[i];
      }
    } else if (results[r].isTensor()) {
      results[r] = aliases.device_tensor(results[r].toTensor());
    } else if (results[r].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : results[r].toTensorVector()) list.push_back(aliases.device_tensor(tensor));
      results[r] = std::move(list);
    }
    stack->push_back(std::move(results[r]));
  }
}

// --- what needs no kernel -----------------------------------------------------------------------------

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const auto place = device_of(device.has_value() ? device->index() : -1);
  TORCH_CHECK(place.index() < COUNT, "there are ", int(COUNT), " simulated devices");
  c10::DeviceGuard guard(place);
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype));
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto place = device_of(device.has_value() ? device->index() : -1);
  TORCH_CHECK(place.index() < COUNT, "there are ", int(COUNT), " simulated devices");
  c10::DeviceGuard guard(place);
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype), format);
}

// The one operation that may have tensors of two devices.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.is_cpu()) waits++;
  Aliases aliases{device_of(-1), {}, {}};
  auto host = aliases.host(to);
  at::native::copy_(host, aliases.host(from), false);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

// Autocast does nothing here: which operations it casts is CUDA's own list.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&run>());
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

TORCH_LIBRARY(simulated, m) {
  m.def("waits() -> int", []() -> int64_t { return waits; });
  m.def("current_device() -> int", []() -> int64_t { return current; });
  m.def("set_device(int index) -> ()", [](int64_t index) { Guard().setDevice(device_of(index)); });
  m.def("seed(int index, int seed) -> ()", [](int64_t index, int64_t seed) {
    default_generator(static_cast<c10::DeviceIndex>(index)).unsafeGetGeneratorImpl()->set_current_seed(seed);
  });
  m.def("state(int index) -> Tensor", [](int64_t index) {
    return default_generator(static_cast<c10::DeviceIndex>(index)).get_state();
  });
  m.def("set_state(int index, Tensor state) -> ()", [](int64_t index, const at::Tensor& state) {
    auto generator = default_generator(static_cast<c10::DeviceIndex>(index));
    generator.set_state(state);
  });
  m.def("take_numbers(str[] names) -> ()", [](const std::vector<std::string>& names) {
    take_numbers.insert(names.begin(), names.end());
  });
}

}  // namespace

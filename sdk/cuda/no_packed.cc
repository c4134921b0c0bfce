// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/packed_device.h>

namespace kvplug::sdk {

const PackedDevice* cuda_packed_device() noexcept { return nullptr; }

}  // namespace kvplug::sdk

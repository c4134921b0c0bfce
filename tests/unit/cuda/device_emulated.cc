// SPDX-License-Identifier: Apache-2.0
#include "../../../sdk/cuda/device.cu"

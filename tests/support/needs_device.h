// SPDX-License-Identifier: Apache-2.0
// The fixture of tests that want a device: they skip, with the reason, where there is none.
#pragma once

#include <gtest/gtest.h>

#include "reachable.h"

namespace kvplug::test {

class NeedsDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace kvplug::test

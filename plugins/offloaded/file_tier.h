// SPDX-License-Identifier: Apache-2.0
// The file tier: one file a layer in a folder of the user's. The files have no names, so nothing is left behind
// whatever happens to the process.
#pragma once

#include <string>
#include <vector>

#include "tier.h"

namespace kvplug::offloaded {

class FileTier final : public Tier {
 public:
  // Throws IO naming the folder if no files can be made there, as far as can be told without making one.
  static void check_folder(const std::string& folder);

  // Opens the files; throws IO naming the folder.
  FileTier(std::string folder, size_t layers);
  ~FileTier() override;
  FileTier(const FileTier&) = delete;
  FileTier& operator=(const FileTier&) = delete;

  void grow(size_t layer, int64_t bytes) override;
  void read(size_t layer, int64_t at, int64_t bytes, std::byte* to) override;
  void write(size_t layer, int64_t at, int64_t bytes, const std::byte* from) override;

 private:
  std::string folder_;
  std::vector<int> files_;
};

}  // namespace kvplug::offloaded

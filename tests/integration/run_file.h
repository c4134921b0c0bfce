// SPDX-License-Identifier: Apache-2.0
// Run files for tests, and what is expected of every error: code, words, nothing on standard output.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/tiny_checkpoint.h"

namespace kvplug::testing {

using nlohmann::json;

inline std::string model_folder(const std::string& name) { return std::string(KVPLUG_TEST_DATA) + "/models/" + name; }

// A folder with one run file in it.
class RunFile {
 public:
  explicit RunFile(const std::string& text, const std::string& name = "run.toml") : path_(folder_ / name) {
    write_text(path_, text);
  }
  const std::string& path() const { return path_; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
  std::string path_;
};

// The prompt and answer of golden/generate llama/dynamic/single/greedy.
inline const std::vector<int> kPrompt{10, 28, 72, 142, 238, 107, 255, 176};
inline const std::vector<int> kAnswer{9,   155, 66,  66, 136, 207, 146, 119, 251, 25,  210, 40,
                                      116, 54,  199, 66, 134, 138, 153, 235, 54,  170, 40,  215};

inline std::string llama_run(const std::string& more = "", const std::string& ids = json(kPrompt).dump()) {
  return "config_version = 1\nmodel.path = \"" + model_folder("llama") +
         "\"\nprompts = [{ id = \"p\", input_ids = " + ids +
         " }]\ngeneration.max_new_tokens = 24\ngeneration.eos_token_id = []\n" + more;
}

inline void expect_error(const Outcome& got, int exit_code, const std::vector<std::string>& words) {
  EXPECT_EQ(got.exit_code, exit_code) << got.out << got.err;
  EXPECT_EQ(got.out, "") << "a failed run writes no result";
  EXPECT_EQ(got.err.rfind("error: ", 0), 0u) << got.err;
  for (const std::string& word : words) EXPECT_NE(got.err.find(word), std::string::npos) << word << " in " << got.err;
}

}  // namespace kvplug::testing

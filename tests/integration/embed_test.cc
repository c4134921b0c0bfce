// SPDX-License-Identifier: Apache-2.0
// The example programs in C: built from <kvplug/kvplug.h> alone, they print what their documentation says.
#include "integration/run_file.h"

namespace kvplug::testing {
namespace {

std::string example(const char* name) { return std::string(KVPLUG_TEST_BUILD) + "/examples/" + name; }

TEST(Embedding, CacheLevelProgram) {
  const Outcome got = run_command_line({example("embed_cache")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.err, "");
  EXPECT_EQ(got.out,
            "layer 0 holds 6 tokens\n"
            "layer 1 holds 6 tokens\n"
            "cropped, layer 0: seen 3, next step sees 4 keys from position 0\n"
            "cropped, layer 1: seen 3, next step sees 4 keys from position 0\n"
            "kept, layer 0: seen 6, next step sees 7 keys from position 0\n"
            "kept, layer 1: seen 6, next step sees 7 keys from position 0\n");
}

TEST(Embedding, RunLevelProgramSaysWhatTheProgramSays) {
  const std::string model = model_folder("llama_chat"), text = "The quick brown fox";
  const Outcome got = run_command_line({example("embed_run"), model, text});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const Outcome program = kvplug_program({"generate", "-m", model, "-p", text, "-n", "32"});
  EXPECT_EQ(program.exit_code, 0) << program.err;
  EXPECT_FALSE(got.out.empty());
  EXPECT_EQ(got.out, program.out);
}

TEST(Embedding, RunLevelProgramNamesWhatIsMissing) {
  const Outcome got = run_command_line({example("embed_run"), "/nowhere"});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_EQ(got.err.rfind("model: ", 0), 0u) << got.err;
  EXPECT_NE(got.err.find("/nowhere"), std::string::npos) << got.err;
}

}  // namespace
}  // namespace kvplug::testing

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
            "cropped, layer 1: seen 3, next step sees 2 keys from position 2\n"
            "kept, layer 0: seen 6, next step sees 7 keys from position 0\n"
            "kept, layer 1: seen 6, next step sees 2 keys from position 5\n");
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

// Each answer is that of a cold run over the whole text, under every kind.
TEST(Embedding, PrefixProgramAnswersAsAColdRun) {
  const std::string model = model_folder("llama_chat");
  std::vector<std::string> cold;
  for (const char* question : {"Help me to write a blogpost about travelling.", "What is the capital of France?"}) {
    const Outcome run = kvplug_program(
        {"generate", "-m", model, "-p", std::string("You are a helpful assistant. ") + question, "-n", "20", "--raw"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    cold.push_back(run.out);
  }
  for (const char* kind : {"static", "dynamic", "offloaded"}) {
    const Outcome got = run_command_line({example("embed_prefix"), model, kind});
    ASSERT_EQ(got.exit_code, 0) << kind << ": " << got.err;
    const size_t second = got.out.find(" ids were cached: ", got.out.find(" ids were cached: ") + 1);
    ASSERT_NE(second, std::string::npos) << got.out;
    for (const std::string& answer : cold) EXPECT_NE(got.out.find("cached: " + answer), std::string::npos) << got.out;
    EXPECT_NE(got.out.find("20 of 51 ids were cached"), std::string::npos) << got.out;
    EXPECT_NE(got.out.find("20 of 27 ids were cached"), std::string::npos) << got.out;
  }
}

TEST(Embedding, RunLevelProgramNamesWhatIsMissing) {
  const Outcome got = run_command_line({example("embed_run"), "/nowhere"});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_EQ(got.err.rfind("model: ", 0), 0u) << got.err;
  EXPECT_NE(got.err.find("/nowhere"), std::string::npos) << got.err;
}

}  // namespace
}  // namespace kvplug::testing

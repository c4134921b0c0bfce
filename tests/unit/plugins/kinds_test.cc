// SPDX-License-Identifier: Apache-2.0
// Every cache kind against the reference cache over random sequences of operations: full, sliding, chunked and cross
// layers, ragged and padded rows, shared pages. Attend equals plain attention, and gives the very bits of `dynamic`,
// which goes along. A failure prints what was done and the seed; KVPLUG_TEST_SEED repeats it alone.
#include <gtest/gtest.h>

#include "kinds_sequence.h"

namespace kvplug::test {
namespace {

#if !defined(KVPLUG_TEST_ROUNDS)
#define KVPLUG_TEST_ROUNDS 200
#endif

class Kinds : public ::testing::TestWithParam<Kind> {};

TEST_P(Kinds, EqualTheReferenceOverRandomSequences) {
  const char* given = std::getenv("KVPLUG_TEST_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
  const uint64_t last = given == nullptr ? KVPLUG_TEST_ROUNDS : first;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("KVPLUG_TEST_SEED=" + std::to_string(seed));
    {
      TestHost::get().set_workers(seed % 3 == 0 ? 3 : 1);
      Sequence sequence(GetParam(), seed);
      for (int step = 0; step < 30; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        sequence.step();
        ASSERT_FALSE(HasFatalFailure()) << sequence.history();
      }
      sequence.check_all();
      ASSERT_FALSE(HasFatalFailure()) << sequence.history();
      ASSERT_TRUE(!sequence.folder() || sequence.folder()->empty()) << "a file that has a name";
    }
    ASSERT_EQ(TestHost::get().held(), 0u);
  }
  EXPECT_EQ(TestHost::get().wrong_frees(), 0);
  TestHost::get().set_workers(1);
}

INSTANTIATE_TEST_SUITE_P(All, Kinds, ::testing::ValuesIn(kKinds), name_of);

}  // namespace
}  // namespace kvplug::test

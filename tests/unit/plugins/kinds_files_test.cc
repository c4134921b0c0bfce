// SPDX-License-Identifier: Apache-2.0
// Kinds that keep K/V in files, and folders and disks that will not have them: KVP_IO with the path, nothing left
// behind, nothing lost.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "kinds_filled.h"

namespace kvplug::test {
namespace {

class KindFolders : public ::testing::TestWithParam<Kind> {};
class GrowingKindFiles : public ::testing::TestWithParam<Kind> {};
class FixedKindFiles : public ::testing::TestWithParam<Kind> {};

// A child process says what went wrong in it on standard error, where the parent can be seen to fail.
void in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with " << status;
}

TEST_P(KindFolders, FoldersThatAreNone) {
  const TempFolder folder;
  const std::string file = folder.path() / "file", missing = folder.path() / "missing",
                    closed = folder.path() / "closed";
  std::ofstream(file) << "x";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::owner_read);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  const auto refused = [&](const std::string& path) {
    const KindArgs args(GetParam(), {kFull}, kF32, 1, kCapacity, path);
    char text[512] = "";
    kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
    const auto expect_words = [&] {
      EXPECT_NE(std::string(text).find("disk_path '" + path + "'"), std::string::npos) << text;
      EXPECT_NE(std::string(text).find("give a folder"), std::string::npos) << text;
    };
    kvp_cache_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(iface_of(GetParam())->probe(&args.create, &info, &err), KVP_IO) << path;
    expect_words();
    text[0] = '\0';
    kvp_cache* self = nullptr;
    EXPECT_EQ(iface_of(GetParam())->create(&args.create, &self, &err), KVP_IO) << path;
    expect_words();
    EXPECT_EQ(self, nullptr);
    EXPECT_EQ(TestHost::get().held(), 0u);
  };
  refused(missing);
  refused(file);
  refused(file + "/below");
  in_child([&] {  // root may write anywhere
    if (geteuid() == 0) {
      ASSERT_EQ(seteuid(65534), 0);
    }
    refused(closed);
  });
  std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
  EXPECT_TRUE(std::filesystem::is_empty(closed));
}

// Fills the folder with tokens until it is full; then nothing is lost, and with less all goes on.
void fill_the_disk(const Kind& kind, const std::string& folder, bool clone_fits) {
  Filled at(kind, {kFull, kFull, kSliding}, folder, 1 << 14);
  ASSERT_EQ(at.append(2, 100), KVP_OK) << at.cache.text();
  int32_t status = KVP_OK;
  for (int step = 0; step < 100 && status == KVP_OK; ++step) {
    const Values k = at.k(0, 2, 64), v = at.v(0, 2, 64);
    status = at.cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr);
    if (status == KVP_OK) at.want.append(0, k, v, nullptr, nullptr);
  }
  at.want.settle();
  ASSERT_NO_FATAL_FAILURE(at.expect_refused(status, KVP_IO, {"disk_path '" + folder + "'", " bytes are needed"}));
  kvp_cache* clone = nullptr;
  EXPECT_EQ(at.cache.clone(2, &clone), clone_fits ? KVP_OK : KVP_IO) << at.cache.text();
  iface_of(kind)->destroy(clone);
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
  // What is cropped makes room again.
  ASSERT_EQ(at.cache.crop({64 * 3}), KVP_OK) << at.cache.text();
  at.want.crop({64 * 3});
  const Values k = at.k(0, 2, 64 * 2), v = at.v(0, 2, 64 * 2);
  ASSERT_EQ(at.cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << at.cache.text();
  at.want.append(0, k, v, nullptr, nullptr);
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_P(GrowingKindFiles, FilesThatMayNotGrow) {
  const TempFolder folder;
  in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most{300 << 10, 300 << 10};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
    fill_the_disk(GetParam(), folder.path().string(), true);  // the limit is a file's
  });
  EXPECT_TRUE(folder.empty());
}

TEST_P(GrowingKindFiles, ADiskThatIsFull) {
  const TempFolder folder;
  in_child([&] {
    const bool mounted = unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=512k") == 0;
    if (!mounted) {
      std::printf("no file system can be mounted here: see FilesThatMayNotGrow\n");
      return;
    }
    fill_the_disk(GetParam(), folder.path().string(), false);
  });
  EXPECT_TRUE(folder.empty());
}

// A fixed kind takes its file with the first tokens: all of it or nothing.
TEST_P(FixedKindFiles, ACapacityBeyondTheDisk) {
  const TempFolder folder;
  in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most{300 << 10, 300 << 10};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
    Filled at(GetParam(), {kFull, kFull}, folder.path().string(), 2000);
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.append(3, 5), KVP_IO,
                                              {"disk_path '" + folder.path().string() + "'", " bytes are needed"}));
    ASSERT_EQ(at.append(1, 5), KVP_OK) << at.cache.text();  // one row fits
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  });
  EXPECT_TRUE(folder.empty());
}

INSTANTIATE_TEST_SUITE_P(All, KindFolders,
                         ::testing::ValuesIn(kinds_where([](const Kind& kind) { return kind.offloaded; })), name_of);
INSTANTIATE_TEST_SUITE_P(All, GrowingKindFiles, ::testing::ValuesIn(kinds_where([](const Kind& kind) {
                           return kind.offloaded && !kind.fixed;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, FixedKindFiles, ::testing::ValuesIn(kinds_where([](const Kind& kind) {
                           return kind.offloaded && kind.fixed;
                         })),
                         name_of);

}  // namespace
}  // namespace kvplug::test

#include "app/status/local_clusters.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temp_dir.h"

namespace specfabric::app {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ClusterAddresses kAdmin = {{"127.0.0.1:1"}, {"127.0.0.1:2", "[::1]:3"}, {}};

// A user's run directory that nobody else uses.
class LocalClustersTest : public ::testing::Test {
 protected:
  LocalClustersTest() { setenv("XDG_RUNTIME_DIR", runtime_.path().c_str(), 1); }
  ~LocalClustersTest() override { unsetenv("XDG_RUNTIME_DIR"); }
  std::string directory() const { return runtime_.File("specfabric"); }
  std::string OwnFile() const { return absl::StrCat(directory(), "/up-", getpid(), ".json"); }
  void AddFile(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(directory(), "/", name)) << text;
  }

  const base::TempDir runtime_;
};

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

TEST_F(LocalClustersTest, AClusterIsFoundUntilItsFileGoes) {
  EXPECT_THAT(LocalClusters(), IsEmpty());
  {
    const auto file = LocalClusterFile::Write("127.0.0.1:8000", kAdmin);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(ModeOf(directory()), 0700u);
    EXPECT_EQ(ModeOf(OwnFile()), 0600u);
    const auto clusters = LocalClusters();
    ASSERT_EQ(clusters.size(), 1u);
    EXPECT_EQ(clusters[0].pid, getpid());
    EXPECT_EQ(clusters[0].listen, "127.0.0.1:8000");
    EXPECT_EQ(clusters[0].admin.gateways, kAdmin.gateways);
    EXPECT_EQ(clusters[0].admin.targets, kAdmin.targets);
    EXPECT_THAT(clusters[0].admin.drafts, IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(OwnFile()));
  EXPECT_THAT(LocalClusters(), IsEmpty());
}

TEST_F(LocalClustersTest, FilesOfProcessesThatHaveEndedArePassedOverAndThenRemoved) {
  std::optional<LocalClusterFile> file;
  file.emplace(LocalClusterFile::Write("127.0.0.1:8000", kAdmin).value());
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
  AddFile("up-1.json", absl::StrCat("{\"pid\":", ended, ",\"started\":1}"));
  // One that runs, but is another process with the same id.
  AddFile("up-2.json", absl::StrCat("{\"pid\":", getpid(), ",\"started\":1}"));
  for (const char* text : {"", "{", "[]", "3", "{\"pid\":\"x\"}", "{\"pid\":-1,\"started\":0}",
                           "{\"pid\":1e99}", "{\"pid\":0,\"gateways\":[1,{}],\"targets\":3}"}) {
    AddFile("up-3.json", text);
    const auto clusters = LocalClusters();
    ASSERT_EQ(clusters.size(), 1u) << text;
    EXPECT_EQ(clusters[0].admin.gateways, kAdmin.gateways);
  }
  AddFile("other.json", "");
  file.reset();
  file.emplace(LocalClusterFile::Write("127.0.0.1:8000", kAdmin).value());
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory())) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(
      left, ::testing::UnorderedElementsAre(absl::StrCat("up-", getpid(), ".json"), "other.json"));
}

TEST_F(LocalClustersTest, ADirectoryThatOthersMayWriteToIsNotBelieved) {
  auto file = LocalClusterFile::Write("127.0.0.1:8000", kAdmin);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(chmod(directory().c_str(), 0777), 0);
  EXPECT_THAT(LocalClusters(), IsEmpty());
  const auto again = LocalClusterFile::Write("127.0.0.1:8000", kAdmin);
  EXPECT_TRUE(absl::IsFailedPrecondition(again.status()));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr(directory()));
}

TEST_F(LocalClustersTest, ALinkIsNoDirectoryOfOurs) {
  std::filesystem::create_directory(runtime_.File("elsewhere"));
  std::filesystem::create_symlink(runtime_.File("elsewhere"), directory());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(LocalClusterFile::Write("127.0.0.1:8000", kAdmin).status()));
}

TEST_F(LocalClustersTest, WithoutARuntimeDirectoryItIsInTheTemporaryOne) {
  setenv("XDG_RUNTIME_DIR", "/nowhere", 1);
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TMPDIR", runtime_.path().c_str(), 1);
  const auto file = LocalClusterFile::Write("127.0.0.1:8000", kAdmin);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(ModeOf(runtime_.File(absl::StrCat("specfabric-", geteuid()))), 0700u);
  EXPECT_EQ(LocalClusters().size(), 1u);
  if (before == nullptr) {
    unsetenv("TMPDIR");
  } else {
    setenv("TMPDIR", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace specfabric::app

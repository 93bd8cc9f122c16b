#include "transport/gpu.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;

TEST(UseGpuTest, MakesTheGpusContextCurrent) {
  for (int gpu : {1, 0}) {
    const absl::Status used = UseGpu(gpu, SPECFABRIC_FAKE_CUDA_DRIVER);
    ASSERT_TRUE(used.ok()) << used;
    void* const library = dlopen(SPECFABRIC_FAKE_CUDA_DRIVER, RTLD_NOW);
    ASSERT_NE(library, nullptr);
    const auto current = reinterpret_cast<int (*)()>(dlsym(library, "FakeCurrentGpu"));
    ASSERT_NE(current, nullptr);
    EXPECT_EQ(current(), gpu);
  }
}

TEST(UseGpuTest, ErrorNamesWhatIsMissing) {
  const auto refused = [](int gpu, const char* library) {
    const absl::Status status = UseGpu(gpu, library);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(2, SPECFABRIC_FAKE_CUDA_DRIVER),
              HasSubstr("GPU 2 is asked for, and this process sees 2"));
  EXPECT_THAT(refused(-1, SPECFABRIC_FAKE_CUDA_DRIVER), HasSubstr("GPU -1 is asked for"));
  EXPECT_THAT(refused(0, "libno_such_driver.so.1"),
              HasSubstr("libno_such_driver.so.1, of NVIDIA's driver, cannot be loaded"));
  EXPECT_THAT(refused(0, "libc.so.6"), HasSubstr("libc.so.6 is not NVIDIA's driver"));
}

TEST(CopyToGpuTest, CopiesInTheCurrentContext) {
  const char from[] = "weights";
  char to[sizeof(from)] = "";
  ASSERT_TRUE(UseGpu(0, SPECFABRIC_FAKE_CUDA_DRIVER).ok());
  ASSERT_TRUE(CopyToGpu(from, sizeof(from), to, SPECFABRIC_FAKE_CUDA_DRIVER).ok());
  EXPECT_STREQ(to, from);
  char back[sizeof(from)] = "";
  ASSERT_TRUE(CopyFromGpu(to, sizeof(to), back, SPECFABRIC_FAKE_CUDA_DRIVER).ok());
  EXPECT_STREQ(back, from);
  EXPECT_EQ(CopyToGpu(from, sizeof(from), to, "libc.so.6").code(),
            absl::StatusCode::kFailedPrecondition);
}

class GpuDirectTest : public ::testing::Test {
 protected:
  GpuDirectTest() {
    char pattern[] = "/tmp/gpudirectXXXXXX";
    root_ = mkdtemp(pattern);
    Write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
  }
  ~GpuDirectTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void LoadDriver(bool open) {
    Write("/proc/driver/nvidia/version",
          std::string("NVRM version: NVIDIA UNIX ") + (open ? "Open Kernel Module for " : "") +
              "x86_64 Kernel Module  580.65.06  Sun Jul 27 06:54:38 UTC 2025\n");
  }
  std::string Description() { return FindGpuDirect(root_).description; }

  std::string root_;
};

TEST_F(GpuDirectTest, NeedsTheDriver) {
  EXPECT_FALSE(FindGpuDirect(root_).found());
  EXPECT_EQ(Description(), "NVIDIA's kernel driver is not loaded");
}

TEST_F(GpuDirectTest, ByTheModule) {
  LoadDriver(/*open=*/false);
  EXPECT_FALSE(FindGpuDirect(root_).found());
  EXPECT_THAT(Description(), HasSubstr("nvidia-peermem is not loaded, and dma-bufs need"));
  Write("/sys/module/nvidia_peermem/refcnt", "0\n");
  EXPECT_TRUE(FindGpuDirect(root_).peermem);
  EXPECT_EQ(Description(), "nvidia-peermem");
}

TEST_F(GpuDirectTest, ByTheModulesOldName) {
  LoadDriver(/*open=*/false);
  Write("/sys/module/nv_peer_mem/refcnt", "0\n");
  EXPECT_EQ(Description(), "nvidia-peermem");
}

TEST_F(GpuDirectTest, ByDmaBufs) {
  LoadDriver(/*open=*/true);
  EXPECT_EQ(Description(), "dma-buf");
  for (const char* old : {"5.11.22\n", "4.18.0-553.el8\n", "what\n"}) {
    Write("/proc/sys/kernel/osrelease", old);
    EXPECT_FALSE(FindGpuDirect(root_).found()) << old;
  }
  Write("/proc/sys/kernel/osrelease", "5.12.0\n");
  Write("/sys/module/nvidia_peermem/refcnt", "0\n");
  EXPECT_EQ(Description(), "nvidia-peermem and dma-buf");
}

}  // namespace
}  // namespace specfabric::transport

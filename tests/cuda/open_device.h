#ifndef SPECFABRIC_TESTS_CUDA_OPEN_DEVICE_H_
#define SPECFABRIC_TESTS_CUDA_OPEN_DEVICE_H_

#include <memory>

#include "base/cuda/device.h"
#include "gtest/gtest.h"
#include "tests/cuda/device.h"

namespace specfabric::base::cuda {

// With the first GPU opened.
class OpenDeviceTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  std::unique_ptr<Device> device_;
};

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_TESTS_CUDA_OPEN_DEVICE_H_

#include "transport/payload_path.h"

#include <gtest/gtest.h>

#include <string>

namespace specfabric::transport {
namespace {

struct Case {
  std::string info, wires, protocol;
};

class RequestInfoTest : public ::testing::TestWithParam<Case> {};

TEST_P(RequestInfoTest, IsRead) {
  const PayloadPath path = ParseRequestInfo(GetParam().info);
  EXPECT_EQ(path.wires, GetParam().wires);
  EXPECT_EQ(path.protocol, GetParam().protocol);
}

INSTANTIATE_TEST_SUITE_P(
    Of, RequestInfoTest,
    ::testing::Values(
        Case{"{completed|callback|proto_send} am_send(rndv) from cuda/GPU0 length 4104192 "
             "rendezvous "
             "zero-copy read from remote cuda_ipc/cuda 381469.7 MB/s 10.26 us",
             "cuda_ipc/cuda", "rendezvous zero-copy read from remote"},
        Case{"{proto_send} rndv_send from host memory length 1048576 fragmented copy-in copy-out "
             "posix/memory 4012.2 MB/s 250.00 us",
             "posix/memory", "fragmented copy-in copy-out"},
        Case{
            "{} rndv_send from host memory length 1048576 zero-copy flushed write to remote 60% on "
            "rc_mlx5/mlx5_0:1, 20% on rc_mlx5/mlx5_1:1 and 20% on rc_mlx5/mlx5_2:1 4.2 MB/s 2.0 us",
            "rc_mlx5/mlx5_0:1 and rc_mlx5/mlx5_1:1 and rc_mlx5/mlx5_2:1",
            "zero-copy flushed write to remote"},
        Case{"{} am_send from host memory length 70000 multi-frag zero-copy tcp/lo - not available",
             "tcp/lo", "multi-frag zero-copy"},
        // Wires are looked for after the length only.
        Case{"{} am_send from cuda/GPU0 length 70000", "", ""},
        Case{"{send_am} send length 70000 ucp_am_rndv_rts() comp:Done() lane[0]: 2:posix/memory.0 "
             "md[2] -> md[2]/posix/sysdev[255] am am_bw#0",
             "", ""},
        Case{"{recv_am} <no debug info>", "", ""}, Case{"", "", ""}, Case{"length", "", ""}));

}  // namespace
}  // namespace specfabric::transport

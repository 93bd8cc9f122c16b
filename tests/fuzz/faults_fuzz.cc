// The text of the test hook `faults`, and what an injector makes of whatever it accepts.

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "transport/faults.h"

namespace specfabric {
namespace {

using transport::FaultOptions;

bool IsProbability(double value) { return value >= 0 && value <= 1; }

void CheckAccepted(const FaultOptions& faults) {
  for (const double part :
       {faults.drop, faults.duplicate, faults.reorder, faults.corrupt, faults.delay_part}) {
    SPECFABRIC_CHECK(IsProbability(part));
  }
  SPECFABRIC_CHECK(faults.delay >= 0 && faults.delay <= transport::kMaxFaultDelay);
  transport::FaultInjector injector(faults);
  for (uint32_t payload_bytes = 0; payload_bytes < 8; ++payload_bytes) {
    const transport::FaultDecision action = injector.Decide(payload_bytes);
    SPECFABRIC_CHECK(action.copies >= 0 && action.copies <= 2);
    SPECFABRIC_CHECK(action.delay >= 0 && action.copy_delay >= 0);
    if (action.corrupt) {
      SPECFABRIC_CHECK(action.corrupt_at < payload_bytes && action.corrupt_with != 0);
    }
  }
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  return {ToBytes("drop=.01,duplicate=.02,reorder=.1,corrupt=.001,delay=5ms:.1,seed=7"),
          ToBytes("delay=250us"),
          ToBytes("delay=60s:1"),
          ToBytes("drop=1e-3,seed=18446744073709551615"),
          ToBytes("corrupt=1"),
          ToBytes("duplicate=0,reorder=0.5")};
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto faults = specfabric::transport::ParseFaults(text);
  if (faults.ok()) specfabric::CheckAccepted(*faults);
  return 0;
}

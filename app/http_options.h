#ifndef SPECFABRIC_APP_HTTP_OPTIONS_H_
#define SPECFABRIC_APP_HTTP_OPTIONS_H_

#include "absl/status/status.h"
#include "gateway/gateway.h"

namespace specfabric::app {

// Sets what the flags of the gateway's HTTP say: --cors_origins, --api_key_file,
// --access_log, --tls_cert and --tls_key, whose files it reads. InvalidArgument in one line.
absl::Status SetHttpOptions(gateway::GatewayOptions* options);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_HTTP_OPTIONS_H_

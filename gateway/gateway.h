#ifndef SPECFABRIC_GATEWAY_GATEWAY_H_
#define SPECFABRIC_GATEWAY_GATEWAY_H_

// The gateway role: OpenAI's HTTP API in front of a set of targets.
//
// Threads: one io thread owns connections, requests and the detokenisation of what streams. Nothing
// on it may take longer than a millisecond, whatever clients send; how long its events take is
// specfabric_gateway_io_event_seconds. What grows with a request or an answer is done by two
// encoder threads (gateway/workers.h), one for short work and one for long. The link's callbacks
// hand over to the io thread, which takes what they bring in turns of some 200 us, with whatever
// else is ready in between.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "gateway/api_keys.h"
#include "gateway/sampling_defaults.h"
#include "gateway/tls_files.h"
#include "gateway/tool_format.h"
#include "metrics/registry.h"
#include "tokenizer/tokenizer.h"
#include "trace/recorder.h"
#include "transport/fabric.h"

namespace specfabric::gateway {

struct GatewayOptions {
  std::string listen = "127.0.0.1:8000";  // HTTP
  transport::SharedListenSocket socket;   // listens there already, or null
  std::vector<std::string> targets;       // addresses to stay connected to: LinkOptions::connect
  base::Nanos lookup_interval = 5 * base::kSecond;  // of DNS names among them
  std::string model_name;                           // what clients call the model
  std::vector<std::string> model_aliases;           // what they may call it besides
  std::string model_root;                           // where it is from: "root" of /v1/models
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  SamplingDefaults sampling_defaults = {};  // for what a request leaves out
  std::optional<ToolFormat> tool_format;    // how calls are written; none: the template says it
  int32_t vocabulary = 0;                   // the model's; 0: the tokenizer's
  int32_t context = 0;                      // tokens of a sequence at most; 0: the targets' limit
  std::string version;
  transport::FabricOptions fabric;
  // The web pages that may read answers: Cors::Check.
  std::vector<std::string> cors_origins;
  std::shared_ptr<ApiKeyFile> api_keys;             // null: no key is asked for
  std::shared_ptr<TlsFiles> tls;                    // null: plain HTTP
  base::Nanos reload_interval = 1 * base::kSecond;  // of the files of these two
  bool access_log = false;
  size_t max_choices = 1024;      // running or waiting; more are answered 429
  size_t max_connections = 4096;  // more wait to be accepted
  uint64_t max_body_bytes = 16 << 20;
  base::Nanos target_wait = 5 * base::kSecond;     // for a target, before a request is answered 503
  base::Nanos stall_timeout = 30 * base::kSecond;  // of a target: DispatcherOptions
  base::Nanos request_timeout = 0;  // of a whole answer, which then ends with 504; 0: none
  base::Nanos slow_request = 0;     // requests that take longer are logged; 0: none are
  // Of a stream, before its first output: the header is sent once targets have had all of its
  // choices for so long without refusing one. Until then an error has a status of its own, later it
  // is an event.
  base::Nanos stream_header_delay = 300 * base::kMillisecond;
  // A stream without output for so long gets a comment, which keeps proxies from closing it. The
  // header does not come later than this, either.
  base::Nanos stream_keep_alive = 15 * base::kSecond;
  trace::Recorder* recorder = nullptr;  // null: no tracing; must outlive the gateway
};

class Gateway {
 public:
  // `registry` must outlive the gateway. Fails, with the reason in one line, if the HTTP port is
  // taken or the fabric cannot start. Targets may connect later.
  static absl::StatusOr<std::unique_ptr<Gateway>> Start(GatewayOptions options,
                                                        metrics::Registry* registry);
  // Cancels running requests.
  ~Gateway();

  const std::string& listen_address() const;  // HTTP, as bound

  // From now on new requests and /readyz are answered 503, with Retry-After; running requests go
  // on. Any thread.
  void Drain();
  // Running completions and chat requests. Any thread.
  int in_flight() const;

 private:
  class Impl;
  explicit Gateway(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GATEWAY_H_

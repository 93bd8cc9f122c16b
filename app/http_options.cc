#include "app/http_options.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "app/flag_checks.h"
#include "app/flags.h"
#include "gateway/api_keys.h"
#include "gateway/cors.h"
#include "gateway/tls_files.h"

namespace specfabric::app {

absl::Status SetHttpOptions(gateway::GatewayOptions* options) {
  for (absl::string_view part : absl::StrSplit(FLAGS_cors_origins, ',', absl::SkipWhitespace())) {
    const std::string origin(absl::StripAsciiWhitespace(part));
    if (absl::Status good = gateway::Cors::Check(origin); !good.ok()) {
      return ForFlag("cors_origins", good);
    }
    options->cors_origins.push_back(origin);
  }
  if (!FLAGS_api_key_file.empty()) {
    auto keys = gateway::ApiKeyFile::Open(FLAGS_api_key_file);
    if (!keys.ok()) return Flag("api_key_file", FLAGS_api_key_file, keys.status());
    options->api_keys = *std::move(keys);
  }
  if (FLAGS_tls_cert.empty() != FLAGS_tls_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", FLAGS_tls_cert.empty() ? "tls_cert" : "tls_key",
                     " is missing: --tls_cert and --tls_key go together"));
  }
  if (!FLAGS_tls_cert.empty()) {
    auto tls = gateway::TlsFiles::Open(FLAGS_tls_cert, FLAGS_tls_key);
    if (!tls.ok()) return tls.status();
    options->tls = *std::move(tls);
  }
  options->access_log = FLAGS_access_log;
  return absl::OkStatus();
}

}  // namespace specfabric::app

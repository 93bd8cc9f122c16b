#ifndef SPECFABRIC_GATEWAY_TLS_FILES_H_
#define SPECFABRIC_GATEWAY_TLS_FILES_H_

// The gateway's certificate and its key (--tls_cert, --tls_key), which may be renewed while
// connections are open.

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "boost/asio/ssl/context.hpp"
#include "gateway/file_watch.h"

namespace specfabric::gateway {

class TlsFiles {
 public:
  using Context = boost::asio::ssl::context;

  // PEM: `cert` holds the server's certificate, then those that lead to its authority; `key` its
  // private key, without a passphrase. TLS 1.2 and later. InvalidArgument in one line that begins
  // with the name of the flag and the path at fault.
  static absl::StatusOr<std::shared_ptr<TlsFiles>> Open(const std::string& cert,
                                                        const std::string& key);

  // For new connections; those that are open keep theirs. Any thread.
  std::shared_ptr<Context> context() const;
  std::string Describe() const;  // for the log
  // Reads both files again if one has changed, and logs it. If they cannot be used now, the context
  // stays as it is. Blocks; on one thread at a time.
  void Reload();

 private:
  TlsFiles(std::string cert, std::string key, FileWatch watch, std::shared_ptr<Context> context);

  const std::string cert_, key_;
  FileWatch watch_;
  mutable std::mutex mutex_;
  std::shared_ptr<Context> context_;  // guarded by mutex_
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TLS_FILES_H_

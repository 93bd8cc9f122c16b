#ifndef SPECFABRIC_TESTS_GATEWAY_TLS_CLIENT_H_
#define SPECFABRIC_TESTS_GATEWAY_TLS_CLIENT_H_

// A blocking TLS client for tests, on OpenSSL alone, so that it shares nothing with the server. A
// read that takes longer than a minute is an error.

#include <openssl/ssl.h>

#include <string>

namespace specfabric::gateway {

class TlsClient {
 public:
  // Connects; `max_version` 0: the newest. connected() says whether the handshake succeeded.
  explicit TlsClient(const std::string& address, int max_version = 0);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  int version() const { return SSL_version(ssl_); }
  std::string peer_name() const;  // of the server's certificate

  void Send(const std::string& bytes);
  // Reads until `end` is there or the connection ends, and returns what was read up to there.
  std::string ReadUntil(const std::string& end);
  std::string ReadAll() { return ReadUntil(""); }
  // Whether the server has ended the connection with close_notify.
  bool closed_in_order() const { return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }

  void SendCloseNotify();  // answers can still be read
  void ShutdownSending();  // the same, by FIN alone
  void Close();            // without close_notify

 private:
  SSL_CTX* context_;
  SSL* ssl_;
  int socket_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_TLS_CLIENT_H_

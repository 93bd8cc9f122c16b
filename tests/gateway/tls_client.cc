#include "tests/gateway/tls_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <utility>

namespace specfabric::gateway {

TlsClient::TlsClient(const std::string& address, int max_version)
    : context_(SSL_CTX_new(TLS_client_method())), ssl_(nullptr) {
  if (max_version != 0) {
    SSL_CTX_set_security_level(context_, 0);  // versions before 1.2 need it
    SSL_CTX_set_min_proto_version(context_, 0);
    SSL_CTX_set_max_proto_version(context_, max_version);
  }
  ssl_ = SSL_new(context_);
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval minute{60, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return;
  SSL_set_fd(ssl_, socket_);
  connected_ = SSL_connect(ssl_) == 1;
}

TlsClient::~TlsClient() {
  Close();
  SSL_free(ssl_);
  SSL_CTX_free(context_);
}

std::string TlsClient::peer_name() const {
  const X509* cert = SSL_get0_peer_certificate(ssl_);
  char name[100] = "";
  if (cert != nullptr) {
    X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof(name));
  }
  return name;
}

void TlsClient::Send(const std::string& bytes) {
  SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()));
}

std::string TlsClient::ReadUntil(const std::string& end) {
  for (;;) {
    const size_t at = end.empty() ? std::string::npos : buffer_.find(end);
    if (at != std::string::npos) {
      std::string found = buffer_.substr(0, at + end.size());
      buffer_.erase(0, at + end.size());
      return found;
    }
    char block[4096];
    const int count = SSL_read(ssl_, block, sizeof(block));
    if (count <= 0) return std::exchange(buffer_, "");
    buffer_.append(block, static_cast<size_t>(count));
  }
}

void TlsClient::SendCloseNotify() { SSL_shutdown(ssl_); }
void TlsClient::ShutdownSending() { shutdown(socket_, SHUT_WR); }

void TlsClient::Close() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
}

}  // namespace specfabric::gateway

#include "gateway/tls_files.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "boost/asio/buffer.hpp"
#include "boost/system/error_code.hpp"
#include "gateway/http_date.h"
#include "spdlog/spdlog.h"

namespace specfabric::gateway {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Context = TlsFiles::Context;

constexpr size_t kMaxPemBytes = 1 << 20;

template <typename... Why>
absl::Status Refused(const char* flag, const std::string& path, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": ", why...));
}

absl::StatusOr<std::string> Read(const char* flag, const std::string& path) {
  auto text = base::ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return Refused(flag, path, text.status().message());
  return text;
}

absl::StatusOr<std::shared_ptr<Context>> Load(const std::string& cert, const std::string& key) {
  const auto chain = Read("tls_cert", cert);
  if (!chain.ok()) return chain.status();
  const auto secret = Read("tls_key", key);
  if (!secret.ok()) return secret.status();
  auto context = std::make_shared<Context>(Context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  // A client that renegotiates costs the server far more than itself.
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Without it OpenSSL asks for a passphrase on the terminal.
  SSL_CTX_set_default_passwd_cb(native, [](char*, int, int, void*) { return -1; });
  error_code ec;
  context->use_certificate_chain(asio::buffer(*chain), ec);
  if (ec) return Refused("tls_cert", cert, "it has no certificate in PEM (", ec.message(), ")");
  context->use_private_key(asio::buffer(*secret), Context::pem, ec);
  // Whether the key is of the certificate is checked with it.
  if (ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == X509_R_KEY_VALUES_MISMATCH ||
      (!ec && SSL_CTX_check_private_key(native) != 1)) {
    ERR_clear_error();
    return Refused("tls_key", key, "it is not the key of the certificate in --tls_cert=", cert);
  }
  if (ec) {
    return Refused("tls_key", key, "it has no private key in PEM without a passphrase (",
                   ec.message(), ")");
  }
  return context;
}

// When the server's certificate ends.
std::string EndOf(Context& context) {
  const X509* cert = SSL_CTX_get0_certificate(context.native_handle());
  std::tm end = {};
  if (cert == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(cert), &end) != 1) return "unknown";
  return HttpDate(timegm(&end));
}

}  // namespace

TlsFiles::TlsFiles(std::string cert, std::string key, FileWatch watch,
                   std::shared_ptr<Context> context)
    : cert_(std::move(cert)),
      key_(std::move(key)),
      watch_(std::move(watch)),
      context_(std::move(context)) {}

absl::StatusOr<std::shared_ptr<TlsFiles>> TlsFiles::Open(const std::string& cert,
                                                         const std::string& key) {
  FileWatch watch({cert, key});
  auto context = Load(cert, key);
  if (!context.ok()) return context.status();
  return std::shared_ptr<TlsFiles>(new TlsFiles(cert, key, std::move(watch), *std::move(context)));
}

std::shared_ptr<Context> TlsFiles::context() const {
  std::lock_guard lock(mutex_);
  return context_;
}

void TlsFiles::Reload() {
  if (!watch_.Changed()) return;
  auto context = Load(cert_, key_);
  if (!context.ok()) {
    spdlog::warn("TLS: the certificate stays as it is; {}", base::Message(context.status()));
    return;
  }
  {
    std::lock_guard lock(mutex_);
    context_ = *std::move(context);
  }
  spdlog::info("TLS: read again; {}", Describe());
}

std::string TlsFiles::Describe() const {
  return absl::StrCat("the certificate ", cert_, " is valid until ", EndOf(*context()));
}

}  // namespace specfabric::gateway

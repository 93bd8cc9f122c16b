#ifndef SPECFABRIC_TESTS_GATEWAY_HTTP_CLIENT_H_
#define SPECFABRIC_TESTS_GATEWAY_HTTP_CLIENT_H_

// A blocking HTTP client for tests. Errors of the connection are reported as `status` 0, never
// thrown. A read that takes longer than a minute is an error.

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace specfabric::gateway {

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpClient {
 public:
  explicit HttpClient(const std::string& address);  // "127.0.0.1:port"
  HttpClient(HttpClient&& other) noexcept;
  ~HttpClient();

  // A header of all later requests: "Name: value".
  void SetHeader(const std::string& line);
  // Sends a request and reads the answer. The connection stays open.
  ClientResponse Get(const std::string& path);
  ClientResponse Post(const std::string& path, const std::string& body);
  ClientResponse Request(const std::string& method, const std::string& path,
                         const std::string& body);

  // A streamed answer: Open sends the request and reads the header, NextEvent returns the data of
  // the next server-sent event, or "" at the end of the body.
  ClientResponse Open(const std::string& path, const std::string& body);
  std::string NextEvent();
  // The same with the lines of one comment, as they are, where a comment comes first.
  std::string NextEventOrComment();
  std::vector<std::string> RestOfEvents();

  // Sends raw bytes.
  void SendRaw(const std::string& bytes);
  ClientResponse ReadResponse();
  ClientResponse ReadHeadResponse();  // to HEAD: no body follows, whatever Content-Length says
  std::string ReadAll();              // until the connection ends
  void ShutdownSending();             // a half-close: answers can still be read

  void Close();  // at once, also during an answer

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_HTTP_CLIENT_H_

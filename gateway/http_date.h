#ifndef SPECFABRIC_GATEWAY_HTTP_DATE_H_
#define SPECFABRIC_GATEWAY_HTTP_DATE_H_

#include <ctime>
#include <string>

namespace specfabric::gateway {

// A time in the form of HTTP's headers (RFC 9110, 5.6.7): "Sun, 06 Nov 1994 08:49:37 GMT". Pure.
std::string HttpDate(std::time_t time);

// The present time, formatted once a second on each thread. Valid until this thread's next call.
const std::string& DateHeader();

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_DATE_H_

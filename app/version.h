#ifndef SPECFABRIC_APP_VERSION_H_
#define SPECFABRIC_APP_VERSION_H_

namespace specfabric::app {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_VERSION_H_

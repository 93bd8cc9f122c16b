// The one source of the executable that the tests' precompiled header is made for
// (cmake/SpecfabricTargets.cmake).
